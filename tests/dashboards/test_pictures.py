"""The boards' pictures: of every board, from its own queries, and small enough for a repository."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dashboards.boards import BOARDS
from dashboards.draw import draw_board, formatted, legend

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "images" / "dashboards"


class Recorded:
    """In the place of a scene: remembers what it was asked, and answers with two lines, one of them with a gap."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, path: str, **parameters: Any) -> Any:
        self.asked.append(parameters["query"])
        values = [[at, str(at % 7 / 7)] for at in range(0, 100, 2)]
        labels = {"namespace": "team", "service": "chat"}
        return {"result": [{"metric": labels, "values": values}, {"metric": labels, "values": [[50, "NaN"]]}]}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_board_is_drawn_from_every_one_of_its_queries(board, tmp_path):
    scene = Recorded()
    document = json.loads((ROOT / "dashboards" / "grafana" / f"{board.uid}.json").read_text())
    draw_board(scene, document, 0, 100, tmp_path / "board.png")  # type: ignore[arg-type]
    wanted = [query for _, panels in board.rows for panel in panels for query, _ in panel.queries]
    assert len(scene.asked) == len(wanted)
    assert not any("$" in query for query in scene.asked), "variables are filled in"
    with Image.open(tmp_path / "board.png") as picture:
        assert picture.width == 1200
        assert picture.height > 400
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 4, "something is drawn"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_board_has_a_small_picture_in_the_docs(board):
    picture = PICTURES / f"{board.uid}.png"
    assert picture.stat().st_size < 100_000
    assert f"(../images/dashboards/{board.uid}.png)" in (ROOT / "docs" / "how-to" / "monitor.md").read_text()


@pytest.mark.parametrize(("unit", "value", "text"), [
    ("percentunit", 0.125, "12.5%"), ("s", 0.025, "25 ms"), ("s", 2.5, "2.5 s"), ("s", 0, "0 s"),
    ("short", 1720, "1.72 K"), ("short", 2.5e6, "2.5 M"), ("reqps", 0.5, "0.5 req/s"), ("short", math.nan, "–"),
])  # fmt: skip
def test_numbers_are_written_as_their_unit_wants_it(unit, value, text):
    assert formatted(unit)(value, None) == text


def test_a_legend_takes_its_series_labels():
    assert legend("p50 {{namespace}}/{{service}}", {"namespace": "a", "service": "b"}) == "p50 a/b"
