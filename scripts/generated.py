"""Generated files: what they are made from, how they are written (`--write`) and how drift is shown.

A generator is a function that returns the wanted text by path. Nothing here asks git: a file is compared with what its
source says now, so that the check is the same in a checkout, an archive and a container.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from octavo_operator.api.schema import inference_service_crd, render_crds, tuning_profile_crd
from octavo_operator.status import reasons

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from benchmarks.common import read_results  # noqa: E402
from dashboards import generate as dashboards  # noqa: E402
from scripts import (  # noqa: E402
    catalogue,
    chart_readme,
    diagrams,
    flags_pages,
    http_page,
    metrics_page,
    operator_metrics_page,
    reference,
    scale_page,
    versions,
)

Generator = Callable[[], Mapping[Path, str]]
CHART_CRDS = ROOT / "charts" / "octavo" / "files" / "crds"
DIFF_LINES = 30


def crds() -> dict[Path, str]:
    """The CRDs, from the operator's resource models."""
    return {ROOT / "crds" / name: text for name, text in render_crds().items()}


def chart_crds() -> dict[Path, str]:
    """The chart carries its own copy of the CRDs, which its template wraps."""
    return {CHART_CRDS / name: text for name, text in render_crds().items() if name != "kustomization.yaml"}


def performance_page() -> dict[Path, str]:
    """The page of measured figures, from benchmarks/results."""
    return {ROOT / "docs" / "performance.md": report.render(read_results())}


def reference_page() -> dict[Path, str]:
    """The pages of all fields of the two resources."""
    folder = ROOT / "docs" / "reference"
    return {
        folder / "inference-service.md": reference.render(inference_service_crd()),
        folder / "tuning-profile.md": reference.render(tuning_profile_crd(), reference.PROFILE_HEAD),
    }


def reasons_page() -> dict[Path, str]:
    """The how-to of all reasons of conditions."""
    return {ROOT / "docs" / "how-to" / "why-is-it-not-ready.md": reasons.render()}


GENERATORS: tuple[Generator, ...] = (
    crds,
    chart_crds,
    performance_page,
    reference_page,
    http_page.generate,
    versions.generate,
    catalogue.generate,
    reasons_page,
    scale_page.generate,
    dashboards.generate,
    chart_readme.generate,
    operator_metrics_page.generate,
    metrics_page.generate,
    flags_pages.generate,
    diagrams.generate,
)


def differences(wanted: Mapping[Path, str]) -> list[Path]:
    """Paths whose text is not what it should be."""
    return [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def surplus(wanted: Mapping[Path, str]) -> list[Path]:
    """Copies in the chart that no longer have a source."""
    if not any(path.parent == CHART_CRDS for path in wanted):
        return []
    return [path for path in sorted(CHART_CRDS.glob("*.yaml")) if path not in wanted]


def show(path: Path, text: str) -> None:
    have = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    name = str(path.relative_to(ROOT))
    lines = list(difflib.unified_diff(have, text.splitlines(), f"{name} (here)", f"{name} (generated)", lineterm=""))
    print("\n".join(lines[:DIFF_LINES]))
    if len(lines) > DIFF_LINES:
        print(f"… {len(lines) - DIFF_LINES} more lines")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files instead of comparing them")
    write = parser.parse_args().write
    drifted, count = 0, 0
    for generator in GENERATORS:
        wanted = generator()
        count += len(wanted)
        stale = surplus(wanted)
        for path in (*differences(wanted), *stale):
            drifted += 1
            name = path.relative_to(ROOT)
            if write and path in stale:
                path.unlink()
                print(f"generate: removed {name}")
            elif write:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(wanted[path], encoding="utf-8")
                print(f"generate: wrote {name}")
            else:
                show(path, wanted.get(path, ""))
    if write:
        return 0
    if drifted:
        print(f"verify: {drifted} generated files are not what their sources say; 'make generate' rewrites them")
        return 1
    print(f"verify: {count} generated files are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
