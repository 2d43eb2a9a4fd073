"""Leadership between operator processes and a real API server, and the gate at their start."""

from __future__ import annotations

import signal

import pytest

from benchmarks.operator_process import NAMESPACE, Audit, OperatorProcess, user_of, wait_until

pytestmark = pytest.mark.cluster
STANDING_BY = "standing by for the Lease"
QUICK = ("--lease-seconds", "4", "--lease-renew-seconds", "2", "--lease-retry-seconds", "0.5")


@pytest.fixture
def pair(fleet, account_folder):
    """Two operators; the first one leads."""
    with OperatorProcess(fleet.cluster, account_folder, *QUICK, name="first") as first:
        first.wait_for("working")
        with OperatorProcess(fleet.cluster, account_folder, *QUICK, name="second") as second:
            second.wait_for(STANDING_BY)
            yield first, second


def holder(fleet) -> str:
    return fleet.kubectl("get", "lease", "octavo-operator", "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}")


def test_a_leader_that_ends_hands_over_at_once_and_a_waiting_one_ends_cleanly(fleet, pair):
    first, second = pair
    assert holder(fleet).startswith("first_")
    assert first.end() == 0
    assert "stopped" in first.log()
    second.wait_for("working", 30)
    assert holder(fleet).startswith("second_")
    first.start().wait_for(STANDING_BY)
    assert first.end() == 0, "one that stands by must heed SIGTERM, too"
    assert second.end() == 0
    assert holder(fleet) == ""


def test_a_killed_leader_is_followed_when_its_lease_has_run_out(fleet, pair):
    first, second = pair
    first.end(signal.SIGKILL)
    second.wait_for("working", 60)


def test_a_leader_ends_itself_when_the_api_server_freezes(fleet, pair):
    first, second = pair
    number = fleet.cluster.kill_component("kube-apiserver", signal.SIGSTOP)
    try:
        assert first.process.wait(30) == 1, "a leader that can't renew must end, also when requests hang"
        assert "was not renewed" in first.log()
        assert second.process.poll() is None, "one that stands by has nothing to lose and waits"
    finally:
        if fleet.cluster.component_pid("kube-apiserver") == number:
            fleet.cluster.kill_component("kube-apiserver", signal.SIGCONT)
    second.wait_for("working", 90)


def test_missing_rights_end_the_process_with_the_rules_text_and_exit_code_2(fleet, account_folder):
    fleet.kubectl("create", "serviceaccount", "powerless", "-n", NAMESPACE)
    written = Audit(fleet.cluster, user_of("powerless"))
    with OperatorProcess(fleet.cluster, account_folder, name="powerless", account="powerless") as process:
        wait_until(lambda: process.process.poll() is not None, "it ends")
        assert process.end() == 2
    last = process.log().strip().splitlines()[-1]
    assert 'apiGroups: ["apps"], resources: ["deployments"], verbs: ["patch"] in all namespaces' in last
    assert written.writes() == []


def test_an_occupied_port_ends_the_process_with_one_line(fleet, account_folder, pair):
    first, _ = pair
    with OperatorProcess(fleet.cluster, account_folder, "--port", str(first.port), name="third") as third:
        wait_until(lambda: third.process.poll() is not None, "it ends")
        assert third.end() == 2
    assert f"--port {first.port}" in third.log().splitlines()[-1]
