"""The engine as its API processes see it, over the socket: a tiny random model, faults of every kind, recovery."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from octavo_server.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo_server.engine.codec import FrameBuffer, decode, encode, frame
from octavo_server.engine.core import Engine
from octavo_server.engine.messages import (
    Abort,
    Finished,
    Message,
    Outputs,
    Progress,
    Ready,
    SamplingParams,
    StartupFailed,
    Stats,
    Submit,
)
from octavo_server.engine.process import Process
from octavo_server.engine.settings import from_json, to_json
from octavo_server.engine.startup import start

DEADLINE_SECONDS = 60.0
GREEDY = SamplingParams(temperature=0.0)


def settings(model: Path) -> EngineConfig:
    return EngineConfig(
        ModelConfig(str(model), served_name="tiny"),
        CacheConfig(block_size_tokens=8, pool_bytes=2 * 2 * 16 * 4 * 8 * 65),
        SchedulerConfig(max_batched_tokens=64, max_sequences=8),
        device="CPU",
        cpu_threads=1,
    )


@dataclass
class Client:
    """A connection of an API process, with all that came over it."""

    channel: socket.socket
    buffer: FrameBuffer = field(default_factory=FrameBuffer)
    received: list[Message] = field(default_factory=list)

    def send(self, *messages: Message) -> None:
        self.channel.sendall(b"".join(frame(encode(message)) for message in messages))

    def until(self, wanted: Callable[[Message], bool]) -> Message:
        """Reads until a message that came now or before fits, within the deadline."""
        seen = 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            for message in self.received[seen:]:
                if wanted(message):
                    return message
            seen = len(self.received)
            assert time.monotonic() < deadline, f"nothing fits in {self.received[-3:]}"
            data = self.channel.recv(1 << 16)
            assert data, "the engine closed the connection"
            self.received += map(decode, self.buffer.feed(data))

    def finished(self, request_id: int) -> Finished:
        message = self.until(lambda one: isinstance(one, Finished) and one.request_id == request_id)
        assert isinstance(message, Finished)
        return message

    def tokens(self, request_id: int) -> list[int]:
        outputs = [one for message in self.received if isinstance(message, Outputs) for one in message.outputs]
        return [token for one in outputs if one.request_id == request_id for token in one.token_ids]

    def idle_stats(self) -> Stats:
        """The first Stats from now on without a running request."""
        del self.received[:]
        message = self.until(lambda one: isinstance(one, Stats) and one.running == one.waiting == 0)
        assert isinstance(message, Stats)
        return message


@dataclass
class Running:
    """An engine that serves in a thread of this process."""

    engine: Engine
    path: Path

    def connect(self) -> Client:
        channel = socket.socket(socket.AF_UNIX)
        channel.settimeout(DEADLINE_SECONDS)
        channel.connect(str(self.path))
        return Client(channel)


@pytest.fixture
def running(tiny_model: Path, tmp_path: Path) -> Iterator[Running]:
    path = tmp_path / "engine.sock"
    engine, ready = start(settings(tiny_model), lambda progress: None)
    process = Process(path)
    thread = threading.Thread(target=lambda: process.serve(engine, ready))
    thread.start()
    yield Running(engine, path)
    process.stopped = True
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    process.close()
    engine.scheduler.check_integrity()


def submit(number: int, prompt: list[int], new_tokens: int = 12, sampling: SamplingParams = GREEDY) -> Submit:
    return Submit(number, struct.pack(f"<{len(prompt)}i", *prompt), sampling, new_tokens)


def test_a_request_gets_its_tokens_one_end_and_leaves_no_active_block(running: Running) -> None:
    client = running.connect()
    assert isinstance(client.until(lambda one: isinstance(one, Ready)), Ready)
    client.send(submit(1, [1, 2, 3], 20), submit(2, [4], 5))
    assert client.finished(1).reason == client.finished(2).reason == "length"
    assert (len(client.tokens(1)), len(client.tokens(2))) == (20, 5)
    assert sum(isinstance(one, Finished) for one in client.received) == 2
    stats = client.idle_stats()
    assert (stats.active_blocks, stats.used_slots, stats.generation_tokens_total) == (0, 0, 25)
    assert stats.cached_blocks == 2


def test_a_stop_token_is_sent_and_ends_the_request(running: Running) -> None:
    client = running.connect()
    client.send(submit(1, [1, 2, 3]))
    client.finished(1)
    whole = client.tokens(1)
    stop = next(token for place, token in enumerate(whole) if place >= 1 and token not in whole[:place])
    client.send(submit(2, [1, 2, 3], sampling=replace(GREEDY, stop_token_ids=[stop])))
    end = client.finished(2)
    assert (end.reason, end.stop_token_id) == ("stop", stop)
    assert client.tokens(2) == whole[: whole.index(stop) + 1]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (submit(1, []), "prompt_token_ids"),
        (submit(1, [64]), "prompt_token_ids"),
        (submit(1, [-1]), "prompt_token_ids"),
        (submit(1, [1] * 512), "prompt_token_ids"),
        (replace(submit(1, [1]), prompt_token_ids=b"abc"), "prompt_token_ids"),
        (submit(1, [1], 0), "max_new_tokens"),
        (submit(1, [1], -5), "max_new_tokens"),
        (submit(1, [1], sampling=SamplingParams(logit_bias={64: 1.0})), "logit_bias"),
        (submit(1, [1], sampling=SamplingParams(temperature=-1.0)), "temperature"),
        (submit(1, [1], sampling=SamplingParams(top_k="x")), "top_k"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_request_ends_with_the_name_of_its_field_and_the_engine_lives_on(
    running: Running, wrong: Submit, named: str
) -> None:
    client = running.connect()
    client.send(wrong, submit(2, [1]))
    end = client.finished(1)
    assert end.reason == "error"
    assert named in end.message
    assert client.finished(2).reason == "length"


def test_a_second_request_with_a_living_id_is_refused_and_the_first_goes_on(running: Running) -> None:
    client = running.connect()
    client.send(submit(1, [1], 400), submit(1, [2]), Abort(1, 0))
    refused = client.until(lambda one: isinstance(one, Finished) and one.reason == "error")
    assert isinstance(refused, Finished)
    assert "request_id" in refused.message
    client.until(lambda one: isinstance(one, Finished) and one.reason == "abort")


def test_a_lost_connection_ends_its_requests_and_frees_their_blocks(running: Running) -> None:
    gone, other = running.connect(), running.connect()
    gone.send(*(submit(number, [1, 2], 400) for number in range(3)))
    gone.until(lambda one: isinstance(one, Outputs))
    gone.channel.close()
    other.send(submit(1 << 48, [3], 5))
    assert other.finished(1 << 48).reason == "length"
    stats = other.idle_stats()
    assert stats.active_blocks == 0
    assert stats.generation_tokens_total < 400


def test_bytes_that_are_no_message_close_that_connection_alone(running: Running) -> None:
    bad, good = running.connect(), running.connect()
    bad.channel.sendall(frame(b"\xc1nonsense"))
    with pytest.raises(AssertionError, match="closed"):
        bad.until(lambda one: isinstance(one, Finished))
    good.send(submit(1, [1]))
    assert good.finished(1).reason == "length"


def test_a_failed_step_ends_its_requests_with_an_error_and_nothing_else(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.connect()
    client.until(lambda one: isinstance(one, Ready))
    runner = running.engine._runner
    works = runner.launch

    def fails(parts: object) -> object:
        monkeypatch.setattr(runner, "launch", works)
        raise RuntimeError("the kernel is on fire")

    monkeypatch.setattr(runner, "launch", fails)
    client.send(submit(1, [1, 2, 3]))
    end = client.finished(1)
    assert end.reason == "error"
    assert "on fire" in end.message
    client.send(submit(2, [1, 2, 3]))
    assert client.finished(2).reason == "length"
    assert client.idle_stats().active_blocks == 0


def test_an_abort_with_kept_tokens_withdraws_the_cache_past_them(running: Running) -> None:
    client = running.connect()
    client.send(submit(1, [1, 2, 3, 4], 400))
    client.until(lambda one: len(client.tokens(1)) >= 40)
    client.send(Abort(1, 9))
    assert client.finished(1).reason == "abort"
    # 4 + 9 tokens: one block of 8 is full, the second holds tokens that do not count.
    stats = client.idle_stats()
    assert (stats.active_blocks, stats.cached_blocks) == (0, 1)


def test_a_request_resumes_after_an_engine_restart_as_if_nothing_had_happened(running: Running) -> None:
    client = running.connect()
    sampling = SamplingParams(seed=11, frequency_penalty=0.5)
    client.send(submit(1, [5, 6], 30, sampling))
    client.finished(1)
    whole = client.tokens(1)
    sent = struct.pack("<13i", *whole[:13])
    client.send(replace(submit(2, [5, 6], 30, sampling), resume_token_ids=sent))
    client.finished(2)
    assert client.tokens(2) == whole[13:]


def launch(config: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "octavo_server.engine", "--socket", str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(config)
    process.stdin.close()
    process.stdin = None
    return process


def connect_when_there(path: Path, process: subprocess.Popen[str]) -> Client:
    channel = socket.socket(socket.AF_UNIX)
    channel.settimeout(DEADLINE_SECONDS)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            channel.connect(str(path))
            return Client(channel)
        except OSError:
            assert process.poll() is None, "the engine ended"
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_process_tells_how_far_it_is_generates_and_ends_on_sigterm(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    process = launch(to_json(settings(tiny_model)), path)
    client = connect_when_there(path, process)
    ready = client.until(lambda one: isinstance(one, Ready))
    assert any(isinstance(one, Progress) for one in client.received)
    assert isinstance(ready, Ready)
    assert (ready.model_name, ready.capacity_tokens, ready.max_length_tokens) == ("tiny", 64 * 8, 512)
    client.send(submit(1, [1, 2]))
    assert client.finished(1).reason == "length"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert not path.exists()


def test_a_length_that_cannot_fit_is_refused_with_the_gib_it_needs_and_the_largest_that_fits(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = settings(tiny_model)
    config = replace(
        config, model=replace(config.model, max_length_tokens=300), cache=replace(config.cache, pool_bytes=8 * 2048)
    )
    process = launch(to_json(config), tmp_path / "engine.sock")
    client = connect_when_there(tmp_path / "engine.sock", process)
    failed = client.until(lambda one: isinstance(one, StartupFailed))
    assert isinstance(failed, StartupFailed)
    assert failed.reason == "MaxLengthTooLong"
    assert "GiB" in failed.message
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 2
    assert failed.message not in errors, "the listener tells the user; a second line would repeat it"


def test_a_refusal_that_nobody_listens_to_is_printed_in_one_line(tiny_model: Path, tmp_path: Path) -> None:
    config = settings(tiny_model)
    process = launch(to_json(replace(config, model=replace(config.model, path="/nowhere"))), tmp_path / "engine.sock")
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 2
    assert errors.strip().splitlines() == ["octavo engine: model /nowhere: no such file or folder"]


@pytest.mark.parametrize("text", ["", "[]", '{"model": {"path": "x", "paht": "y"}}', '{"model": 3}', "{}"])
def test_a_configuration_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="engine") as refused:
        from_json(text)
    assert "\n" not in str(refused.value)


def test_the_configuration_survives_its_way_as_json(tiny_model: Path) -> None:
    assert from_json(to_json(settings(tiny_model))) == settings(tiny_model)
