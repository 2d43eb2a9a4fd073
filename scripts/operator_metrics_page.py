"""docs/reference/operator-metrics.md, from the operator's own registry."""

from __future__ import annotations

from pathlib import Path

from octavo_operator.metrics import REGISTRY
from octavo_operator.scaling import autoscaler

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "operator-metrics.md"
HEAD = """# Metrics of the operator

`GET /metrics` on port 8080 of the operator's pod. Series with `namespace` and `service` speak of one InferenceService
and exist for services that load has a say in, `octavo_service_condition` for all; a reason that is not one of the
[listed ones](../how-to/why-is-it-not-ready.md) is `Other` there. Generated from the operator's registry; the server's
metrics are in [Metrics of the server](metrics.md).

| name | type | labels | meaning |
|---|---|---|---|
"""
assert autoscaler.DESIRED is not None  # importing the module registers the metrics of scaling


def generate() -> dict[Path, str]:
    """Wanted text by path."""
    lines = []
    for family in sorted(REGISTRY.collect(), key=lambda item: item.name):
        collector = REGISTRY._names_to_collectors[family.name]
        labels = ", ".join(f"`{name}`" for name in getattr(collector, "_labelnames", ()))
        name = family.name + "_total" if family.type == "counter" else family.name
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return {PAGE: HEAD + "\n".join(lines) + "\n"}
