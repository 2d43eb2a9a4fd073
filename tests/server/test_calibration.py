"""Choosing a block size from measurements, and the command that measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_server.calibration.choose import BlockResult, choose, explain, prefix_hit_share
from octavo_server.calibration.command import report
from octavo_server.config import BLOCK_SIZES_TOKENS
from octavo_server.contract import CALIBRATION_LIMIT_BYTES


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


@pytest.mark.parametrize("shape", ["", "1,2,3", "a,b,c,d", "0,4,2,64"])
def test_a_shape_that_is_none_is_refused_with_the_form(cli: Any, shape: str) -> None:
    done = cli("calibrate", "--shape", shape, "--device", "CPU")
    assert done.returncode == 2
    assert "--shape" in done.stderr


def test_a_shape_that_no_kernel_takes_is_a_failure_with_its_cause(cli: Any) -> None:
    done = cli("calibrate", "--shape", "2,5,2,64", "--device", "CPU", "--budget-seconds", "1")
    assert done.returncode == 2
    assert "no block size could be measured" in done.stderr
