"""A drawing of a run needs matplotlib alone, and says so where it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.scaling.simulator.compare import compare
from octavo_operator.scaling.simulator.fleet_run import Scene
from octavo_operator.scaling.simulator.loads import shapes
from octavo_operator.scaling.simulator.plot import draw
from octavo_operator.scaling.simulator.report import SLO
from octavo_operator.scaling.simulator.scalers import Grid
from octavo_operator.settings import SettingsError


def test_a_run_is_drawn_as_a_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    found = compare(
        shapes(hours=0.05)["steps"](), Scene(), SLO(), PolicySettings(1, 9), Grid((), (), (16,), (), (), ())
    )
    draw([found, found], tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_another_format_is_refused_before_anything_is_drawn(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"\.png or \.svg"):
        draw([], tmp_path / "run.pdf")
