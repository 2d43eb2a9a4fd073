"""`octavo-operator explain nodes`: each node with facts, image, mode, why, and the smallest upgrade that would help."""

from __future__ import annotations

from pathlib import Path

import yaml
from octavo_operator.plan.inventory import view
from octavo_operator.plan.node_report import findings, report

from tests.operator.test_plan_image_choice import BUILT

ROOT = Path(__file__).resolve().parents[2]


def nodes():
    """The node file with which the local cluster shows accelerators of several kinds."""
    content = yaml.safe_load((ROOT / "localcluster" / "nodes" / "mixed-gpu.yaml").read_text())
    for item in content["nodes"]:
        yield view(
            {
                "metadata": {"name": item["name"], "labels": item.get("labels") or {}},
                "spec": {"taints": item.get("taints") or []},
                "status": {"allocatable": {key: str(value) for key, value in (item.get("capacity") or {}).items()}},
            }
        )


def test_every_node_of_the_mixed_file_is_told_with_its_image_or_the_reason_for_none():
    found = {item.node: item for item in findings(nodes(), BUILT)}
    modes = {name: item.choice.fit if item.choice else None for name, item in found.items()}
    assert modes == {
        "h100-1": "Native",
        "h100-2": "Native",
        "l4-1": "Native",
        "a100-mig-1": "MinorVersion",
        "odd-1": None,
        "mig-invalid-1": None,
        "unlabelled-1": None,
        "cpu-1": "CPU",
    }
    assert found["h100-1"].choice.image.name == "cuda13.0"
    assert found["l4-1"].choice.image.name == "cuda12.8"
    assert found["a100-mig-1"].choice.fallback


def test_the_report_names_facts_mode_reason_and_upgrade():
    text = report(findings(nodes(), BUILT))
    for words in (
        "h100-1: NVIDIA-H100-80GB-HBM3",
        "compute capability 9.0, 81559 MiB, driver 580.65.06, CUDA up to 13.0",
        "image:   octavo/octavo-server:0.1.0-cuda13.0",
        "mode:    MinorVersion",
        "upgrade: upgrade to driver 560.28.03 or newer (CUDA 12.6)",
        "invalid MIG configuration",
        "install GPU feature discovery",
        "8 kinds on nodes: 0 without an image, 1 with slower kernels, 3 unread",
    ):
        assert words in text, text
