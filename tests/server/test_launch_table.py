"""--launch-table: what serves with it, and what is said of one that can't be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo_kernels import AttentionShape
from octavo_kernels.launch_table import LaunchRow, LaunchTable, save
from octavo_server.engine.launches import Launches, launches_for, read_launches, refuses_launches
from octavo_server.engine.sizes import Refusal

from tests.server.conftest import start_server

CPU = torch.device("cpu")
SHAPE = AttentionShape(9, 3, 64, 16, torch.float32, torch.float32)
ROW = LaunchRow("attention.cpu", {"page_size": 16, "head_size": 64}, {"group_bytes": 98304})
TABLE = LaunchTable("cpu", "cpu", (ROW,))


def test_a_table_with_this_shape_is_handed_to_the_kernels() -> None:
    found = launches_for(TABLE, SHAPE, CPU)
    assert found.source == "LaunchTable"
    assert found.table is not None
    assert found.table.find("attention.cpu", {"page_size": 16, "head_size": 64}) == {"group_bytes": 98304}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (LaunchTable("NVIDIA H200", "9.0", (ROW,)), "measured on NVIDIA H200 (9.0)"),
        (LaunchTable("cpu", "cpu", (LaunchRow("attention.cpu", {"page_size": 64}, {}),)), "none of the 1 rows"),
        (LaunchTable("cpu", "cpu"), "none of the 0 rows"),
        (None, "safe defaults"),
    ],
)
def test_what_the_table_does_not_hold_is_served_with_safe_defaults_and_said(
    table: LaunchTable | None, said: str
) -> None:
    found = launches_for(table, SHAPE, CPU)
    assert (found.source, found.table) == ("SafeDefaults", None)
    assert said in found.message


def test_a_launch_that_no_kernel_takes_is_refused_with_the_way_out() -> None:
    wrong = pytest.raises(Refusal, match="block_m 3; it must be a power of two; give a file")
    with wrong, refuses_launches(Launches(TABLE, "LaunchTable", "")):
        raise ValueError("attention.short has block_m 3; it must be a power of two")
    with pytest.raises(ValueError, match="another fault"), refuses_launches(Launches(None, "Shipped", "")):
        raise ValueError("another fault")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read: No such file"),
        ("{", "is not JSON"),
        ('{"format": 2}', "has format 2"),
        (json.dumps({"format": 1, "launches": [{"kernel": "a", "shape": {}, "launch": {"warps": -1}}]}), "warps is -1"),
    ],
)
def test_a_file_that_is_none_names_itself_the_field_and_the_way_out(
    tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Refusal, match="leave the flag out") as refused:
        read_launches(str(path))
    assert refused.value.reason == "LaunchTableUnreadable"
    assert str(path) in refused.value.message
    assert said in refused.value.message


def test_a_server_ends_with_2_before_it_loads_weights_when_its_table_is_wrong(
    cli: Any, model_path: Path, tmp_path: Path
) -> None:
    wrong, message = tmp_path / "wrong.json", tmp_path / "told"
    wrong.write_text("no table")
    words = ("serve", "--model", str(model_path), "--host", "127.0.0.1", "--port", "18399", "--device", "CPU")
    done = cli(*words, OCTAVO_LAUNCH_TABLE=str(wrong), OCTAVO_TERMINATION_LOG=str(message))
    assert done.returncode == 2
    assert json.loads(message.read_text())["reason"] == "LaunchTableUnreadable"
    assert "weights" not in done.stderr


def test_a_server_says_in_its_log_and_its_metrics_that_measured_launches_serve(
    model_path: Path, tmp_path: Path
) -> None:
    save(TABLE, tmp_path / "table.json")
    with start_server(model_path, tmp_path, "--launch-table", str(tmp_path / "table.json")) as running:
        assert running.metric('octavo_launch_info{source="LaunchTable"}') == 1
        assert "launch configurations: of --launch-table, measured on cpu" in running.log.read_text()
