"""Model files in plans: who fetches with whose credentials, what status tells meanwhile, and what speaks against it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from octavo_operator.cluster.resources import PODS, SERVICES
from octavo_operator.control.indexes import Indexes
from octavo_operator.control.progress import ProgressWatch
from octavo_operator.plan import Facts, plan
from octavo_operator.plan import server_contract as contract
from octavo_operator.plan.fetch_state import in_words
from octavo_operator.settings import SettingsError, read_proxy

from tests.operator.test_plan_service import (
    NOW,
    SETTINGS,
    check_pod,
    condition,
    facts,
    live,
    node,
    server_pods,
    service,
)

GIB = 1024**3
FOUND = {"ok": True, "reason": "ModelFound", "message": "fine"}
HUB = {"uri": "hf://org/name", "secretRef": {"name": "hub"}}


def claim(*modes, storage="20Gi", name="files"):
    spec = {"accessModes": list(modes)}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": {"capacity": {"storage": storage}}}


def proven(body, *, size=int(15.2 * GIB), claims=()):
    """(the plan once the model is proven, its objects and the check's pod)."""
    first = plan(facts(body))
    told = {"ok": True, "reason": "ModelFound", "message": "fine", "sizeBytes": size}
    ok = check_pod(first, told)
    given = Facts(body, NOW, SETTINGS, live(first), [ok], [node()], claims)
    return plan(given), live(first), ok


def fetching_pods(planned, count=1):
    pods = server_pods(planned, ready=False)[:count]
    for number, pod in enumerate(pods):
        pod["metadata"]["uid"] = f"pod-{number}"
        running = {"name": "fetch", "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}
        pod["status"] = {"phase": "Pending", "podIP": "127.0.0.1", "initContainerStatuses": [running]}
    return pods


def pod_spec(planned):
    return next(item for item in planned.objects if item["kind"] == "Deployment")["spec"]["template"]["spec"]


def variables(container):
    return {entry["name"]: entry for entry in container["env"]}


@pytest.mark.parametrize(
    ("model", "cpu", "tolerated"),
    [
        ({"uri": "pvc://files/model"}, "Allowed", ["amd.com/gpu", "nvidia.com/gpu"]),
        ({"uri": "pvc://files/model"}, "Required", []),
        (HUB, "Allowed", []),
    ],
)
def test_the_check_of_a_claim_may_run_where_only_accelerators_nodes_mount_it(model, cpu, tolerated):
    planned = plan(facts(service(model=model, placement={"cpu": cpu})))
    check = next(item for item in planned.objects if item["kind"] == "Job")["spec"]["template"]["spec"]
    assert sorted(item["key"] for item in check.get("tolerations", [])) == tolerated
    assert all(item["effect"] == "NoSchedule" for item in check.get("tolerations", []))


def test_the_token_reaches_the_check_and_the_fetch_and_never_the_server():
    planned, owned, _ = proven(service(model=HUB))
    check = next(item for item in owned if item["kind"] == "Job")["spec"]["template"]["spec"]["containers"][0]
    [fetch], [server] = pod_spec(planned)["initContainers"], pod_spec(planned)["containers"]
    for container in (check, fetch):
        assert variables(container)["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert "HF_TOKEN" not in variables(server)


PROXIED = replace(
    SETTINGS, proxy=(("HTTPS_PROXY", "http://proxy.example:3128"), ("NO_PROXY", ".local")), pull_secrets=("a", "b")
)


def test_a_proxy_reaches_the_check_and_the_fetch_and_never_the_server():
    first = plan(facts(service(model=HUB), settings=PROXIED))
    planned = plan(Facts(service(model=HUB), NOW, PROXIED, live(first), [check_pod(first, FOUND)], [node()]))
    job = next(item for item in first.objects if item["kind"] == "Job")["spec"]["template"]["spec"]["containers"][0]
    [fetch], [server] = pod_spec(planned)["initContainers"], pod_spec(planned)["containers"]
    for container in (job, fetch):
        assert variables(container)["HTTPS_PROXY"]["value"] == "http://proxy.example:3128"
        assert variables(container)["NO_PROXY"]["value"] == ".local"
    assert "HTTPS_PROXY" not in variables(server)


def test_a_proxy_that_is_set_later_replaces_no_running_pod():
    planned, owned, ok = proven(service(model=HUB))
    later = plan(Facts(service(model=HUB), NOW, PROXIED, [*owned, *live(planned)], [ok], [node()]))
    assert pod_spec(later) == pod_spec(planned)


def test_pull_secrets_come_with_the_account_of_the_pods_and_leave_their_template_alone():
    first, second = (plan(facts(service(), settings=each)) for each in (SETTINGS, PROXIED))
    accounts = [next(item for item in each.objects if item["kind"] == "ServiceAccount") for each in (first, second)]
    assert "imagePullSecrets" not in accounts[0]
    assert accounts[1]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]


@pytest.mark.parametrize("address", ["proxy:3128", "http://user:word@proxy:3128", "ftp://proxy"])
def test_a_proxy_that_is_none_or_holds_a_password_is_refused(address):
    with pytest.raises(SettingsError, match="--model-proxy"):
        read_proxy(address, "")


def test_a_bucket_gets_its_keys_and_endpoint_and_is_fetched_as_a_hub_model_is():
    model = {"uri": "s3://models/org/tiny", "secretRef": {"name": "store"}, "endpoint": "https://minio.example:9000"}
    planned, owned, _ = proven(service(model=model))
    assert condition(planned, "SpecHonoured")["status"] == "True"
    [fetch] = pod_spec(planned)["initContainers"]
    told = variables(fetch)
    assert told["AWS_ENDPOINT_URL"]["value"] == "https://minio.example:9000"
    assert told["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "AWS_ACCESS_KEY_ID"}
    assert told["AWS_REGION"]["valueFrom"]["secretKeyRef"]["optional"] is True
    check = next(item for item in owned if item["kind"] == "Job")["spec"]["template"]["spec"]["containers"][0]
    assert "s3://models/org/tiny" in check["args"]
    assert pod_spec(planned)["containers"][0]["args"][2] == "/var/cache/octavo/model"


def test_a_mirror_of_the_hub_is_named_to_the_containers_that_fetch():
    planned, _, _ = proven(service(model={"uri": "hf://org/name", "endpoint": "https://hub.example"}))
    assert variables(pod_spec(planned)["initContainers"][0])["HF_ENDPOINT"]["value"] == "https://hub.example"


def test_files_on_a_claim_are_written_by_the_fetch_and_only_read_by_the_server():
    planned, _, _ = proven(service(model={**HUB, "cacheClaim": "files"}), claims=[claim("ReadWriteMany")])
    spec = pod_spec(planned)
    [fetch], [server] = spec["initContainers"], spec["containers"]
    mounts = {part["name"]: {m["name"]: m for m in part["volumeMounts"]} for part in (fetch, server)}
    assert mounts["fetch"]["store"] == {"name": "store", "mountPath": contract.STORE_FOLDER}
    assert mounts["server"]["store"]["readOnly"] is True
    assert {"name": "store", "persistentVolumeClaim": {"claimName": "files"}} in spec["volumes"]
    assert fetch["args"][fetch["args"].index("--cache") + 1] == contract.STORE_FOLDER


def test_status_tells_how_far_the_pod_is_that_is_furthest_behind():
    body = service(model=HUB, scaling={"minReplicas": 2, "maxReplicas": 2})
    planned, _, ok = proven(body)
    pods = fetching_pods(planned, 2)
    reports = {
        "pod-0": {"state": "Fetching", "presentBytes": int(15.1 * GIB), "totalBytes": int(15.2 * GIB)},
        "pod-1": {"state": "Fetching", "presentBytes": int(0.374 * 15.2 * GIB), "totalBytes": int(15.2 * GIB)},
    }
    given = Facts(body, NOW, SETTINGS, live(planned), [ok, *pods], [node()], progress=reports)
    told = condition(plan(given), "ModelReady")
    assert (told["status"], told["reason"]) == ("False", "Fetching")
    assert told["message"].startswith("37 % of 15.2 GiB; pod ")
    assert "37 % of 15.2 GiB" in condition(plan(given), "Ready")["message"]
    assert condition(plan(given), "Progressing")["status"] == "True"
    # What fetches is not taken away for it.
    assert next(item for item in plan(given).objects if item["kind"] == "Deployment")["spec"]["replicas"] == 2


def test_a_second_replica_that_fetches_does_not_make_a_serving_model_unready():
    body = service(model=HUB)
    planned, _, ok = proven(body)
    serving = server_pods(planned)
    for pod in serving:
        pod["metadata"]["uid"] = "serving"
    late = fetching_pods(planned)
    late[0]["metadata"]["name"] += "-late"
    given = Facts(body, NOW, SETTINGS, live(planned), [ok, *serving, *late], [node()])
    assert condition(plan(given), "ModelReady")["status"] == "True"


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"state": "Waiting", "presentBytes": 0, "totalBytes": 100 * 2**20}, "0 % of 100 MiB, another pod fetches"),
        ({"state": "Fetching", "presentBytes": 1, "totalBytes": 2, "interruptions": 3}, "resumed after the connection"),
        ({"state": "Verifying", "presentBytes": 2, "totalBytes": 2}, "verifying"),
        ({"state": "Starting", "presentBytes": 0, "totalBytes": 0}, "its size is not known yet"),
    ],
)
def test_every_state_of_a_fetch_has_words(report, words):
    assert words in in_words(report)


