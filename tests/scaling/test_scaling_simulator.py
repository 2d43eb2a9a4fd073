"""The simulated replica keeps its books; runs are repeatable; the policy that runs there keeps the promises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from octavo_operator.__main__ import main
from octavo_operator.scaling.policy import PolicySettings
from octavo_operator.scaling.simulator.compare import compare, drawing, table
from octavo_operator.scaling.simulator.fleet_run import Pool, Run, Scene
from octavo_operator.scaling.simulator.loads import Load, TraceError, read_trace, shaped, shapes
from octavo_operator.scaling.simulator.profile import Profile, ProfileError, read_profile
from octavo_operator.scaling.simulator.replica import Replica, Request
from octavo_operator.scaling.simulator.report import SLO, figures, flaps
from octavo_operator.scaling.simulator.scalers import Grid, Octavo, Planned

PLAIN = PolicySettings(1, 40)
FEW = Grid((0.7,), (), (16,), (), (), (0.85,))


def drained(replica: Replica) -> list[Request]:
    ended: list[Request] = []
    for _ in range(100_000):
        due = replica.next_event()
        if due == float("inf"):
            return ended
        replica.advance(due, ended.append)
    raise AssertionError("the replica never became idle")


def loaded(profile: Profile, *sizes: tuple[int, int]) -> tuple[Replica, list[Request]]:
    replica, requests = Replica(1, profile, 0.0, 0.0), [Request(0.0, *size) for size in sizes]
    for request in requests:
        request.begin()
        replica.add(request)
    return replica, requests


def test_one_request_takes_its_prefill_and_its_steps():
    profile = Profile(sequence_seconds=0.0, cached_token_seconds=0.0)
    replica, [request] = loaded(profile, (1024, 11))
    drained(replica)
    chunk = profile.step_seconds + 512 * profile.prompt_token_seconds
    assert request.first_token == pytest.approx(2 * chunk)
    assert request.end - request.first_token == pytest.approx(11 * profile.step_seconds)


def test_a_larger_batch_slows_every_request_and_raises_the_throughput():
    def seconds(count: int) -> float:
        replica, requests = loaded(Profile(), *[(10, 100)] * count)
        drained(replica)
        return max(item.end for item in requests)

    assert seconds(1) < seconds(32) < 32 * seconds(1) / 4


@pytest.mark.parametrize("capacity", [600.0, 3000.0])
def test_a_small_cache_preempts_and_still_ends_every_request_once(capacity):
    profile = Profile(capacity_tokens=capacity)
    replica, requests = loaded(profile, *[(200, 300)] * 12)
    ended = drained(replica)
    assert sorted(map(id, ended)) == sorted(map(id, requests))
    assert replica.finished == replica.received == 12
    assert replica.preemptions > 0
    assert replica.idle
    assert replica.sample(1.0).active_tokens == 0


def test_a_request_larger_than_the_cache_does_not_block_the_queue():
    replica, _ = loaded(Profile(capacity_tokens=100.0), (500, 5), (10, 5))
    assert len(drained(replica)) == 2


def test_the_same_seed_gives_the_same_run():
    load = shapes(hours=0.2)["steps"]()
    first, again = (figures(Run(load, Octavo(PLAIN), Scene()).outcome(), SLO()) for _ in range(2))
    assert first == again


def test_every_request_is_answered_though_replicas_fail_and_leave():
    load = shapes(hours=0.5)["bursts"]()
    scene = Scene(failures=(200.0, 201.0, 900.0))
    outcome = Run(load, Octavo(replace(PLAIN, scale_down_seconds=60.0)), scene).outcome()
    assert all(item.end >= item.first_token >= item.arrival for item in outcome.requests)
    assert len(outcome.counts) > 4


def test_a_fixed_count_is_billed_for_the_whole_time():
    load = shapes(hours=0.1)["constant"]()
    outcome = Run(load, Planned("fixed", lambda _now: 3), Scene(begin=3)).outcome()
    assert outcome.replica_seconds == pytest.approx(3 * load.seconds)


@pytest.mark.parametrize("startup", [30.0, 90.0, 300.0])
def test_no_flap_under_constant_load_with_a_start_up_delay(startup):
    # Even arrivals of equal size: whatever moves the count is the policy's own doing.
    load = Load("even", 3600.0, tuple((at * 0.25, 500, 150) for at in range(4 * 3600)))
    scene = Scene((Pool(Profile(startup_seconds=startup)),))
    outcome = Run(load, Octavo(PLAIN), scene).outcome()
    # One replica can't serve it: what queued meanwhile needs more than the load alone, and once.
    assert flaps(outcome.counts) <= 1
    # What was learned while it queued is unlearned within two windows of two start-up times.
    assert max(at for at, _ in outcome.counts) < max(1200, 4.5 * startup)


def test_a_load_that_ends_leaves_one_replica():
    load = shaped("pulse", lambda time: 6.0 if time < 600 else 0.0, 6.0, 3000.0, 3)
    outcome = Run(load, Octavo(PLAIN), Scene()).outcome()
    assert max(count for _, count in outcome.counts) >= 3
    assert outcome.counts[-1][1] == 1


def test_replicas_go_to_the_cheaper_nodes_until_these_are_full():
    load = shapes(scale=1.5, hours=0.4)["constant"]()
    cheap, dear = Profile(), Profile(name="dear", cost_per_hour=3.0)
    outcome = Run(load, Octavo(PLAIN), Scene((Pool(dear), Pool(cheap, accelerators=2)))).outcome()
    hours = outcome.replica_seconds / 3600
    assert hours < outcome.cost < 3 * hours


def test_accelerators_that_do_not_come_are_given_up():
    load = shapes(scale=2.0, hours=0.6)["constant"]()
    scaler = Octavo(PLAIN)
    outcome = Run(load, scaler, Scene((Pool(Profile(), accelerators=2),))).outcome()
    assert "WaitingForAccelerator" in {change.reason for change in scaler.state.changes}
    assert max(count for _, count in outcome.serving) == 2


def test_the_policy_costs_little_more_than_an_oracle():
    # Whole replicas make one day's ratio jump: four days together say what the policy costs.
    days = [
        compare(shapes(seed=seed)["diurnal"](), Scene(), SLO(), PLAIN, Grid((0.7,), (), (), (), (), ()))
        for seed in range(1, 5)
    ]
    assert sum(day.octavo.gpu_hours for day in days) <= 1.3 * sum(day.oracle.gpu_hours for day in days)
    assert min(day.octavo.in_slo for day in days) > 0.95


def test_a_comparison_is_shown_as_a_table_and_a_drawing():
    found = compare(shapes(hours=0.1)["diurnal"](), Scene(), SLO(), PLAIN, FEW)
    assert "Octavo" in table(found)
    assert "serving" in drawing(found)


def test_traces_of_both_formats_are_read_and_scaled(tmp_path: Path):
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:05.4799600,3,0\n"
    )
    assert read_trace(azure).arrivals == ((0.0, 4808, 10), (pytest.approx(1.5), 3, 1))
    burst = tmp_path / "burst.csv"
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,230,1317,Conversation log\n"
    )
    assert read_trace(burst).arrivals == ((0.0, 472, 18), (40.0, 1087, 230))
    assert len(read_trace(burst, rate=3.0, seconds=40.0).arrivals) in (3, 4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "expected TIMESTAMP"),
        ("Timestamp,Request tokens,Response tokens\nx,1,2\n", "line 2"),
        ("Timestamp,Request tokens,Response tokens\n", "no request"),
    ],
)
def test_a_trace_that_is_none_is_refused_with_its_place(tmp_path: Path, text: str, told: str):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=told):
        read_trace(path)


def test_a_profile_comes_from_a_file_or_from_the_servers_benchmark(tmp_path: Path):
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"name": "mine", "capacity_tokens": 5000}))
    assert read_profile(own).capacity_tokens == 5000
    measured = read_profile(Path("benchmarks/results/serving-cpu.json"))
    assert 0 < measured.prompt_token_seconds < measured.step_seconds
    own.write_text(json.dumps({"speed": 1}))
    with pytest.raises(ProfileError, match="step_seconds"):
        read_profile(own)


def test_the_command_prints_a_table_and_refuses_what_it_can_not_read(capsys):
    assert main(["simulate", "constant", "--hours", "0.1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [item["policy"] for item in told["policies"]][:2] == ["Octavo", "oracle"]
    assert main(["simulate", "nothing.csv"]) == 2
    assert "nothing.csv" in capsys.readouterr().err
