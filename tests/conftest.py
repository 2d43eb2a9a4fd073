"""Clusters for the tests: real control planes, each in pytest's own temporary folder and with addresses of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from octavo_localcluster import Cluster

NODES = Path(__file__).parents[1] / "localcluster" / "nodes"


# The package is imported inside the fixtures: the kernels' tests run on machines that have nothing else installed.


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """API server, controllers and scheduler with an audit log; no nodes, so pods stay Pending."""
    from octavo_localcluster import Cluster, ClusterOptions

    folder = tmp_path_factory.mktemp("control-plane")
    with Cluster.start(ClusterOptions(folder=folder, audit=True), report=print) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with an audit log and the demo's node, which runs pods on this machine's CPU."""
    from octavo_localcluster import Cluster, ClusterOptions

    options = ClusterOptions(folder=tmp_path_factory.mktemp("cluster"), nodes_file=NODES / "cpu.yaml", audit=True)
    with Cluster.start(options, report=print) as running:
        yield running
