"""A real operator whose words with the API server are lost, late, refused and cut off: it ends where it should."""

from __future__ import annotations

import pytest

from benchmarks.operator_process import Audit, OperatorProcess, user_of, wait_until
from tests.operator.faulty_proxy import Faults, FaultyProxy

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]
BAD = Faults(
    lost_events=30, late_events=20, late_seconds=0.3, every_nth_watch_expires=5, cut_watches=2, frozen_watches=1,
    refused_writes=15, unanswered_writes=10,
)  # fmt: skip
KINDS = ("lost events", "late events", "expired watches", "refused writes", "unanswered writes")
SLOW = Faults(late_events=60, late_seconds=3.0, frozen_watches=10)


def service(name, space, **sections):
    spec = {"model": {"uri": f"file:///models/{name}"}, "placement": {"cpu": "Required"}, **sections}
    meta = {"name": name, "namespace": space}
    return {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": meta, "spec": spec}


def test_lost_late_refused_and_cut_words_change_nothing_about_the_end(fleet, space, account_folder):
    authority = fleet.cluster.folder / "pki" / "ca.crt"
    with FaultyProxy(account_folder / "proxy", fleet.cluster.state.server, authority, BAD) as proxy:
        operator = OperatorProcess(
            fleet.cluster, account_folder, "--resync-seconds", "2", name="abused", server=proxy.address
        )
        (operator.folder / "ca.crt").write_bytes(proxy.authority.path.read_bytes())
        with operator:
            operator.wait_for("working", 120)
            names = [f"s{number}" for number in range(4)]
            fleet.apply(*(service(name, space) for name in names))
            for name in names:
                fleet.wait_condition(space, name, "Ready", "True", seconds=120)
            fleet.apply(*(service(name, space, engine={"kvCache": {"blockSize": 64}}) for name in names[:2]))
            fleet.apply(service("s2", space, access={"networkPolicy": "Disabled"}))
            fleet.kubectl("delete", "ois", "s3", "-n", space, "--wait=false")
            for name in names[:3]:
                fleet.wait_condition(space, name, "Ready", "True", seconds=120)

            def tidy() -> bool:
                found = fleet.items("deployments,networkpolicies", space)
                kinds = sorted((item["kind"], item["metadata"]["name"].split("-")[0]) for item in found)
                wanted = [("Deployment", name) for name in names[:3]] + [("NetworkPolicy", name) for name in names[:2]]
                return kinds == wanted

            wait_until(tidy, "exactly the wanted Deployments and policies are left", 120)
            for item in fleet.items("deployments", space):
                arguments = item["spec"]["template"]["spec"]["containers"][0]["args"]
                size = arguments[arguments.index("--block-size") + 1]
                assert size == ("64" if item["metadata"]["name"][:2] in ("s0", "s1") else "16")
            assert {kind for kind in KINDS if not proxy.met[kind]} == set(), proxy.met
            proxy.heal()
            lists = operator.metric("octavo_operator_reconcile_seconds_count")
            wait_until(
                lambda: operator.metric("octavo_operator_reconcile_seconds_count") >= lists + 6, "two full resyncs", 120
            )

            def rests() -> bool:
                # A reconcile that waited for an unanswered write may end late, also one of the service that is gone.
                written = Audit(fleet.cluster, user_of())
                lists = operator.metric("octavo_operator_reconcile_seconds_count")
                wait_until(
                    lambda: operator.metric("octavo_operator_reconcile_seconds_count") >= lists + 6, "two more", 120
                )
                return written.writes() == []

            wait_until(rests, "two complete lists without a write", 60)
            assert tidy()


def test_watches_that_are_slow_or_fall_silent_delay_and_change_nothing_about_the_end(fleet, space, account_folder):
    authority = fleet.cluster.folder / "pki" / "ca.crt"
    with FaultyProxy(account_folder / "proxy", fleet.cluster.state.server, authority, SLOW, seed=7) as proxy:
        operator = OperatorProcess(
            fleet.cluster, account_folder, "--resync-seconds", "3", name="slowed", server=proxy.address
        )
        (operator.folder / "ca.crt").write_bytes(proxy.authority.path.read_bytes())
        with operator:
            operator.wait_for("working", 120)
            names = [f"slow{number}" for number in range(3)]
            fleet.apply(*(service(name, space) for name in names))
            for name in names:
                fleet.wait_condition(space, name, "Ready", "True", seconds=120)
            for size in (32, 64):
                fleet.apply(service("slow0", space, engine={"kvCache": {"blockSize": size}}))
            fleet.wait_condition(space, "slow0", "Ready", "True", seconds=120)
            [item] = fleet.items("deployments", space, "serving.octavo.dev/service=slow0")
            arguments = item["spec"]["template"]["spec"]["containers"][0]["args"]
            assert arguments[arguments.index("--block-size") + 1] == "64"
            assert proxy.met["late events"]
            assert proxy.met["frozen watches"]
