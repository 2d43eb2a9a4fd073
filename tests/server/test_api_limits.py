"""Keys from a file, a queue with an end, requests with a limit of time, and fields that change the text."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from octavo_server.api import keys as keys_module
from octavo_server.api.keys import ApiKeys
from octavo_server.termination import Refused

TEXT = "/v1/completions"


async def test_every_key_of_the_file_and_the_one_of_the_environment_opens(scripted: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team a\nfirst\n\n  second  \n")
    async with scripted(api_key="third", api_key_file=str(file)) as running:
        for key, status in (("first", 200), ("second", 200), ("third", 200), ("# team a", 401), ("x", 401)):
            response = await running.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert response.status_code == status, key


def test_a_changed_file_is_read_again_and_an_empty_or_lost_one_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "_LOOK_SECONDS", 0.0)
    file = tmp_path / "keys"
    file.write_text("old")
    keys = ApiKeys("", str(file))
    assert keys.allows("old")
    (tmp_path / "next").write_text("new\n")
    os.replace(tmp_path / "next", file)
    assert (keys.allows("old"), keys.allows("new")) == (False, True)
    file.write_text("")
    assert keys.allows("new")
    file.unlink()
    assert keys.allows("new")


@pytest.mark.parametrize("content", [None, "# nothing\n"])
def test_a_file_without_a_key_is_refused_at_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Refused, match="--api-key-file"):
        ApiKeys("", str(file))


async def test_a_full_queue_is_a_429_that_says_when_to_come_again_and_ends_with_the_queue(
    scripted: Any, tmp_path: Path, until: Any
) -> None:
    gate = tmp_path / "gate"
    async with scripted("--gate", str(gate), max_queued=2) as running:
        body = {"prompt": "a", "max_tokens": 3}
        waiting = [asyncio.create_task(running.client.post(TEXT, json=body)) for _ in range(2)]
        await until(lambda: running.server.state.client.queued == 2, "two wait")
        for _ in range(2):
            refused = await running.client.post(TEXT, json=body)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.json()["error"]["type"] == "rate_limit_error"
        gate.touch()
        assert [(await one).status_code for one in waiting] == [200, 200]
        assert running.server.state.client.queued == 0
        assert (await running.client.post(TEXT, json={**body, "n": 3})).status_code == 200, "an idle server takes all"


async def test_a_request_past_its_time_ends_with_504_or_an_error_event_and_is_aborted(scripted: Any) -> None:
    async with scripted("--stall-after", "2", request_timeout_seconds=0.5) as running:
        body = {"prompt": "a", "max_tokens": 9}
        late = await running.client.post(TEXT, json=body)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        async with running.client.stream("POST", TEXT, json={**body, "stream": True}) as response:
            events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        assert json.loads(events[-2])["error"]["code"] == "timeout"
        assert events[-1] == "[DONE]"
        assert running.server.state.client.living == 0


async def test_fields_change_the_text_as_they_say(scripted: Any, tmp_path: Path) -> None:
    record = tmp_path / "record"
    text = " one<|im_start|> two three<|im_end|>"
    async with scripted("--text", text, "--record", str(record)) as running:

        async def text_of(**body: Any) -> str:
            response = await running.client.post(TEXT, json={"prompt": "a b c d e", "max_tokens": 20, **body})
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["text"])

        assert await text_of() == " one two three"
        assert await text_of(skip_special_tokens=False) == " one<|im_start|> two three"
        assert await text_of(stop=" two") == " one"
        assert await text_of(stop=" two", include_stop_str_in_output=True) == " one two"
        record.write_text("")
        await text_of(truncate_prompt_tokens=2)
        await text_of(truncate_prompt_tokens=-1)
        entries = [json.loads(line) for line in record.read_text().splitlines()]
        prompts = [entry["prompt"] for entry in entries if entry["kind"] == "Submit"]
        assert [len(prompt) for prompt in prompts] == [2, 5]
        assert prompts[0] == prompts[1][-2:]


async def test_priority_and_salt_of_a_request_reach_the_engine(scripted: Any, tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with scripted("--text", " one", "--record", str(record)) as running:
        for more in ({}, {"priority": -3, "cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"}):
            body = {"prompt": list(range(5, 105)), "max_tokens": 2, **more}
            assert (await running.client.post(TEXT, json=body)).status_code == 200
    sent = [entry for entry in map(json.loads, record.read_text().splitlines()) if entry["kind"] == "Submit"]
    assert [entry["priority"] for entry in sent] == [0, -3, 0, 0]
    plain, first, second, other = (entry["digests"] for entry in sent)
    assert len(plain) > 3
    assert first == second, "the same salt shares the prefix cache"
    assert len({*plain, *first, *other}) == 3 * len(plain), "another salt shares nothing"


def test_every_key_is_compared_in_constant_time_whichever_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\nthree\n")
    keys = ApiKeys("zero", str(file))
    compared: list[tuple[bytes, bytes]] = []
    real = keys_module.hmac.compare_digest

    def watched(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return real(given, known)

    monkeypatch.setattr(keys_module.hmac, "compare_digest", watched)
    for given, allowed in (("zero", True), ("three", True), ("", False), ("x" * 10_000, False)):
        compared.clear()
        assert keys.allows(given) is allowed
        assert len(compared) == 4, "each key is compared, before and after the one that fits"
        assert {len(side) for pair in compared for side in pair} == {32}, "digests of one length, whatever was sent"
