"""Launch configurations come from tables: which row serves, what a wrong file says, what an unknown GPU gets."""

import json
from dataclasses import replace

import pytest
import torch
from octavo_kernels import AttentionShape, PagedAttention, launch_table
from octavo_kernels.launch_table import LaunchRow, LaunchTable
from octavo_kernels.triton_launch import choose_launch, default_launch

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)
ROW = LaunchRow("attention.short.hopper", {"group": 4, "head_size": 128}, {"stages": 4, "programs": 1}, 20.5, 22.0)
TABLE = LaunchTable("NVIDIA H200", "9.0", (ROW,), {"triton": "3.6.0"}, "a note")


def test_a_table_comes_back_from_its_file_as_it_was(tmp_path):
    launch_table.save(TABLE, tmp_path / "h200.json")
    assert launch_table.load(tmp_path / "h200.json") == TABLE


@pytest.mark.parametrize("table", [TABLE, LaunchTable("cpu", "cpu")])
def test_a_compact_table_is_one_line_and_reads_the_same(tmp_path, table):
    text = launch_table.compact(table)
    (tmp_path / "table.json").write_text(text)
    assert launch_table.load(tmp_path / "table.json") == table
    assert "\n" not in text


def test_a_table_tells_whether_it_has_a_launch_of_attention_for_a_shape():
    assert launch_table.serves(TABLE, SHAPE)
    assert not launch_table.serves(TABLE, replace(SHAPE, head_size=64))
    assert not launch_table.serves(LaunchTable(rows=(replace(ROW, kernel="skinny", shape={}),)), SHAPE)


def test_the_row_that_names_most_of_a_shape_serves_it():
    other = replace(ROW, shape={"group": 4, "head_size": 128, "page_size": 64}, launch={"stages": 2})
    table = TABLE.merged([other])
    assert choose_launch(SHAPE, decode=True, hopper=True, table=table).stages == 4
    assert choose_launch(replace(SHAPE, page_size=64), decode=True, hopper=True, table=table).stages == 2
    safe = default_launch(SHAPE, decode=False, hopper=True)
    assert choose_launch(SHAPE, decode=False, hopper=True, table=table) == safe
    # What a row leaves out stays as it is without a table.
    assert choose_launch(SHAPE, decode=True, hopper=True, table=table).block_n == safe.block_n // 2


def test_merged_rows_replace_those_of_the_same_kernel_and_shape():
    faster = replace(ROW, launch={"stages": 3})
    assert TABLE.merged([faster]).rows == (faster,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 0}, "has format 0; this version reads format 1"),
        ({"launches": {}}, "launches must be a list of rows"),
        ({"launches": [3]}, r"launches\[0\] is int; it must be an object"),
        ({"launches": [{"kernel": "x"}]}, r"launches\[0\] must have kernel"),
        ({"launches": [{"kernel": "x", "shape": {}, "launch": {"warps": -1}}]}, "launch.warps is -1"),
        ({"launches": [{"kernel": "x", "shape": {"group": None}, "launch": {}}]}, "shape.group is None"),
        ({"launches": [{"kernel": "x", "shape": {}, "launch": {}, "microseconds": "1"}]}, "must be numbers"),
    ],
)
def test_a_wrong_file_names_itself_and_the_field(tmp_path, change, message):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"format": 1, "launches": []} | change))
    with pytest.raises(ValueError, match=message) as told:
        launch_table.load(path)
    assert str(path) in str(told.value)


@pytest.mark.parametrize("text", ["launches: none", "[" * 100_000])
def test_a_file_that_is_no_json_says_so(tmp_path, text):
    (tmp_path / "text").write_text(text)
    with pytest.raises(ValueError, match="is not JSON"):
        launch_table.load(tmp_path / "text")


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"block_m": 2}, "block_m 2; a tile must hold the 4 query heads"),
        ({"block_n": 48}, "block_n 48; it must be a power of two"),
        ({"stages": 0}, "stages 0; it must be at least 1"),
        ({"speed": 9}, "has speed; a launch has block_m, block_n"),
    ],
)
def test_a_launch_that_no_kernel_takes_is_refused(launch, message):
    table = LaunchTable(capability="8.0", rows=(LaunchRow("attention.short", {}, launch),))
    with pytest.raises(ValueError, match=message):
        choose_launch(SHAPE, decode=True, table=table)


def test_a_gpu_without_a_table_gets_safe_defaults_and_says_so():
    table = launch_table.shipped("7.7", "NVIDIA New")
    assert not table.rows
    assert table.reason.startswith("no launch table for NVIDIA New (compute capability 7.7) is shipped: safe defaults")


def test_another_gpus_table_serves_nothing_and_says_so():
    shape = AttentionShape(4, 2, 64, 16, torch.float32)
    attention = PagedAttention(shape, launch_table=TABLE)
    assert attention.launch_reason.startswith("the launch table was measured on NVIDIA H200 (9.0); cpu is cpu")


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({}, "attention.cpu has nothing; a launch has group_bytes"),
        ({"num_warps": 4}, "attention.cpu has num_warps; a launch has group_bytes"),
        ({"group_bytes": 0}, "group_bytes 0; it must be 1 to"),
        ({"group_bytes": 10**15}, "group_bytes 1000000000000000; it must be 1 to"),
    ],
)
def test_a_launch_for_host_memory_that_means_nothing_is_refused_by_name(launch, message):
    table = LaunchTable("cpu", "cpu", (LaunchRow("attention.cpu", {}, launch),))
    with pytest.raises(ValueError, match=message):
        PagedAttention(AttentionShape(4, 2, 64, 16, torch.float32), launch_table=table)


def test_a_table_for_host_memory_sets_how_much_one_call_gathers():
    shape = AttentionShape(4, 2, 64, 16, torch.float32)
    row = LaunchRow("attention.cpu", {"head_size": 64}, {"group_bytes": 1})
    table = LaunchTable("cpu", "cpu", (row,))
    attention = PagedAttention(shape, launch_table=table)
    assert attention.launch_reason is None
    index = (torch.tensor([0, 1, 2]).int(), torch.tensor([3, 3]).int(), torch.tensor([[1], [2]]).int())
    q, kv = torch.randn(2, 4, 64), torch.randn(shape.pool_shape(3))
    outs, calls = [], []
    for chosen in (attention, PagedAttention(shape)):
        chosen.plan(*index)
        outs.append(torch.empty_like(q))
        chosen.run(q, kv, outs[-1])
        calls.append(len(chosen._backend._gathers))
    assert calls == [2, 1]
    torch.testing.assert_close(outs[0], outs[1])


def test_every_shipped_table_can_be_read_and_launched():
    tables = [launch_table.load(path) for path in sorted(launch_table.SHIPPED.glob("*.json"))]
    assert tables
    for table in tables:
        assert table.rows
        for row in table.rows:
            shape = AttentionShape(
                int(row.shape.get("group", 4)) * 2, 2, int(row.shape.get("head_size", 128)), 16, torch.bfloat16
            )
            decode, hopper = ".short" in row.kernel, row.kernel.endswith(".hopper")
            if row.kernel.startswith("attention."):
                choose_launch(shape, decode=decode, hopper=hopper, table=LaunchTable(rows=(row,)))
