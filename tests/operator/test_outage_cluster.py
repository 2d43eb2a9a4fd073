"""A whole minute without the API server's process: nothing is lost, no pod is restarted, and work goes on by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from benchmarks.operator_process import Audit, OperatorProcess, user_of, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]
OUTAGE_SECONDS = 60.0
QUICK = ("--lease-seconds", "4", "--lease-renew-seconds", "3", "--lease-retry-seconds", "0.5", "--resync-seconds", "2")


def service(name, space, **sections):
    spec = {"model": {"uri": f"file:///models/{name}"}, "placement": {"cpu": "Required"}, **sections}
    meta = {"name": name, "namespace": space}
    return {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": meta, "spec": spec}


@contextlib.contextmanager
def no_api_server(cluster):
    """Its process is killed, and the one that would start it again is held."""
    supervisor = cluster.state.supervisor_pid
    os.kill(supervisor, signal.SIGSTOP)
    try:
        cluster.kill_component("kube-apiserver")
        yield time.monotonic()
    finally:
        os.kill(supervisor, signal.SIGCONT)


def answers(fleet) -> bool:
    try:
        return "ok" in fleet.kubectl("get", "--raw", "/readyz")
    except RuntimeError:
        return False


def pods(fleet, space, name):
    selector = f"serving.octavo.dev/role=server,serving.octavo.dev/service={name}"
    return {pod["metadata"]["uid"] for pod in fleet.items("pods", space, selector)}


def block_size(fleet, space, name):
    [item] = fleet.items("deployments", space, f"serving.octavo.dev/service={name}")
    arguments = item["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments[arguments.index("--block-size") + 1]


def test_a_minute_without_the_api_server_loses_nothing_and_restarts_no_pod(fleet, space, account_folder):
    with OperatorProcess(fleet.cluster, account_folder, *QUICK) as operator:
        operator.wait_for("working")
        fleet.apply(*(service(name, space, scaling={"minReplicas": 2}) for name in ("steady", "edited", "goes")))
        for name in ("steady", "edited", "goes"):
            fleet.wait_condition(space, name, "Ready", "True", seconds=120)
        steady = pods(fleet, space, "steady")
        changed = {"kvCache": {"blockSize": 64}}
        # Its rollout has hardly begun when the API server goes.
        fleet.apply(service("edited", space, scaling={"minReplicas": 2}, engine=changed))
        with no_api_server(fleet.cluster) as began:
            wait_until(lambda: operator.process.poll() is not None, "the leader, which can't renew, ends", 30)
            assert operator.end() == 1
            operator.start()
            wait_until(lambda: time.monotonic() - began > OUTAGE_SECONDS, "a minute is over", OUTAGE_SECONDS + 5)
            assert not answers(fleet), "the API server must have been away the whole time"
            assert operator.process.poll() is None, "one that starts without an API server waits for it"
        wait_until(lambda: answers(fleet), "the API server answers again", 60)
        fleet.kubectl("delete", "ois", "goes", "-n", space, "--wait=false")
        operator.wait_for("working", 90)
        written = Audit(fleet.cluster, user_of())
        fleet.apply(service("edited", space, scaling={"minReplicas": 2}, engine={"kvCache": {"blockSize": 128}}))
        # What follows is the operator's own: other components' back-off has grown to a minute meanwhile.
        wait_until(lambda: block_size(fleet, space, "edited") == "128", "the edit is applied", 60)
        wait_until(
            lambda: {i["metadata"]["name"] for i in fleet.items("ois", space)} == {"edited", "steady"}, "gone", 30
        )
        fleet.wait_condition(space, "steady", "Ready", "True", seconds=60)
        count = operator.metric("octavo_operator_reconcile_seconds_count")
        wait_until(lambda: operator.metric("octavo_operator_reconcile_seconds_count") >= count + 4, "two resyncs", 60)
        assert block_size(fleet, space, "steady") == "16"
        assert pods(fleet, space, "steady") == steady
        assert [each for each in written.writes() if each.name.startswith("steady")] == []
