"""The tuner: a descent that keeps only what is faster, right results alone, a budget that holds, a file that serves."""

import subprocess
import sys
from importlib import metadata

import octavo_kernels
import pytest
import torch
from octavo_kernels import AttentionShape, PagedAttention, launch_table
from octavo_kernels.tune_measure import Reference
from octavo_kernels.tune_search import STEPS, combined, descend, neighbours

SHAPE = AttentionShape(4, 2, 64, 16, torch.float32)
FIRST = {"block_m": 16, "block_n": 64, "warps": 2, "stages": 3, "programs": 4, "least_blocks": 1, "ping_pong": 0}


def test_a_step_changes_one_number_to_a_neighbouring_value():
    for candidate in neighbours("attention.short", FIRST):
        (name,) = [name for name in FIRST if candidate[name] != FIRST[name]]
        values = STEPS["attention.short"][name]
        assert abs(values.index(candidate[name]) - values.index(FIRST[name])) == 1


def test_the_descent_finds_the_fastest_along_its_way_and_never_measures_twice():
    measured = []

    def measure(launch):
        measured.append(tuple(launch.items()))
        return 1.0 + abs(launch["programs"] - 8) + abs(launch["stages"] - 2)

    found = descend("attention.short", FIRST, measure, lambda: True)
    assert (found.launch["programs"], found.launch["stages"]) == (8, 2)
    assert found.complete
    assert (found.seconds, found.first_seconds) == (1.0, 6.0)
    assert len(set(measured)) == len(measured) == found.tried


def test_a_refused_launch_is_never_chosen_however_fast_its_neighbours_are():
    def measure(launch):
        return None if launch["programs"] != 4 else 1.0 / launch["stages"]

    found = descend("attention.short", FIRST, measure, lambda: True)
    assert found.launch == {**FIRST, "stages": 5}
    assert found.refused > 0


def test_a_gain_within_the_noise_keeps_the_default():
    found = descend("attention.short", FIRST, lambda launch: 1.0 if launch == FIRST else 0.99, lambda: True)
    assert found.launch == FIRST


def test_a_refused_default_is_an_error_that_names_the_kernel():
    with pytest.raises(ValueError, match=r"attention\.short: the safe default .* wrong result"):
        descend("attention.short", FIRST, lambda launch: None, lambda: True)


def test_without_time_the_default_alone_is_measured():
    found = descend("attention.short", FIRST, lambda launch: 1.0, lambda: False)
    assert (found.tried, found.complete, found.launch) == (1, False, FIRST)


def test_several_workloads_count_by_the_geometric_mean_of_their_ratios():
    assert combined([2.0, 1.0], [1.0, 2.0]) == pytest.approx(1.0)
    assert combined([0.5, 0.5], [1.0, 1.0]) == pytest.approx(0.5)


def test_a_wrong_output_or_nan_does_not_agree_with_the_reference():
    reference = Reference.of(SHAPE, torch.device("cpu"))
    attention = PagedAttention(SHAPE)
    assert reference.agrees(attention)
    run = attention.run

    def twice(q, kv, out, lse=None, *, scales=None):
        run(q, kv, out, lse)
        out.mul_(2)

    attention.run = twice
    assert not reference.agrees(attention)
    attention.run = lambda q, kv, out, lse=None, *, scales=None: None
    assert not reference.agrees(attention)


def test_tuning_in_host_memory_gives_a_table_that_attention_takes():
    lines = []
    table = octavo_kernels.tune(SHAPE, device="cpu", seconds=0.2, progress=lines.append)
    (row,) = table.rows
    assert (table.capability, row.kernel, row.shape["page_size"]) == ("cpu", "attention.cpu", 16)
    assert row.microseconds <= row.default_microseconds
    assert "default" in lines[0]
    assert lines[-1].startswith("attention.cpu 4:2 × 64, page 16:")
    assert PagedAttention(SHAPE, launch_table=table).launch_reason is None


@pytest.mark.parametrize("installed", [True, False])
def test_a_table_names_the_version_of_the_kernels_that_it_was_measured_with(monkeypatch, installed):
    of_others = metadata.version

    def version(name):
        if name != "octavo-kernels":
            return of_others(name)
        if installed:
            return "1.2.3"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    table = octavo_kernels.tune(SHAPE, device="cpu", seconds=0.01)
    # Code that was only put on the path has no metadata.
    assert table.versions["octavo-kernels"] == ("1.2.3" if installed else "unknown")


def test_tune_refuses_no_shapes_and_no_time():
    with pytest.raises(ValueError, match="shapes is empty"):
        octavo_kernels.tune([], device="cpu")
    with pytest.raises(ValueError, match="seconds is 0"):
        octavo_kernels.tune(SHAPE, device="cpu", seconds=0)


def run_command(*arguments):
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "octavo_kernels.tune", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_the_command_writes_a_file_with_a_row_for_each_page_size_and_tells_its_progress(tmp_path):
    out = tmp_path / "cpu.json"
    sizes = ("--query-heads", "4", "--kv-heads", "2", "--head-size", "64", "--dtype", "float32")
    done = run_command(*sizes, "--page-sizes", "16,64", "--device", "cpu", "--seconds", "0.2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    table = launch_table.load(out)
    assert [row.shape["page_size"] for row in table.rows] == [16, 64]
    assert "2 rows for cpu" in done.stdout
    assert done.stderr.count("× the default") == 2


def test_the_command_names_a_size_that_cannot_work_in_one_line(tmp_path):
    done = run_command(
        "--query-heads", "5", "--kv-heads", "2", "--head-size", "64", "--device", "cpu", "--out", str(tmp_path / "x")
    )
    assert done.returncode == 2
    assert done.stderr == "tune: query_heads is 5; it must be a multiple of kv_heads (2)\n"
