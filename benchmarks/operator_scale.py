"""Many InferenceServices at once on simulated nodes: time to converge, memory, API requests, silence afterwards.

`make bench-operator`. API server, controllers, scheduler and operator are real; kwok pretends to run the pods. After
the fleet has converged the operator must write nothing – also when it is killed and started again.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml
from octavo_localcluster import Cluster, ClusterOptions

from benchmarks.common import Row, write_result
from benchmarks.operator_fleet import Fleet, measure_fleet
from benchmarks.operator_process import (
    Audit,
    OperatorProcess,
    install_rights,
    run_program,
    simulated_nodes,
    user_of,
    wait_until,
)

FLEET = "fleet"
SETTLE_SECONDS = 2.0
"""The fleet counts as converged from the operator's last write on; that nothing followed is seen after this time."""
CONVERGE_LIMIT_SECONDS = 300.0
MEMORY_GOAL_MIB = 256.0
"""The chart's memory request."""


@dataclass(frozen=True)
class Figures:
    """What one run gave."""

    services: int
    converge_seconds: float
    create_seconds: float
    """Of `kubectl create`, which is part of it."""
    cpu_seconds: float
    peak_mib: float
    requests: int
    writes: int
    by_kind: dict[str, int]
    quiet_seconds: float
    writes_when_quiet: int
    restart_seconds: float
    writes_after_restart: int


def fleet(count: int) -> list[dict[str, Any]]:
    """Services of one replica each, on a CPU and on a GPU in turns."""
    return [
        {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": f"model-{number:03}", "namespace": FLEET},
            "spec": {
                "model": {"uri": f"file:///models/model-{number:03}"},
                "placement": {"cpu": "Required"} if number % 2 else {"accelerators": [{"vendor": "NVIDIA"}]},
            },
        }
        for number in range(count)
    ]


def ready_count(cluster: Cluster) -> int:
    """Services whose Ready condition is true for their present generation."""
    found = json.loads(run_program(cluster, "kubectl", "get", "ois", "-n", FLEET, "-o", "json"))["items"]
    return sum(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and condition["observedGeneration"] == item["metadata"]["generation"]
        for item in found
        for condition in item.get("status", {}).get("conditions", ())
    )


def _stay_quiet(audit: Audit, seconds: float) -> int:
    """Writes within a time."""
    time.sleep(seconds)
    return len(audit.writes())


def measure(cluster: Cluster, folder: Path, services: int, quiet_seconds: float, flags: Sequence[str] = ()) -> Figures:
    """Run once, with flags of octavo-operator. The cluster has kwok, an audit log and Octavo's rights."""
    run_program(cluster, "kubectl", "create", "namespace", FLEET)
    nodes = simulated_nodes(-(-services // 64) + 1) + simulated_nodes(-(-services // 16) + 1, gpus=8)
    run_program(cluster, "kubectl", "create", "-f", "-", stdin=yaml.safe_dump_all(nodes))
    everything = Audit(cluster, user_of())
    with OperatorProcess(cluster, folder, "--resync-seconds", str(quiet_seconds / 3), *flags) as operator:
        operator.wait_for("working")
        before = len(everything.requests())
        busy = operator.cpu_seconds()
        began = time.monotonic()
        run_program(cluster, "kubectl", "create", "-f", "-", stdin=yaml.safe_dump_all(fleet(services)))
        created = time.monotonic()
        wait_until(lambda: ready_count(cluster) == services, "all services are Ready", CONVERGE_LIMIT_SECONDS)
        converged = time.monotonic()
        written = 0
        while written != (now := len(everything.writes())):
            written, converged = now, time.monotonic()
            time.sleep(SETTLE_SECONDS)
        busy = operator.cpu_seconds() - busy
        requests = everything.requests()
        kinds = Counter(f"{item.verb} {item.resource}" for item in requests[before:])
        quiet = _stay_quiet(Audit(cluster, user_of()), quiet_seconds)
        peak = operator.peak_memory_mib()
        again = Audit(cluster, user_of())
        operator.end(signal.SIGKILL)
        killed = time.monotonic()
        operator.start().wait_for("working", 120)
        restart = time.monotonic() - killed
        after = _stay_quiet(again, quiet_seconds)
        peak = max(peak, operator.peak_memory_mib())
    return Figures(
        services,
        converged - began,
        created - began,
        busy,
        peak,
        len(requests) - before,
        written,
        dict(kinds.most_common()),
        quiet_seconds,
        quiet,
        restart,
        after,
    )


def rows(figures: Figures) -> list[Row]:
    """The result file's rows."""
    count, quiet = figures.services, figures.quiet_seconds
    per_service = figures.requests / count
    exempt = "renewals of the Lease and the start's access reviews, which store nothing, are not counted"
    kinds = ", ".join(f"{number} {kind}" for kind, number in figures.by_kind.items())
    return [
        Row(f"writes in {quiet:.0f} s of rest", "requests", figures.writes_when_quiet, "lower", 0, note=exempt),
        Row(f"writes in {quiet:.0f} s after kill −9 and restart", "requests", figures.writes_after_restart, "lower", 0),
        Row(
            f"{count} services converge", "s", round(figures.converge_seconds, 1), "lower",
            note=f"from kubectl create, which took {figures.create_seconds:.1f} s, to the operator's last write",
        ),
        Row("processor time of the operator until then", "s", round(figures.cpu_seconds, 1), "lower"),
        Row("peak memory of the operator", "MiB", round(figures.peak_mib, 1), "lower", MEMORY_GOAL_MIB,
            note="resident; goal: the chart's memory request"),
        Row("API requests per service", "requests", round(per_service, 2), "lower", note=kinds),
        Row("API writes per service", "requests", round(figures.writes / count, 2), "lower"),
        Row("from kill −9 to work again", "s", round(figures.restart_seconds, 1), "lower",
            note="the dead leader's Lease must run out first (15 s)"),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the operator with many InferenceServices.")
    parser.add_argument("--services", type=int, default=200, help="at once; 0 = none (default: %(default)s)")
    parser.add_argument("--quiet-seconds", type=float, default=60.0, help="of rest, twice (default: %(default)s)")
    parser.add_argument(
        "--fleet-services", type=int, default=1000, help="in the fleet; 0 = no fleet (default: %(default)s)"
    )
    parser.add_argument("--fleet-nodes", type=int, default=2000, help="GPU nodes of the fleet (default: %(default)s)")
    parser.add_argument("--no-result", action="store_true", help="print only; leave the result file as it is")
    flags = parser.parse_args(arguments)
    found: list[Row] = []
    if flags.services:
        with tempfile.TemporaryDirectory(prefix="octavo-scale-") as folder:
            options = ClusterOptions(folder=Path(folder) / "cluster", audit=True, simulated_nodes=1)
            with Cluster.start(options, report=print) as cluster:
                install_rights(cluster)
                found += rows(measure(cluster, Path(folder) / "operator", flags.services, flags.quiet_seconds))
    if flags.fleet_services:
        fleet = Fleet(flags.fleet_services, nodes=flags.fleet_nodes, quiet_seconds=flags.quiet_seconds)
        with tempfile.TemporaryDirectory(prefix="octavo-fleet-") as folder:
            found += measure_fleet(Path(folder), fleet)
    for row in found:
        print(f"{row.value:>10} {row.unit:<9} {row.name}" + (f"  ({row.note})" if row.note else ""))
    if not flags.no_result:
        print(write_result("operator-scale", found, command="make bench-operator"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
