"""Many InferenceServices at once: they converge, and from then on the operator writes nothing, also after its death."""

from __future__ import annotations

import pytest
from octavo_localcluster import Cluster, ClusterOptions

from benchmarks.operator_fleet import TYPES, Fleet, measure_fleet
from benchmarks.operator_process import install_rights
from benchmarks.operator_scale import measure

pytestmark = pytest.mark.cluster
SERVICES, QUIET_SECONDS = 40, 10.0
QUICK_LEASE = ("--lease-seconds", "4", "--lease-renew-seconds", "3", "--lease-retry-seconds", "0.5")


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    options = ClusterOptions(folder=folder / "cluster", audit=True, simulated_nodes=1)
    with Cluster.start(options, report=print) as cluster:
        install_rights(cluster)
        yield measure(cluster, folder / "operator", SERVICES, QUIET_SECONDS, QUICK_LEASE)


def test_forty_services_converge_with_few_requests_and_little_memory(figures):
    assert figures.services == SERVICES
    assert figures.requests / SERVICES < 30, figures.by_kind
    assert figures.peak_mib < 256, "the chart's memory request"


def test_at_rest_and_after_a_kill_the_operator_writes_nothing(figures):
    assert figures.writes > SERVICES, "the audit log shows the operator's writes"
    assert figures.writes_when_quiet == 0
    assert figures.writes_after_restart == 0


@pytest.fixture(scope="module")
def fleet_figures(tmp_path_factory):
    """The full benchmark's way with a fortieth of its services: value by the beginning of a row's name."""
    small = Fleet(24, 2, 48, quiet_seconds=4.0, storm_seconds=4.0, look_seconds=4.0, flags=QUICK_LEASE)
    rows = measure_fleet(tmp_path_factory.mktemp("fleet"), small)

    def value(beginning):
        [row] = [row for row in rows if row.name.startswith(beginning)]
        return row.value

    return value


def test_a_fleet_of_eight_types_rests_and_a_changed_node_touches_only_its_types_services(fleet_figures):
    assert fleet_figures("writes in 4 s of rest") == 0
    assert 0 < fleet_figures("services planned anew when one node gets a taint") <= 24 / TYPES


def test_an_edit_is_applied_soon(fleet_figures):
    # The goal of a second is the benchmark's, on a quiet machine.
    assert fleet_figures("p99 from a spec's change to applied") < 5000


def test_a_storm_of_node_updates_causes_no_write_and_leaves_nobody_waiting(fleet_figures):
    assert fleet_figures("writes caused by a storm of node updates") == 0
    assert fleet_figures("services that wait 5 s after the storm") == 0


def test_an_operator_killed_with_a_whole_fleet_comes_back_without_a_write(fleet_figures):
    assert fleet_figures("writes in 4 s after kill −9 and restart") == 0
    assert fleet_figures("peak memory of the operator after its restart") < 256
