"""Choosing a block size from measurements, and the command that measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo_kernels.launch_table import LaunchRow, LaunchTable, load, serves
from octavo_kernels.shape import AttentionShape
from octavo_server.calibration import hits, timing
from octavo_server.calibration import measure as measuring
from octavo_server.calibration.choose import BlockResult, choose, explain, prefix_hit_share
from octavo_server.calibration.command import parse_shape, report
from octavo_server.config import BLOCK_SIZES_TOKENS
from octavo_server.contract import CALIBRATION_LIMIT_BYTES
from octavo_server.engine.blocks import BlockPool
from octavo_server.termination import Refused


def results(**times: float) -> list[BlockResult]:
    return [BlockResult(int(name[1:]), value, 10.0) for name, value in times.items()]


def test_a_difference_below_two_percent_is_a_tie_and_goes_to_the_smaller_block() -> None:
    assert choose(results(b16=101.0, b32=100.0)).block_size_tokens == 16
    assert choose(results(b16=100.0, b8=101.0)).block_size_tokens == 8


def test_a_faster_block_wins_when_it_gains_more_than_it_loses_in_hits() -> None:
    assert choose(results(b16=110.0, b32=100.0)).block_size_tokens == 32
    # 256 tokens lose most short prefixes: 10 % of decode speed do not make up for that.
    assert choose(results(b16=110.0, b256=100.0)).block_size_tokens == 16


def test_hits_fall_as_blocks_grow_and_a_block_of_one_loses_none() -> None:
    shares = [prefix_hit_share(size) for size in (1, *BLOCK_SIZES_TOKENS)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert prefix_hit_share(16) > 0.9 > 0.6 > prefix_hit_share(256)


def test_the_reason_names_both_speeds_and_the_hits() -> None:
    found = results(b16=106.4, b32=100.0)
    assert explain(found[1], found).startswith("decode 1.00 vs 0.94 (16), prefix hits −")
    assert explain(found[0], found).startswith("decode 0.94 vs 1.00 (32), prefix hits +")
    assert explain(found[0], found[:1]) == "the only block size that was measured"


def test_the_reason_tells_what_launches_gain_or_that_none_is_faster() -> None:
    row = LaunchRow("attention.cpu", {"page_size": 32}, {"group_bytes": 98304})
    tuned = BlockResult(32, 100.0, 10.0, (row,), True, 112.0)
    assert explain(tuned, [*results(b16=106.4), tuned]).endswith("; launches 1.12 × the default")
    searched = BlockResult(32, 100.0, 10.0, (), True)
    assert explain(searched, [*results(b16=106.4), searched]).endswith("; no launch is faster than the default")


def test_hits_are_those_of_the_servers_own_prefix_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [prefix_hit_share(size) for size in BLOCK_SIZES_TOKENS]
    # What whole blocks cover of each length is what the cache must find: a second way to the same figures.
    lengths = hits.prefix_lengths()
    assert found == [
        pytest.approx(sum(n // size * size / n for n in lengths) / len(lengths)) for size in BLOCK_SIZES_TOKENS
    ]
    monkeypatch.setattr(hits, "BlockPool", lambda blocks: BlockPool(blocks, prefix_caching=False))
    hits.prefix_hit_share.cache_clear()
    assert prefix_hit_share(16) == 0.0
    hits.prefix_hit_share.cache_clear()


def test_what_noise_explains_leaves_the_usual_block_size_and_is_told() -> None:
    noisy = [BlockResult(16, 130.0, 1.0, noise=0.6), BlockResult(32, 100.0, 1.0, noise=0.5)]
    assert choose(noisy) is noisy[0]
    assert explain(noisy[0], noisy).endswith("; measurements vary by 60 %")
    calm = [BlockResult(16, 130.0, 1.0, noise=0.01), BlockResult(32, 100.0, 1.0, noise=0.01)]
    assert choose(calm) is calm[1]
    assert "vary" not in explain(calm[1], calm)


def test_one_slow_moment_changes_no_result(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(10_000))

    def measured(*_: Any) -> float:
        clock.now += 0.01
        # Some seconds of another program's work, at any time.
        return 20.0 if 40 <= next(turns) < 75 else 1.0

    monkeypatch.setattr(timing.Bench, "time", measured)
    shape = timing.Shape(2, 4, 2, 64)
    found = measuring.measure(shape, torch.float32, torch.float32, torch.device("cpu"), 2.0, clock)
    assert len({round(item.decode_microseconds) for item in found}) == 1


@given(st.lists(st.floats(1.0, 1e7), min_size=1, max_size=6), st.integers(0, 2))
def test_a_result_with_launches_of_a_gpu_fits_and_keeps_its_table(times: list[float], kernels: int) -> None:
    numbers = ("block_m", "block_n", "warps", "stages", "programs", "least_blocks", "ping_pong")
    names = ("attention.short.hopper", "attention.long.hopper")[:kernels]
    fields = {"group": 4, "kv_heads": 8, "head_size": 128, "page_size": 16}
    shape = {**fields, "dtype": "bfloat16", "kv_dtype": "float8_e4m3fn"}
    rows = tuple(LaunchRow(name, shape, dict.fromkeys(numbers, 128), 12345.6, 12345.6) for name in names)
    found = report(
        [
            BlockResult(size, time, time, rows, True, time)
            for size, time in zip(BLOCK_SIZES_TOKENS, times, strict=False)
        ],
        seconds=9999,
    )
    assert len(json.dumps(found).encode()) < CALIBRATION_LIMIT_BYTES
    assert ("attention.long.hopper" in found["launchTable"]) == (kernels == 2)


@pytest.fixture
def clock() -> Any:
    """Time that passes by what is measured, not by this machine."""

    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    return Clock()


def sweep(clock: Any, monkeypatch: pytest.MonkeyPatch, budget: float, tuned_share: float = 0.8) -> tuple[Any, Any]:
    """A whole sweep in which a measurement takes 10 ms and a search all that it is given; (results, what was done)."""
    done: list[str] = []

    def measured(_bench: Any, size: int, point: timing.Point, table: Any = None) -> float:
        clock.now += 0.01
        done.append(f"{point} {size}{' tuned' if table else ''}")
        return (tuned_share if table else 1.0) * (2.0 if size == 8 else 1.0)

    def search(shapes: Any, *, seconds: float, **_: Any) -> LaunchTable:
        clock.now += seconds
        size = shapes[0].page_size
        done.append(f"search {size}")
        return LaunchTable("cpu", "cpu", (LaunchRow("attention.cpu", {"page_size": size}, {"group_bytes": size}),))

    monkeypatch.setattr(timing.Bench, "time", measured)
    monkeypatch.setattr(measuring, "tune", search)
    shape = timing.Shape(2, 4, 2, 64)
    return measuring.measure(shape, torch.float32, torch.float32, torch.device("cpu"), budget, clock), done


def test_a_sweep_keeps_its_budget_and_searches_the_most_promising_block_sizes_first(
    clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, done = sweep(clock, monkeypatch, budget=12.0)
    assert clock.now <= 12.0 + 0.2
    searched = [word for word in done if word.startswith("search")]
    assert searched[0] == "search 16", "8 is twice as slow"
    assert 0 < len(searched) < len(BLOCK_SIZES_TOKENS), "there is no time for all"
    chosen = choose(found)
    assert chosen.block_size_tokens == 16
    assert chosen.launches[0].launch == {"group_bytes": 16}
    assert chosen.gain == pytest.approx(1.25)


def test_a_small_budget_measures_every_block_size_and_leaves_the_launches_alone(
    clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, done = sweep(clock, monkeypatch, budget=1.0)
    assert [item.block_size_tokens for item in found] == list(BLOCK_SIZES_TOKENS)
    assert not any(item.searched for item in found)
    assert not [word for word in done if "search" in word]
    # Sizes take turns at each point, so that a slow moment of the machine hits all of them.
    points = [word.rpartition(" ")[0] for word in done[5 : 5 + 12]]
    assert points == ["decode 1×512"] * 6 + ["decode 1×4096"] * 6
    assert [word.rpartition(" ")[2] for word in done[5:11]] == [str(size) for size in BLOCK_SIZES_TOKENS]


def test_launches_that_gain_nothing_are_not_handed_on(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = sweep(clock, monkeypatch, budget=100.0, tuned_share=0.999)
    assert all(item.searched and not item.launches for item in found)


@given(st.lists(st.floats(1.0, 1e7), min_size=1, max_size=6))
def test_the_result_fits_into_a_termination_message_whatever_was_measured(times: list[float]) -> None:
    found = report(
        [BlockResult(size, time, time) for size, time in zip(BLOCK_SIZES_TOKENS, times, strict=False)], seconds=9999
    )
    assert len(json.dumps(found).encode()) < CALIBRATION_LIMIT_BYTES
    assert found["blockSize"] in BLOCK_SIZES_TOKENS[: len(times)]


def test_the_command_measures_and_reports_within_its_budget(cli: Any, tmp_path: Path) -> None:
    message = tmp_path / "termination"
    words = ("calibrate", "--shape", "2,4,2,64", "--device", "CPU", "--cpu-threads", "1", "--budget-seconds", "1")
    done = cli(*words, OCTAVO_TERMINATION_LOG=str(message))
    assert done.returncode == 0, done.stderr
    found = json.loads(message.read_text())
    assert found == json.loads(done.stdout)
    assert found["ok"] is True
    assert [item["blockSize"] for item in found["results"]] == list(BLOCK_SIZES_TOKENS), "a round is always whole"
    assert all(item["decodeMicroseconds"] > 0 for item in found["results"])


def test_the_command_searches_launches_and_serve_can_read_what_it_found(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("calibrate", "--shape", "2,4,2,64", "--device", "CPU", "--cpu-threads", "1", "--budget-seconds", "8")
    done = cli(*words)
    assert done.returncode == 0, done.stderr
    # Every table that was found is in the log, the chosen one in the result where it is faster than the default.
    found = json.loads(done.stdout)
    logged = [line.partition(": {")[2] for line in done.stderr.splitlines() if "launch table for block size" in line]
    assert logged, done.stderr
    for number, text in enumerate([*("{" + line for line in logged), *filter(None, [found["launchTable"]])]):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        table = load(path)
        size = int(table.rows[0].shape["page_size"])
        assert serves(table, AttentionShape(4, 2, 64, size, torch.float32, torch.float32))
    assert ("launches" in found["message"]) == bool(found["launchTable"])


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("", "it holds 0 numbers in the place of 4"),
        ("1,2,3", "it holds 3 numbers in the place of 4"),
        ("a,b,c,d", "layers is 'a', and must be a whole number from 1 to 1000"),
        ("30,9,3,", "headSize is '', and must be a whole number from 16 to 256"),
        ("0,4,2,64", "layers is '0', and must be a whole number from 1 to 1000"),
        ("2,4,2,512", "headSize is '512', and must be a whole number from 16 to 256"),
        ("2,4,2,60", "headSize is 60, and must be a multiple of 8"),
        ("2,5,2,64", "queryHeads is 5, and must be a multiple of kvHeads, 2"),
        ("2,-4,2,64", "queryHeads is '-4', and must be"),
        ("²,4,2,64", "layers is '²', and must be"),
        ("9" * 5000 + ",4,2,64", "layers is '99999999999999999999', and must be"),
    ],
)
def test_a_shape_that_no_kernel_takes_names_the_number_its_limit_and_the_form(shape: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_shape(shape)
    assert said in refused.value.message
    assert refused.value.message.startswith("--shape ")
    assert refused.value.message.endswith("write layers,queryHeads,kvHeads,headSize, as in 30,9,3,64")


def test_the_command_ends_with_2_and_one_line_where_its_shape_is_none(cli: Any) -> None:
    done = cli("calibrate", "--shape", "0,4,2,64", "--device", "CPU")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("octavo-server: --shape '0,4,2,64': layers is '0'")
    assert "Traceback" not in done.stderr


def test_spaces_after_commas_are_no_fault() -> None:
    assert parse_shape("30, 9, 3, 64") == (30, 9, 3, 64)
