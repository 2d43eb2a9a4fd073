"""Request ids, logs and origins: what goes out beside the answer."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from octavo_server.contract import ExitCode
from octavo_server.flags import resolve
from octavo_server.logs import JsonFormatter, TextFormatter
from octavo_server.options import SERVE, serve_config
from octavo_server.termination import Refused

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SECRET = "the-prompt-of-a-customer"


async def test_every_answer_has_the_id_that_was_sent_or_one_of_its_own(scripted: Any) -> None:
    async with scripted(api_key="key") as running:
        good = {"authorization": "Bearer key"}
        requests = [
            ("GET", "/health", {}, 200), ("GET", "/nothing", good, 404), ("GET", "/v1/models", {}, 401),
            ("POST", TEXT, good, 400), ("GET", "/version", good, 200),
        ]  # fmt: skip
        for method, path, headers, status in requests:
            sent = await running.client.request(
                method, path, headers={**headers, "x-request-id": "abc-1"}, content=b"{"
            )
            assert (sent.status_code, sent.headers["x-request-id"]) == (status, "abc-1"), path
            drawn = await running.client.request(method, path, headers=headers, content=b"{")
            assert re.fullmatch("[0-9a-f]{32}", drawn.headers["x-request-id"])
            if status >= 400:
                assert sent.json()["request_id"] == "abc-1"
                assert drawn.json()["request_id"] == drawn.headers["x-request-id"]


@pytest.mark.parametrize("bad", ["with blank", "x" * 129, "ü", ""])
async def test_an_id_that_could_forge_a_log_line_is_replaced(scripted: Any, bad: str) -> None:
    async with scripted() as running:
        response = await running.client.get("/version", headers={"x-request-id": bad.encode()})
        assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


async def test_an_error_inside_a_stream_names_the_request(scripted: Any) -> None:
    async with scripted("--stall-after", "1", request_timeout_seconds=0.3) as running:
        body = {"prompt": "x", "max_tokens": 5, "stream": True}
        async with running.client.stream("POST", TEXT, json=body, headers={"x-request-id": "mine"}) as response:
            assert response.headers["x-request-id"] == "mine"
            events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        assert json.loads(events[-2])["request_id"] == "mine"


async def test_the_access_log_names_the_request_and_holds_nothing_of_prompt_key_or_query(
    scripted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted(access_log=True, api_key="topsecret") as running:
        caplog.clear()
        headers = {"authorization": "Bearer topsecret", "x-request-id": "id-7"}
        body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}
        response = await running.client.post(f"{CHAT}?q={SECRET}", json=body, headers=headers)
        assert response.status_code == 200
        [record] = [record for record in caplog.records if record.name == "octavo.access"]
        fields = record.fields  # type: ignore[attr-defined]
        assert (fields["request_id"], fields["method"], fields["path"], fields["status"]) == ("id-7", "POST", CHAT, 200)
        assert fields["bytes_sent"] == len(response.content)
        answer = response.json()["choices"][0]["message"]["content"]
        ours = [record for record in caplog.records if record.name.startswith("octavo")]
        text = "".join(TextFormatter("").format(record) + JsonFormatter("api").format(record) for record in ours)
        for hidden in (SECRET, "topsecret", answer):
            assert hidden not in text
        await running.client.get("/a%0Ab%20c", headers=headers)
        [*_, last] = [record for record in caplog.records if record.name == "octavo.access"]
        assert last.fields["path"] == "/a\\nb%20c"  # type: ignore[attr-defined]


async def test_without_the_flag_there_is_no_access_log(scripted: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with scripted() as running:
        await running.client.get("/version")
        assert not [record for record in caplog.records if record.name in ("octavo.access", "uvicorn.access")]


def test_a_json_line_holds_message_fields_and_traceback_in_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("octavo.api", logging.ERROR, "f", 1, "failed %s\n!", ("x",), info)
    record.fields = {"request_id": "r"}
    line = JsonFormatter("api-2").format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["message"], entry["level"], entry["process"], entry["request_id"]) == (
        "failed x\n!",
        "error",
        "api-2",
        "r",
    )
    assert "ValueError" in entry["exception"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])


async def test_no_page_of_another_origin_may_use_the_server_unless_a_flag_says_so(scripted: Any) -> None:
    ask = {"origin": "https://app.example", "access-control-request-method": "POST",
           "access-control-request-headers": "authorization"}  # fmt: skip
    async with scripted(api_key="key") as running:
        response = await running.client.options(CHAT, headers=ask)
        assert not [name for name in response.headers if name.startswith("access-control")]
        response = await running.client.get("/health", headers={"origin": "https://app.example"})
        assert not [name for name in response.headers if name.startswith("access-control")]
    async with scripted(api_key="key", allowed_origins=("https://app.example",)) as running:
        response = await running.client.options(CHAT, headers=ask)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        refused = await running.client.options(CHAT, headers={**ask, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in refused.headers
        unauthorised = await running.client.get("/v1/models", headers={"origin": "https://app.example"})
        assert unauthorised.status_code == 401
        assert unauthorised.headers["access-control-allow-origin"] == "https://app.example", (
            "the page can read the error"
        )


@pytest.mark.parametrize("value", ["app.example", "https://app.example/path", "ftp://x", "https://a b"])
def test_a_wrong_origin_is_refused_at_start(value: str) -> None:
    with pytest.raises(Refused, match="--allowed-origins") as caught:
        serve_config(resolve(SERVE, {"model": "m", "allowed_origins": value}, {}))
    assert caught.value.exit_code == ExitCode.REFUSED


def test_origins_are_a_list_and_a_slash_at_the_end_is_forgiven() -> None:
    config = serve_config(resolve(SERVE, {"model": "m", "allowed_origins": "https://a.b/, http://c:80"}, {}))
    assert config.api.allowed_origins == ("https://a.b", "http://c:80")


def test_the_server_and_its_engine_write_json_lines_when_asked(model_path: Path, tmp_path: Path, start: Any) -> None:
    with start(model_path, tmp_path, "--log-format", "json", "--access-log", "enabled") as running:
        lines = running.log.read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    assert {"octavo.server", "octavo.access"} <= {entry["logger"] for entry in entries}
    assert all(line.startswith("{") for line in lines), [line for line in lines if not line.startswith("{")]
