"""Requests of every shape: none makes a 5xx, and the same engine process answers after all of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
CHAT, TEXT, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
FUZZ = settings(
    max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)  # fmt: skip
SECONDS = 30.0
HELLO = [{"role": "user", "content": "hi"}]


@dataclass
class Fuzzed:
    """A server and its client."""

    url: str
    client: httpx.Client
    process: int
    engine: int

    def check_alive(self) -> None:
        """The same engine process answers a good request."""
        assert children(self.process) == [self.engine]
        good = self.client.post(TEXT, json={"prompt": "a", "max_tokens": 2})
        assert good.status_code == 200, good.text


def children(process: int) -> list[int]:
    """Child processes."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.fixture(scope="module")
def fuzzed(model_path: Path, tmp_path_factory: pytest.TempPathFactory, until_sync: Any) -> Iterator[Fuzzed]:
    """A server whose engine writes at most 64 tokens, shared by the tests here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("fuzz") / "log"
    command = [
        sys.executable, str(ROOT / "benchmarks" / "http_server.py"), "--model", str(model_path), "--host", "127.0.0.1",
        "--port", str(port), "--served-name", "dummy", "--drain-notice-seconds", "0", "--", "--max-length", "64",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/ready").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        until_sync(ready, "the server is ready")
        [engine] = children(process.pid)
        with httpx.Client(base_url=url, timeout=SECONDS) as client:
            fuzz = Fuzzed(url, client, process.pid, engine)
            yield fuzz
            fuzz.check_alive()
        assert "Traceback" not in log.read_text(), log.read_text()[-4000:]
    finally:
        process.terminate()
        process.wait(30)


def modest(body: dict[str, Any]) -> dict[str, Any]:
    """The same without what nearly always makes a 4xx: another model's name, unknown fields, too many tokens."""
    kept = {name: value for name, value in body.items() if name in ("prompt", "messages", "tokens", "stream", "stop")}
    if isinstance(kept.get("messages"), list):
        few = [one for one in kept["messages"] if isinstance(one, dict)][:3]
        kept["messages"] = [{"role": one.get("role"), "content": str(one.get("content"))[:9]} for one in few]
    return {**kept, **({"max_tokens": 2} if "max_tokens" in body or "stream" in body else {})}


def test_no_request_made_from_the_description_is_a_5xx(fuzzed: Fuzzed) -> None:
    described = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    seen: dict[str, set[int]] = {}
    for found in described.get_all_operations():
        operation = found.ok()

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(operation.as_strategy())
        def check(case: Any) -> None:
            whole = case.body
            for body in (whole, modest(whole)) if isinstance(whole, dict) else (whole,):
                case.body = body
                response = case.call(timeout=SECONDS)
                seen.setdefault(case.operation.label, set()).add(response.status_code)
                assert response.status_code < 500, (case.as_curl_command(), response.text[:500])
                assert response.headers["x-request-id"]

        check()
    assert len(seen) >= 10
    unanswered = [name for name, statuses in seen.items() if 200 not in statuses]
    assert unanswered == ["GET /v1/models/{name}"], seen


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
    | st.sampled_from(["", "a", "<|im_end|>", "\ud800", "\x00", "{}", "auto", "required", 2**63, 2**64, -(2**63), 1e308,
                       "🦙" * 50])
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
FIELDS = {
    CHAT: [
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "structured_outputs",
        "guided_json",
        "stop",
        "n",
        "stream",
        "logprobs",
        "top_logprobs",
        "chat_template_kwargs",
        "continue_final_message",
        "add_generation_prompt",
        "reasoning_effort",
        "max_tokens",
        "logit_bias",
        "stream_options",
        "seed",
        "temperature",
        "cache_salt",
        "parallel_tool_calls",
        "max_completion_tokens",
        "user",
    ],
    TEXT: [
        "prompt",
        "echo",
        "best_of",
        "n",
        "max_tokens",
        "min_tokens",
        "suffix",
        "logprobs",
        "prompt_logprobs",
        "stop",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "stop_token_ids",
        "allowed_token_ids",
        "bad_words",
        "truncate_prompt_tokens",
        "priority",
        "request_id",
        "stream",
        "top_p",
        "repetition_penalty",
        "min_p",
        "top_k",
        "ignore_eos",
        "skip_special_tokens",
    ],
    TOKENIZE: ["prompt", "messages", "tools", "add_special_tokens", "chat_template_kwargs", "model"],
    DETOKENIZE: ["tokens", "model"],
}
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 4},
    TEXT: {"prompt": "a", "max_tokens": 4},
    TOKENIZE: {"prompt": "a"},
    DETOKENIZE: {"tokens": [5]},
}
bodies = st.sampled_from(sorted(BASES)).flatmap(
    lambda path: st.tuples(
        st.just(path),
        st.dictionaries(st.sampled_from(FIELDS[path]), values, max_size=4).map(lambda some: {**BASES[path], **some}),
    )
)  # fmt: skip


