"""`octavo-server bench`: against a server over HTTP and with an engine in this process; its faults in one line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo_server.__main__ import main


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


async def bench(*arguments: str) -> int:
    """Runs the command in a thread; its event loop is its own."""
    return await asyncio.to_thread(main, ["bench", *arguments])


async def test_serve_tells_times_and_tokens_of_every_request(dummy: Any, tmp_path: Path, capsys: Any) -> None:
    async with dummy("--pace", "0.01") as running:
        file = tmp_path / "figures.json"
        code = await bench(
            "serve", "--url", running.url, "--sessions", "12", "--input-tokens", "20", "--output-tokens", "7",
            "--concurrency", "3", "--output", str(file), "--seed", "4",
        )  # fmt: skip
        assert code == 0
        found = json.loads(file.read_text())
        assert (found["requests"], found["failed"], found["unfinished"]) == (12, 0, 0)
        assert (found["prompt_tokens"], found["generated_tokens"]) == (12 * 20, 12 * 7)
        assert found["settings"]["seed"] == 4
        assert "api_key" not in found["settings"]
        assert found["versions"]["version"]
        assert 0 < found["time_to_first_token_ms"]["p50"] <= found["end_to_end_ms"]["p50"]
        # Three at a time need at least four rounds of the engine's pace.
        assert found["seconds"] >= 4 * 6 * 0.01
        shown = capsys.readouterr()
        assert "time to first token, ms" in shown.out
        assert "12/12 requests" in shown.err


async def test_requests_of_an_open_loop_come_at_their_times_whatever_is_running(dummy: Any, capsys: Any) -> None:
    async with dummy("--pace", "0.01") as running:
        code = await bench(
            "serve", "--url", running.url, "--sessions", "30", "--input-tokens", "5", "--output-tokens", "3",
            "--rate", "60", "--report", "JSON", "--progress", "Disabled",
        )  # fmt: skip
        assert code == 0
        shown = capsys.readouterr()
        found = json.loads(shown.out)
        assert shown.err == ""
        assert found["requests"] == 30
        assert found["seconds"] > 0.2, "thirty arrivals at 60 per second came at once"


async def test_a_session_of_agents_sends_a_growing_prompt_turn_by_turn(dummy: Any, capsys: Any) -> None:
    async with dummy() as running:
        code = await bench(
            "serve", "--url", running.url, "--workload", "agents", "--sessions", "2", "--turns", "3",
            "--prefix-tokens", "30", "--input-tokens", "10", "--output-tokens", "5", "--report", "JSON",
        )  # fmt: skip
        assert code == 0
        found = json.loads(capsys.readouterr().out)
        assert found["requests"] == 6
        assert found["prompt_tokens"] == 2 * ((30 + 10) + (40 + 5 + 10) + (55 + 5 + 10))


async def test_what_does_not_end_in_time_is_dropped_and_told(dummy: Any, until: Any, capsys: Any) -> None:
    async with dummy("--pace", "0.05") as running:
        code = await bench(
            "serve", "--url", running.url, "--sessions", "3", "--input-tokens", "4", "--output-tokens", "2000",
            "--limit-seconds", "0.5",
        )  # fmt: skip
        assert code == 1
        shown = capsys.readouterr()
        assert "not ended in time" in shown.out
        assert "no request ended: nothing ended within --limit-seconds 0.5" in shown.err
        await until(lambda: running.server.state.client.living == 0, "the server dropped them")


async def test_a_refused_request_is_a_failure_with_the_servers_words(dummy: Any, capsys: Any) -> None:
    async with dummy() as running:
        assert await bench("serve", "--url", running.url, "--sessions", "2", "--served-name", "other") == 1
        shown = capsys.readouterr()
        assert "first failure: status 404" in shown.out
        assert "no request ended: status 404" in shown.err


async def test_a_missing_key_is_named_and_a_given_one_is_used(dummy: Any, monkeypatch: Any, capsys: Any) -> None:
    async with dummy(api_key="secret") as running:
        arguments = ("serve", "--url", running.url, "--sessions", "1", "--input-tokens", "3", "--output-tokens", "2")
        assert await bench(*arguments) == 2
        assert "set OCTAVO_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("OCTAVO_API_KEY", "secret")
        assert await bench(*arguments) == 0
        assert "secret" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a kind is missing: serve, throughput, latency"),
        (("serve",), "--url is missing"),
        (("serve", "--url", "localhost:8000"), "write http://host:port"),
        (("serve", "--url", "http://127.0.0.1:9"), "does a server run there?"),
        (("serve", "--url", "http://127.0.0.1:9", "--rate", "-1"), "--rate: -1 is outside of the allowed range"),
        (("serve", "--url", "http://x", "--workload", "chat"), "is none of random, sharegpt"),
        (("serve", "--url", "http://x", "--vocabulary", "1"), "--vocabulary 1: at least 2"),
        (("serve", "--url", "http://x", "--output", "/nowhere/at/all.json"), "its folder does not exist"),
        (("throughput", "--model", "/nowhere"), "no such file or folder"),
        (("throughput", "--model", "hf://org/name"), "bring it here first with octavo-server fetch"),
        (("latency", "--model", "/nowhere", "--batch", "0"), "--batch: 0 is outside of the allowed range"),
    ],
)
def test_a_wrong_use_is_refused_in_one_line(arguments: tuple[str, ...], words: str, capsys: Any) -> None:
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1


ENGINE = ("--device", "CPU", "--cpu-threads", "1", "--pool-bytes", str(1 << 20), "--block-size", "8", "--progress",
          "Disabled", "--report", "JSON")  # fmt: skip


def test_throughput_runs_an_engine_here_and_agents_find_their_own_past_in_the_cache(
    tiny_model: Path, capsys: Any
) -> None:
    code = main([
        "bench", "throughput", "--model", str(tiny_model), *ENGINE, "--workload", "agents", "--sessions", "3",
        "--turns", "4", "--prefix-tokens", "16", "--input-tokens", "5", "--output-tokens", "4", "--concurrency", "1",
    ])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert (code, found["requests"], found["failed"]) == (0, 12, 0)
    assert found["generated_tokens"] == 12 * 4
    lengths = [16 + 5 + 9 * turn for turn in range(4)]
    assert found["prompt_tokens"] == 3 * sum(lengths)
    # One after the other: a turn finds the whole blocks of what the one before had computed (all but its last token),
    # and first turns, but the very first, the two blocks that all share.
    own = [(length + 4 - 1) // 8 * 8 for length in lengths[:-1]]
    assert found["cached_tokens"] == 3 * sum(own) + 2 * 16


def test_latency_runs_batches_and_tells_their_times(tiny_model: Path, capsys: Any) -> None:
    code = main([
        "bench", "latency", "--model", str(tiny_model), *ENGINE, "--batch", "3", "--repeats", "4", "--warm-ups", "1",
        "--input-tokens", "12", "--output-tokens", "5",
    ])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert (code, found["requests"], found["batches"], found["cached_tokens"]) == (0, 12, 4, 0)
    assert found["generated_tokens"] == 12 * 5
    assert found["batch_ms"]["p50"] >= found["end_to_end_ms"]["p50"] > found["time_to_first_token_ms"]["p50"] > 0


def test_a_load_that_the_model_cannot_hold_is_refused_before_it_runs(tiny_model: Path, capsys: Any) -> None:
    assert main(["bench", "throughput", "--model", str(tiny_model), *ENGINE, "--input-tokens", "100000"]) == 2
    told = capsys.readouterr().err
    assert "the longest session needs 100128 tokens" in told
    assert "--input-tokens" in told
