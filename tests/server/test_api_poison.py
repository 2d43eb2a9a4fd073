"""A request that ends the engine: it alone fails, whatever waits beside it goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from octavo_server.api.client import EngineClient
from octavo_server.engine.messages import Abort, Finished, Message, Outputs, RequestOutput, SamplingParams, Submit

TEXT = "/v1/completions"


class Ends:
    """A sink that remembers how its request ended."""

    def __init__(self) -> None:
        self.reason = ""

    def on_output(self, output: RequestOutput) -> None:
        """Not looked at."""

    def on_finished(self, reason: str, message: str) -> None:
        assert self.reason == ""
        self.reason = reason


class CrashingEngine:
    """Hands one token to each request it holds, in order, and crashes when it meets the poison."""

    def __init__(self, client: EngineClient, poison: str) -> None:
        self.client = client
        self.poison = poison.encode()
        self.crashes = 0
        self.held: list[Submit] = []

    def start(self) -> None:
        self.held.clear()
        self.client.on_connected(self.receive)

    def receive(self, message: Message) -> None:
        if isinstance(message, Submit):
            self.held.append(message)
        elif isinstance(message, Abort):
            self.held = [one for one in self.held if one.request_id != message.request_id]

    def run(self) -> None:
        """To the end of all requests."""
        while self.held:
            submit = self.held.pop(0)
            if submit.prompt_token_ids == self.poison:
                self.crashes += 1
                assert self.crashes < 4, "the server would be given up"
                self.client.on_lost()
                self.start()
                continue
            self.client.on_message(Outputs([RequestOutput(submit.request_id, [7], [])]))
            self.client.on_message(Finished(submit.request_id, "length"))


def submit(prompt: str) -> Submit:
    return Submit(0, prompt.encode(), SamplingParams(), 1)


def test_of_many_waiting_requests_the_poison_alone_fails_and_the_engine_crashes_twice() -> None:
    client = EngineClient()
    ends = {name: Ends() for name in (*map(str, range(40)), "poison", *map(str, range(40, 200)))}
    for name, sink in ends.items():
        client.submit(submit(name), sink, name)
    engine = CrashingEngine(client, "poison")
    engine.start()
    engine.run()
    failed = [name for name, sink in ends.items() if sink.reason != "length"]
    assert "poison" in failed
    assert ends["poison"].reason == "error"
    assert engine.crashes == 2
    assert len(failed) <= 33, "those of its group at the most: 1 + 2 + 4 + 8 + 16 were sent before"
    assert client.living == client.queued == 0


def test_a_request_that_comes_after_a_crash_is_sent_at_once_and_is_no_suspect() -> None:
    client = EngineClient()
    sent: list[Submit] = []
    sinks = [Ends() for _ in range(6)]
    client.on_connected(lambda message: None)
    for number, sink in enumerate(sinks[:4]):
        client.submit(submit(f"old {number}"), sink, "old")
    client.on_lost()
    client.on_connected(lambda message: sent.append(message))  # type: ignore[arg-type]
    assert [one.prompt_token_ids for one in sent] == [b"old 0"]
    client.submit(submit("new"), sinks[4], "new")
    assert [one.prompt_token_ids for one in sent] == [b"old 0", b"new"]
    client.on_lost()
    assert [sink.reason for sink in sinks] == ["error", "", "", "", "", ""]
    sent.clear()
    client.on_connected(lambda message: sent.append(message))  # type: ignore[arg-type]
    client.on_message(Outputs([RequestOutput(sent[0].request_id, [7], [])]))
    assert len(sent) == 3, "a group of one, then of two"


def test_an_abort_of_a_suspect_lets_the_next_group_go() -> None:
    client = EngineClient()
    sent: list[Message] = []
    client.on_connected(lambda message: None)
    ids = [client.submit(submit(str(number)), Ends(), "x") for number in range(3)]
    client.on_lost()
    client.on_connected(sent.append)
    client.abort(ids[0], 0)
    submits = [one.prompt_token_ids for one in sent if isinstance(one, Submit)]
    assert submits == [b"0", b"1", b"2"]


async def test_requests_behind_a_poisonous_one_get_their_answers_from_the_next_engine(
    dummy: Any, tokenizer: Any, tmp_path: Path
) -> None:
    poison = tokenizer.encode(" poison", add_special_tokens=False)[0]
    record = tmp_path / "record"
    flags = ("--poison", str(poison), "--max-running", "2", "--record", str(record), "--pace", "0.01")
    async with dummy(*flags) as running:

        async def answer(prompt: str) -> Any:
            return await running.client.post(TEXT, json={"prompt": prompt, "max_tokens": 4})

        asked = [asyncio.create_task(answer(f"number {number}")) for number in range(6)]
        bad = asyncio.create_task(answer("bad poison"))
        asked += [asyncio.create_task(answer(f"number {number}")) for number in range(6, 24)]
        statuses = [(await one).status_code for one in asked]
        assert (await bad).status_code == 500
        assert "crashed" in (await bad).json()["error"]["message"]
        assert statuses.count(200) >= len(statuses) - 2, statuses
        entries = [json.loads(line) for line in record.read_text().splitlines()]
        assert len({entry["process"] for entry in entries}) == 3, "two crashes"
        assert running.server.state.client.living == 0