@FUZZ
@given(bodies)
def test_no_body_with_any_values_in_known_fields_is_a_5xx(fuzzed: Fuzzed, request_: tuple[str, dict[str, Any]]) -> None:
    path, body = request_
    content = json.dumps(body).encode()
    response = fuzzed.client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code < 500, (path, body, response.text[:500])
    if response.status_code == 400:
        assert response.json()["error"]["param"], (path, body, response.text)
    if response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"server_error"' not in response.text, (path, body, response.text[:500])


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
        optional={
            "content": st.text(max_size=30) | st.just([{"type": "text", "text": "x"}]) | st.none(),
            "name": st.text(max_size=8),
            "tool_call_id": st.text(max_size=8),
            "reasoning_content": st.text(max_size=8),
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {
                        "function": st.fixed_dictionaries(
                            {"name": st.text(max_size=6), "arguments": st.text(max_size=12)}
                        )
                    }
                ),
                max_size=2,
            ),
        },
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@FUZZ
@given(messages, st.booleans(), st.sampled_from([{}, {"tools": [{"type": "function", "function": {"name": "f"}}]}]))
def test_no_conversation_is_a_5xx(fuzzed: Fuzzed, talk: list[Any], goes_on: bool, more: dict[str, Any]) -> None:
    body = {"messages": talk, "continue_final_message": goes_on, "max_tokens": 3, **more}
    response = fuzzed.client.post(CHAT, content=json.dumps(body).encode())
    assert response.status_code < 500, (body, response.text[:500])


@FUZZ
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"]),
    st.sampled_from([*BASES, "/v1/models", "/v1/models/x", "/health", "/metrics", "/version", "/x"])
    | st.text(alphabet="abc/%?&=.0123\u00e9", max_size=12).map(lambda text: "/" + text.lstrip("/")),
    st.binary(max_size=200),
    st.dictionaries(st.sampled_from(["accept", "content-type", "authorization", "x-request-id", "origin", "range"]),
                    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20), max_size=3),
)  # fmt: skip
def test_no_bytes_on_any_route_by_any_method_are_a_5xx(
    fuzzed: Fuzzed, method: str, path: str, content: bytes, headers: dict[str, str]
) -> None:
    response = fuzzed.client.request(method, path, content=content, headers=headers)
    assert response.status_code < 500, (method, path, content, headers, response.text[:500])


@FUZZ
@given(st.lists(st.binary(max_size=60) | st.sampled_from([
    b"POST /v1/completions HTTP/1.1\r\n", b"host: x\r\n", b"content-length: 5\r\n", b"content-length: -1\r\n", b"\r\n",
    b"transfer-encoding: chunked\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    b"GET / HTTP/1.1\r\n\r\n", b"expect: 100-continue\r\n", b"upgrade: websocket\r\n",
    b"connection: close\r\n", b'{"prompt": "a"}',
]), max_size=8))  # fmt: skip
def test_no_bytes_on_a_connection_end_the_server(fuzzed: Fuzzed, parts: list[bytes]) -> None:
    port = int(fuzzed.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as channel:
        try:
            for part in parts:
                channel.sendall(part)
            channel.shutdown(socket.SHUT_WR)
            answer = b""
            while data := channel.recv(65_536):
                answer += data
        except OSError:
            return  # the server closed what it can't read
    assert b"HTTP/1.1 5" not in answer, (parts, answer)


def test_the_engine_lives_after_all_of_it(fuzzed: Fuzzed) -> None:
    fuzzed.check_alive()
