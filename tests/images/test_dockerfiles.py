"""What the Dockerfiles say, wherever they are built."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = ("server_image/Dockerfile", "operator/Dockerfile")


def stages(path: str) -> list[str]:
    text = re.sub(r"\\\n", " ", (ROOT / path).read_text())
    return re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("path", FILES)
def test_the_last_stage_is_not_root_has_a_health_check_labels_and_no_build_tools(path: str) -> None:
    last = stages(path)[-1]
    assert re.search(r"^USER 65532:65532$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", last, re.MULTILINE)
    assert "org.opencontainers.image.licenses" in last
    assert not re.search(r"\b(pip|apt-get|gcc)\b", last)


@pytest.mark.parametrize("path", FILES)
def test_octavos_own_code_comes_after_what_changes_less(path: str) -> None:
    [build] = [stage for stage in stages(path) if "AS build" in stage]
    installs = [match.start() for match in re.finditer(r"pip install", build)]
    own = re.search(r"^COPY (kernels|operator) /src", build, re.MULTILINE)
    assert own is not None
    assert sum(at < own.start() for at in installs) >= len(installs) - 1


def test_every_variant_and_the_operator_have_a_target_with_all_arguments() -> None:
    variants = yaml.safe_load((ROOT / "server_image" / "variants.yaml").read_text())["variants"]
    targets = json.loads((ROOT / "server_image" / "docker-bake.json").read_text())["target"]
    assert len(targets) == len(variants) + 1
    declared = set(re.findall(r"^ARG ([A-Z]+)", (ROOT / "server_image" / "Dockerfile").read_text(), re.MULTILINE))
    for target in targets.values():
        assert set(target["args"]) <= declared
        assert (ROOT / target["dockerfile"]).is_file()


def test_the_packages_accept_the_torch_of_every_variant() -> None:
    """Else pip would replace it, and with it the CUDA version that the variant is chosen for."""
    variants = yaml.safe_load((ROOT / "server_image" / "variants.yaml").read_text())["variants"]
    for package in ("kernels", "server_image"):
        found = re.search(r'"torch>=([\d.]+)"', (ROOT / package / "pyproject.toml").read_text())
        assert found is not None
        least = tuple(map(int, found[1].split(".")))
        for variant in variants:
            assert tuple(map(int, variant["torch"].split(".")))[: len(least)] >= least, variant["name"]
