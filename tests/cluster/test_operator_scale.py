"""Many InferenceServices at once: they converge, and from then on the operator writes nothing, also after its death."""

from __future__ import annotations

import pytest
from octavo_localcluster import Cluster, ClusterOptions

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
