"""What comes from server_image/variants.yaml: serverImages in the chart's values and the arguments of image builds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from scripts.versions import version

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = ROOT / "server_image" / "variants.yaml"
VALUES = ROOT / "charts" / "octavo" / "values.yaml"
BAKE = ROOT / "server_image" / "docker-bake.json"
_BLOCK = re.compile(r"^serverImages:\n(?:[ #].*\n)+", re.MULTILINE)


def read_variants(path: Path = VARIANTS) -> tuple[str, list[dict[str, Any]]]:
    """(repository, variants) as they stand in the file."""
    content = yaml.safe_load(path.read_text())
    return str(content["repository"]), list(content["variants"])


def catalogue() -> list[dict[str, Any]]:
    """The images as the operator reads them."""
    repository, variants = read_variants()
    kept = ("cuda", "computeCapabilities", "ptx", "torch", "triton")
    return [
        {"name": item["name"], "image": f"{repository}:{version()}-{item['name']}"} | {key: item[key] for key in kept}
        for item in variants
    ]


def values_text() -> str:
    """The chart's values with serverImages from the variants; all else stays as written."""
    lines = ["serverImages:", "  # Generated from server_image/variants.yaml by `make generate`."]
    for item in catalogue():
        first = "- "
        for key, value in item.items():
            # Versions are quoted, or YAML reads 12.0 as a number.
            lines.append(f"  {first}{key}: {value if key in ('name', 'image') else json.dumps(value)}")
            first = "  "
    text, count = _BLOCK.subn("\n".join(lines) + "\n", VALUES.read_text())
    assert count == 1, f"{VALUES}: serverImages is not there once"
    return text


def bake_text() -> str:
    """One target per variant, and the operator, for `docker buildx bake -f server_image/docker-bake.json`."""
    repository, variants = read_variants()
    targets = {
        item["name"].replace(".", "-"): {
            "context": ".",
            "dockerfile": "server_image/Dockerfile",
            "args": {
                "TORCH": item["torch"],
                "TRITON": item["triton"],
                "WHEELS": item["wheels"],
                "CUDA": item["cuda"],
                "VERSION": version(),
            },
            "tags": [f"{repository}:{version()}-{item['name']}"],
        }
        for item in variants
    }
    targets["operator"] = {
        "context": ".",
        "dockerfile": "operator/Dockerfile",
        "args": {"VERSION": version()},
        "tags": [f"{repository.rpartition('/')[0]}/octavo-operator:{version()}"],
    }
    return json.dumps({"group": {"default": {"targets": list(targets)}}, "target": targets}, indent=2) + "\n"


def generate() -> dict[Path, str]:
    """Wanted text by path."""
    return {VALUES: values_text(), BAKE: bake_text()}
