"""Clusters for the tests: real control planes, each in pytest's own temporary folder and with addresses of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from octavo_localcluster import Cluster, ClusterOptions

NODES = Path(__file__).parents[1] / "localcluster" / "nodes"


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """API server, controllers and scheduler with an audit log; no nodes, so pods stay Pending."""
    folder = tmp_path_factory.mktemp("control-plane")
    with Cluster.start(ClusterOptions(folder=folder, audit=True), report=print) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with an audit log and the demo's node, which runs pods on this machine's CPU."""
    options = ClusterOptions(folder=tmp_path_factory.mktemp("cluster"), nodes_file=NODES / "cpu.yaml", audit=True)
    with Cluster.start(options, report=print) as cluster:
        yield cluster
