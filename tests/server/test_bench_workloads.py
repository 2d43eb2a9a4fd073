"""Workloads, arrivals and figures of `octavo-server bench`."""

from __future__ import annotations

import math
import statistics

import pytest
from octavo_server.bench.figures import Record, percentile, spread, summary, table
from octavo_server.bench.workloads import SHAREGPT_MEANS, WORKLOADS, Wanted, arrivals, longest, sessions


def test_lengths_as_in_sharegpt_have_the_published_means_and_a_long_tail() -> None:
    turns = [session[0] for session in sessions(Wanted("sharegpt", 6000))]
    for lengths, mean in zip(
        ([len(turn.added) for turn in turns], [turn.output_tokens for turn in turns]), SHAREGPT_MEANS, strict=True
    ):
        assert statistics.mean(lengths) == pytest.approx(mean, rel=0.05)
        assert min(lengths) >= 4
        assert max(lengths) <= 1024
        assert statistics.median(lengths) < 0.85 * mean, "no long tail"


def test_prompts_share_what_the_workload_says_and_nothing_else() -> None:
    prompts = [session[0].added for session in sessions(Wanted("shared-prefix", 20, input_tokens=50, prefix_tokens=30))]
    assert {len(prompt) for prompt in prompts} == {80}
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 1
    assert len({tuple(prompt[30:34]) for prompt in prompts}) == 20
    assert len({tuple(session[0].added[:4]) for session in sessions(Wanted("random", 20))}) == 20


def test_a_session_of_agents_has_turns_that_add_to_one_common_beginning() -> None:
    wanted = Wanted("agents", 3, input_tokens=10, output_tokens=4, prefix_tokens=40, turns=5)
    found = sessions(wanted)
    assert {tuple(map(len, (turn.added for turn in session))) for session in found} == {(50, 10, 10, 10, 10)}
    assert len({tuple(session[0].added[:40]) for session in found}) == 1
    assert longest(found) == 40 + 5 * (10 + 4)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_seed_repeats_a_workload_and_another_one_changes_it(workload: str) -> None:
    one, same, other = (sessions(Wanted(workload, 5, seed=seed)) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert all(10 <= token < 20_000 for session in one for turn in session for token in turn.added)


def test_lengths_are_spread_over_the_asked_range() -> None:
    turns = [session[0] for session in sessions(Wanted("random", 600, 100, 50, range_percent=40))]
    lengths = [len(turn.added) for turn in turns]
    assert 60 <= min(lengths) < 65
    assert 135 < max(lengths) <= 140
    assert {turn.output_tokens for turn in turns} == set(range(30, 71))


def test_arrivals_are_a_poisson_process_of_the_asked_rate() -> None:
    times = arrivals(4000, 20.0, seed=3)
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert times == sorted(times)
    assert statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.08)
    # Of an exponential distribution the standard deviation equals the mean and a share of 1/e lies above it.
    assert statistics.stdev(gaps) == pytest.approx(1 / 20, rel=0.1)
    assert sum(gap > 1 / 20 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.04)
    assert arrivals(3, 0.0, seed=3) == [0.0, 0.0, 0.0]


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert percentile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert percentile([5.0], 0.99) == 5.0
    assert spread([]) is None
    assert spread([0.001, 0.003]) == {"mean": 2, "p50": 2, "p90": 2.8, "p95": 2.9, "p99": 2.98, "max": 3}


def test_a_summary_counts_what_ended_failed_and_did_not_end_and_shows_it() -> None:
    good, late, bad = Record(10.0, 100, cached_tokens=64), Record(10.0, 7), Record(10.0, 9, error="status 503: no")
    for at in (10.5, 10.6, 10.9):
        good.arrived(at)
    good.ended = True
    late.arrived(11.0)
    found = summary([good, late, bad], 2.0)
    assert (found["requests"], found["unfinished"], found["failed"]) == (1, 1, 1)
    assert (found["prompt_tokens"], found["cached_tokens"], found["generated_tokens"]) == (100, 64, 4)
    assert found["generated_tokens_per_second"] == 2.0
    assert found["time_to_first_token_ms"]["max"] == pytest.approx(500)
    assert found["inter_token_ms"]["max"] == pytest.approx(300)
    assert found["end_to_end_ms"]["p50"] == pytest.approx(900)
    text = table(found)
    for words in ("not ended in time", "first failure: status 503: no", "500.00", "of them from the prefix cache"):
        assert words in text
    assert "failed" not in table(summary([good], 1.0))