def test_words_change_once_a_percent_so_that_status_is_not_written_more_often():
    total = 100 * GIB
    said = {
        in_words({"state": "Fetching", "presentBytes": total * i // 10_000, "totalBytes": total}) for i in range(10_000)
    }
    assert len(said) == 100


def test_a_claim_for_one_node_under_several_replicas_is_warned_of_and_does_not_stop_them():
    body = service(model={**HUB, "cacheClaim": "files"}, scaling={"minReplicas": 1, "maxReplicas": 3})
    planned, _, _ = proven(body, claims=[claim("ReadWriteOnce")])
    told = condition(planned, "ModelReady")
    assert (told["status"], told["reason"]) == ("True", "ClaimOnOneNode")
    assert "ReadWriteOnce" in told["message"]
    assert any(event.type == "Warning" and event.reason == "ClaimOnOneNode" for event in planned.events)
    alone = service(model={**HUB, "cacheClaim": "files"})
    assert condition(proven(alone, claims=[claim("ReadWriteOnce")])[0], "ModelReady")["reason"] == "ModelFound"


@pytest.mark.parametrize(
    ("claims", "reason", "said"),
    [
        (
            [claim("ReadWriteMany", storage="10Gi")],
            "NoSpaceLeft",
            "the claim files (model.cacheClaim) 10.0",
        ),
        ([claim("ReadWriteMany", name="other")], "ClaimNotFound", "files"),
    ],
)
def test_a_claim_that_can_not_hold_the_model_is_told_before_a_replica_starts(claims, reason, said):
    planned, _, _ = proven(service(model={**HUB, "cacheClaim": "files"}), claims=claims)
    told = condition(planned, "ModelReady")
    assert (told["status"], told["reason"]) == ("False", reason)
    assert said in told["message"]
    assert not [item for item in planned.objects if item["kind"] == "Deployment"]


async def test_the_operator_asks_pods_that_fetch_and_queues_their_service_when_words_change(monkeypatch):
    reports = iter([5, 5, 6, 7])
    body = {"state": "Fetching", "totalBytes": 1000, "interruptions": 0}

    async def answer(_request):
        return web.json_response({**body, "presentBytes": next(reports) * 10})

    app = web.Application()
    app.router.add_get("/progress", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    monkeypatch.setattr(contract, "PORT", port)
    indexes, asked = Indexes(), []
    planned, _, _ = proven(service(model=HUB))
    [pod] = fetching_pods(planned)
    indexes.store(PODS, {**pod, "metadata": {**pod["metadata"], "resourceVersion": "1"}})
    indexes.store(SERVICES, {**service(model=HUB), "metadata": {**service()["metadata"], "resourceVersion": "1"}})
    watch = ProgressWatch(indexes, asked.append)
    counts = []
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            await watch.look(session, asyncio.Semaphore(4))
            counts.append(len(asked))
    assert counts == [1, 1, 2]
    assert asked[0] == ("team", "chat")
    seen = []
    watch.planner(lambda given: seen.append(given.progress) or plan(given))(facts(service(model=HUB), pods=[pod]))
    assert seen[0]["pod-0"]["presentBytes"] == 60
    await runner.cleanup()
    assert json.dumps(seen[0])


async def test_a_pod_that_gives_no_report_stops_nothing():
    indexes, asked = Indexes(), []
    planned, _, _ = proven(service(model=HUB))
    for address in ("", "not an address", "127.0.0.1"):
        [pod] = fetching_pods(planned)
        pod["metadata"] |= {"name": f"p{len(address)}", "uid": address, "resourceVersion": "1"}
        pod["status"]["podIP"] = address
        indexes.store(PODS, pod)
    async with aiohttp.ClientSession() as session:
        await ProgressWatch(indexes, asked.append).look(session, asyncio.Semaphore(4))
    assert asked == []
