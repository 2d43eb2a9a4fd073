"""docs/scale.md: how the operator bears many services and nodes, with the measured figures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common import read_results
from benchmarks.report import topic

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scale.md"
_TEXT = """\
# How many services and nodes

<!-- The figures are generated from benchmarks/results/operator-scale.json by `make generate`. -->

One operator process serves thousands of services. What keeps it small:

- **It asks for nothing.** Watches bring every change into memory; a plan is made from memory alone and takes about a
  millisecond, also with thousands of nodes: nodes that differ in nothing a plan asks for are taken together.
- **It writes only what differs.** At rest it writes nothing: no status, no Event, no renewal but its Lease.
- **A change touches whom it concerns.** A node that is relabelled is matched with the placements in use – of which
  thousands of services have few – and only services that the node could serve, before or after, are planned anew.
  Heartbeats are told apart and concern nobody.
- **Waves are answered once.** Changes of nodes are gathered for a second or two; the edit of a user comes first.
- **Services do not wait for each other.** One that fails is tried again later and later, up to once a minute.

## What to give it
Memory grows with the objects that it watches: services and what they own, pods, claims and nodes of the watched
namespaces. The chart's request of 256 MiB is enough for some hundred services; for a thousand services on two thousand
nodes set `resources.limits.memory` to 768Mi.

The API server's own limits are met first: each service is about eight objects and its pods.

## Measured
`make bench-operator` runs a real API server, controllers, scheduler and operator; kwok pretends to run the pods. Leases
of simulated nodes last ten minutes there, since two thousand nodes would renew two hundred a second otherwise.

"""


def generate() -> dict[Path, str]:
    """Wanted text by path."""
    found = [topic(result) for result in read_results() if result["topic"] == "operator-scale"]
    return {PAGE: _TEXT + ("\n".join(found) if found else "Nothing has been measured yet.\n")}
