"""Two operators and changing leaders, each under an account of its own, so that the audit log tells who wrote."""

from __future__ import annotations

import signal

import pytest

from benchmarks.operator_process import ACCOUNT, NAMESPACE, Audit, OperatorProcess, user_of, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
QUICK = ("--lease-seconds", "4", "--lease-renew-seconds", "2", "--lease-retry-seconds", "0.5", "--resync-seconds", "5")
SECOND = "second-operator"
RBAC = "rbac.authorization.k8s.io"
NAMES = ("a", "b", "c")
WORKERS = 4


def service(name, space, **sections):
    spec = {"model": {"uri": f"file:///models/{name}"}, "placement": {"cpu": "Required"}, **sections}
    meta = {"name": name, "namespace": space}
    return {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": meta, "spec": spec}


def binding(kind, role, **where):
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": SECOND, **where},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": SECOND, "namespace": NAMESPACE}],
    }


@pytest.fixture(scope="module")
def second_account(fleet):
    """Another account with the rights of the chart's."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SECOND, "namespace": NAMESPACE}}
    bindings = [binding("ClusterRole", ACCOUNT), binding("Role", f"{ACCOUNT}-own", namespace=NAMESPACE)]
    fleet.apply(account, *bindings)
    yield SECOND
    fleet.kubectl("delete", "clusterrolebinding", SECOND)
    fleet.kubectl("delete", "rolebinding,serviceaccount", SECOND, "-n", NAMESPACE)


@pytest.fixture
def pair(fleet, space, account_folder, second_account):
    """Two operators; the first one leads, and three services are Ready."""
    with OperatorProcess(fleet.cluster, account_folder, *QUICK, name="first") as first:
        first.wait_for("working")
        fleet.apply(*(service(name, space) for name in NAMES))
        second = OperatorProcess(fleet.cluster, account_folder, *QUICK, name="second", account=second_account)
        with second:
            for name in NAMES:
                fleet.wait_condition(space, name, "Ready", "True", seconds=120)
            second.wait_for("standing by for the Lease")
            yield first, second


def sizes(fleet, space):
    """Block size by service, of every Deployment."""
    found = []
    for item in fleet.items("deployments", space):
        arguments = item["spec"]["template"]["spec"]["containers"][0]["args"]
        found.append(
            (item["metadata"]["labels"]["serving.octavo.dev/service"], arguments[arguments.index("--block-size") + 1])
        )
    return sorted(found)


def edit(fleet, space, size):
    fleet.apply(*(service(name, space, engine={"kvCache": {"blockSize": size}}) for name in NAMES))


def test_a_leader_that_was_frozen_in_the_middle_of_its_work_begins_no_write_after_its_return(fleet, space, pair):
    first, second = pair
    edit(fleet, space, 32)
    first.process.send_signal(signal.SIGSTOP)
    try:
        second.wait_for("working", 60)
        edit(fleet, space, 64)
        for name in NAMES:
            fleet.wait_condition(space, name, "Ready", "True", seconds=90)
        assert sizes(fleet, space) == [(name, "64") for name in NAMES]
        written = Audit(fleet.cluster, user_of())
    finally:
        first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(30) == 1, "it must end itself: another one leads"
    # What each worker had begun before the freeze may still arrive; the leader of now sets it right.
    assert len(written.writes()) <= WORKERS
    assert second.state() == "working"
    wait_until(lambda: sizes(fleet, space) == [(name, "64") for name in NAMES], "the last spec's state", 30)
    for name in NAMES:
        fleet.wait_condition(space, name, "Ready", "True", seconds=60)


def test_leaders_that_are_killed_again_and_again_leave_the_last_specs_state_and_rest(fleet, space, pair):
    leader, other = pair
    for size in (8, 32, 128, 256):
        edit(fleet, space, size)
        leader.end(signal.SIGKILL)
        leader.start()
        other.wait_for("working", 60)
        leader, other = other, leader
    for name in NAMES:
        fleet.wait_condition(space, name, "Ready", "True", seconds=90)
    assert sizes(fleet, space) == [(name, "256") for name in NAMES]
    other.wait_for("standing by for the Lease")
    quiet = [Audit(fleet.cluster, user_of()), Audit(fleet.cluster, user_of(SECOND))]
    count = leader.metric("octavo_operator_reconcile_seconds_count")
    wait_until(lambda: leader.metric("octavo_operator_reconcile_seconds_count") >= count + 6, "two resyncs", 60)
    assert [audit.writes() for audit in quiet] == [[], []]
