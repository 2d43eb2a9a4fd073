"""The node agent's decisions, apart from any cluster."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest
from octavo_localcluster.agent.addresses import AddressPool
from octavo_localcluster.agent.backoff import Backoff, BackoffPolicy, describe_delay
from octavo_localcluster.agent.downward import parse_quantity, resource_value
from octavo_localcluster.agent.environment import (
    ConfigError,
    PodFacts,
    References,
    resolve_environment,
    service_links,
)
from octavo_localcluster.agent.expand import expand
from octavo_localcluster.agent.lifecycle import ContainerView, decide
from octavo_localcluster.agent.logs import Line, LogOptions, choose, read_log
from octavo_localcluster.agent.payload import File, write_payload
from octavo_localcluster.agent.probe_state import ProbeSettings, ProbeState
from octavo_localcluster.agent.rewrite import name_rewriter, path_rewriter
from octavo_localcluster.agent.service_table import Listener, backends, listeners_of
from octavo_localcluster.agent.shim import LogWriter
from octavo_localcluster.agent.unsupported import unsupported_fields

FACTS = PodFacts("127.9.0.1", "127.9.255.1", {"cpu": "2", "memory": "4Gi"})


def pod_of(container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "labels": {"app": "x"}}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)/b", "1/b"), ("$$(A)", "$(A)"), ("$(NO)", "$(NO)"), ("$A", "$A"), ("$(A)$(A)", "11"), ("$", "$")],
)
def test_only_known_references_are_expanded(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/models/c/sub", "/real/sub"),
        ("--model=/models/c", "--model=/real"),
        ("file:///models/c/x", "file:///real/x"),
        ("/models/c:/models/c/d", "/real:/real/d"),
        ("echo hi > /models/c/log; true", "echo hi > /real/log; true"),
        ("/models/cd", "/models/cd"),
        ("http://host/models/c", "http://host/models/c"),
        ("/other/models/c", "/other/models/c"),
        ("/models/c/in/x", "/inner/x"),
    ],
)
def test_mount_paths_are_replaced_as_whole_prefixes(text: str, expected: str) -> None:
    assert path_rewriter({"/models/c/": "/real", "/models/c/in": "/inner"})(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://web.ns.svc:80/x", "http://127.1.0.5:80/x"),
        ("web.ns.svc.cluster.local", "127.1.0.5"),
        ("other.ns.svc", "other.ns.svc"),
        ("a.web.ns.svc", "a.web.ns.svc"),
        ("web.ns.svcs", "web.ns.svcs"),
    ],
)
def test_service_names_become_addresses(text: str, expected: str) -> None:
    rewrite = name_rewriter(lambda namespace, name: "127.1.0.5" if (namespace, name) == ("ns", "web") else None)
    assert rewrite(text) == expected


def test_env_overrides_env_from_and_expands_earlier_names() -> None:
    container = {
        "name": "c",
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "no", "optional": True}}],
        "env": [
            {"name": "P_A", "value": "env"},
            {"name": "B", "value": "$(P_A)-$(BASE)"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
    }
    references = References(
        {"cm": {"data": {"A": "map", "Z": "z"}}}, {"no": None, "s": {"data": {"k": base64.b64encode(b"v").decode()}}}
    )
    found = resolve_environment(pod_of(container), container, references, FACTS, {"BASE": "base"})
    assert found == {
        "BASE": "base", "P_A": "env", "P_Z": "z", "B": "env-base", "IP": "127.9.0.1", "APP": "x", "S": "v",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("references", "message"),
    [
        (References({}, {"s": None}), 'secret "s" not found'),
        (References({}, {"s": {"data": {}}}), "couldn't find key k in Secret ns/s"),
    ],
)
def test_a_missing_secret_or_key_is_named(references: References, message: str) -> None:
    container = {"name": "c", "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
    with pytest.raises(ConfigError) as error:
        resolve_environment(pod_of(container), container, references, FACTS, {})
    assert str(error.value) == message


def test_service_links_name_the_services_of_the_namespace_only() -> None:
    def service(namespace: str) -> dict[str, Any]:
        spec = {"clusterIP": "127.1.0.5", "ports": [{"name": "http", "port": 80}]}
        return {"metadata": {"name": "my-web", "namespace": namespace}, "spec": spec}

    links = service_links([service("ns")], "ns")
    assert links["MY_WEB_SERVICE_HOST"] == "127.1.0.5"
    assert links["MY_WEB_PORT"] == "tcp://127.1.0.5:80"
    assert service_links([service("else")], "ns") == {}


def test_a_limit_that_is_not_set_is_what_the_node_has() -> None:
    pod = pod_of({"name": "c", "resources": {"limits": {"cpu": "1500m"}}})
    assert resource_value(pod, "c", {"resource": "limits.cpu"}, FACTS.allocatable) == "2"
    assert resource_value(pod, "c", {"resource": "limits.cpu", "divisor": "1m"}, FACTS.allocatable) == "1500"
    assert resource_value(pod, "c", {"resource": "limits.memory", "divisor": "1Mi"}, FACTS.allocatable) == "4096"
    with pytest.raises(ValueError, match="no quantity"):
        parse_quantity("1 Gi")


def test_restarts_wait_0_10_20_seconds_up_to_the_maximum_and_a_long_run_forgives() -> None:
    policy, state, delays = BackoffPolicy(), Backoff(), []
    for _ in range(8):
        delays.append(state.after_exit(1.0, policy).delay_seconds)
        state = state.after_start(policy)
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300]
    assert state.after_exit(600.0, policy).delay_seconds == 0
    assert [describe_delay(s) for s in (10, 80, 300)] == ["10s", "1m20s", "5m0s"]


def test_a_probe_counts_only_after_enough_equal_answers_in_a_row() -> None:
    settings = ProbeSettings(success_threshold=2, failure_threshold=3)
    state, seen = ProbeState(False), []
    for ok in (True, False, True, True, False, False, True, False, False, False):
        state = state.observe(ok, settings)
        seen.append(state.result)
    assert seen == [False, False, False, True, True, True, True, True, True, False]


def container(name: str, phase: Any = "new", code: int = 0, *, init: bool = False, **more: Any) -> ContainerView:
    return ContainerView(name, init, phase, exit_code=code, **more)


def test_main_containers_wait_for_all_init_containers() -> None:
    first, second, main = container("a", init=True), container("b", init=True), container("m")
    assert decide("Always", [first, second, main], 0.0).start == ["a"]
    first = container("a", "ended", init=True)
    assert decide("Always", [first, second, main], 0.0).start == ["b"]
    second = container("b", "ended", init=True)
    assert decide("Always", [first, second, main], 0.0).start == ["m"]


def test_the_restart_policy_decides_what_an_end_means() -> None:
    good, bad = container("g", "ended"), container("b", "ended", 1)
    assert decide("Never", [good, bad], 0.0).outcome == "Failed"
    assert decide("OnFailure", [good], 0.0).outcome == "Succeeded"
    assert decide("OnFailure", [good, bad], 0.0).start == ["b"]
    assert decide("Always", [good, bad], 0.0).start == ["g", "b"]
    failed_init = container("i", "ended", 1, init=True)
    assert decide("Never", [failed_init, container("m")], 0.0).outcome == "Failed"


def test_a_restart_waits_for_its_delay() -> None:
    crashed = container("c", "ended", 1, ended_at=100.0, delay_seconds=10.0)
    plan = decide("Always", [crashed], 105.0)
    assert (plan.start, plan.backing_off, plan.wake_at) == ([], ["c"], 110.0)
    assert decide("Always", [crashed], 110.0).start == ["c"]


def test_tail_counts_whole_lines_not_pieces() -> None:
    lines = [Line("1Z", b"a", True), Line("2Z", b"b", False), Line("3Z", b"b2", True), Line("4Z", b"c", True)]
    assert [line.text for line in choose(lines, LogOptions(tail_lines=2))] == [b"b", b"b2", b"c"]
    assert choose(lines, LogOptions(tail_lines=0)) == []
    assert choose(lines, LogOptions(tail_lines=9)) == lines


def test_a_volume_shows_one_version_at_a_time_and_forgets_removed_keys(tmp_path: Path) -> None:
    assert write_payload(tmp_path, {"a": File(b"1"), "d/b": File(b"2", 0o600)})
    assert not write_payload(tmp_path, {"a": File(b"1"), "d/b": File(b"2", 0o600)})
    assert (tmp_path / "d/b").read_bytes() == b"2"
    assert write_payload(tmp_path, {"a": File(b"3")})
    assert (tmp_path / "a").read_bytes() == b"3"
    assert sorted(name for name in os.listdir(tmp_path) if not name.startswith("..")) == ["a"]


def test_restricted_pods_pass_and_unknown_fields_are_named_with_their_path() -> None:
    context = {
        "runAsNonRoot": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"}, "readOnlyRootFilesystem": True,
    }  # fmt: skip
    assert unsupported_fields(pod_of({"name": "c", "securityContext": context})) == []
    bad = pod_of(
        {"name": "c", "securityContext": {"privileged": True}, "livenessProbe": {"grpc": {"port": 1}}},
        hostNetwork=True, volumes=[{"name": "v", "nfs": {}}],
    )  # fmt: skip
    assert unsupported_fields(bad) == [
        "spec.hostNetwork", "spec.volumes[0].nfs", "spec.containers[0].securityContext.privileged",
        "spec.containers[0].livenessProbe.grpc",
    ]  # fmt: skip


def test_only_ready_pods_that_are_not_leaving_get_connections() -> None:
    def backend(ip: str, *, ready: bool = True, leaving: bool = False, label: str = "x") -> dict[str, Any]:
        pod = pod_of({"name": "c", "ports": [{"name": "http", "containerPort": 8000}]})
        pod["metadata"] |= {"labels": {"app": label}} | ({"deletionTimestamp": "now"} if leaving else {})
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        return {**pod, "status": {"podIP": ip, "conditions": conditions}}

    service = {
        "metadata": {"name": "s", "namespace": "ns"},
        "spec": {"clusterIP": "127.1.0.5", "selector": {"app": "x"},
                 "ports": [{"port": 80, "targetPort": "http", "nodePort": 30001}]},
    }  # fmt: skip
    pods = [backend("1"), backend("2", ready=False), backend("3", leaving=True), backend("4", label="y")]
    assert backends(service, "http", pods) == [("1", 8000)]
    assert backends(service, "other", pods) == []
    assert set(listeners_of(service)) == {Listener("127.1.0.5", 80), Listener("127.0.0.1", 30001)}


def test_an_address_is_not_given_twice_nor_reused_at_once() -> None:
    pool = AddressPool("127.9.0.0/16")
    first = pool.take()
    pool.give_back(first)
    assert (first, pool.take()) == ("127.9.0.1", "127.9.0.2")
    pool.reserve("127.9.0.254")
    assert pool.take() == "127.9.1.1"


async def test_a_follower_loses_no_line_when_the_log_is_rotated(tmp_path: Path) -> None:
    path, over = tmp_path / "0.log", asyncio.Event()
    writer = LogWriter(str(path), 400)
    writer.feed("stdout", b"line 0\n")
    found, written = b"", 1
    async for piece in read_log(path, LogOptions(follow=True), over):
        found += piece
        if written < 40:
            writer.feed("stdout", f"line {written}\n".encode())
            written += 1
        else:
            over.set()
    assert (tmp_path / "0.log.1").exists()
    assert found.decode().split("\n")[:-1] == [f"line {i}" for i in range(40)]
