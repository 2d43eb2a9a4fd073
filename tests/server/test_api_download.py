"""`serve --model hf://…`: the server answers while the model comes, says how far it is, and can end at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from octavo_server.contract import ExitCode

from tests.server.hub_server import Handler, Hub


class GatedHandler(Handler):
    """Content waits until the gate opens."""

    def content(self, *arguments: Any, **settings: Any) -> None:
        """As before, but later."""
        gate: threading.Event = self.server.gate  # type: ignore[attr-defined]
        gate.wait(60)
        with contextlib.suppress(ConnectionError):
            super().content(*arguments, **settings)


@pytest.fixture
def gated_hub(model_path: Path) -> Iterator[Hub]:
    """A Hub with one model whose content stays away until `gate` is set."""
    hub = Hub()
    hub.RequestHandlerClass = GatedHandler
    hub.gate = threading.Event()  # type: ignore[attr-defined]
    hub.repositories = {"org/one-gguf": {"smol.gguf": model_path.read_bytes()}}
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.gate.set()  # type: ignore[attr-defined]
    hub.shutdown()
    thread.join()
    hub.server_close()


@contextlib.contextmanager
def serve(hub_url: str, folder: Path, location: str) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """The process, its address, and the file for its last words."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    reason = folder / "reason"
    variables = {"HF_ENDPOINT": hub_url, "HF_HOME": str(folder / "hf"), "OCTAVO_TERMINATION_LOG": str(reason)}
    command = [
        sys.executable, "-m", "octavo_server", "serve", "--model", location, "--host", "127.0.0.1", "--port", str(port),
        "--pool-bytes", str(64 * 2**20), "--max-length", "256", "--drain-notice-seconds", "0", "--cpu-threads", "1",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log)
    try:
        yield process, f"http://127.0.0.1:{port}", reason
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def status(url: str) -> int:
    """Of a GET; 0 while nobody listens."""
    try:
        return httpx.get(url, timeout=5).status_code
    except httpx.HTTPError:
        return 0


def test_health_is_good_and_ready_says_how_far_the_download_is_until_the_model_answers(
    gated_hub: Any, tmp_path: Path, until_sync: Any
) -> None:
    with serve(gated_hub.url, tmp_path, "hf://org/one-gguf") as (process, url, _):
        until_sync(lambda: status(f"{url}/health") == 200, "health is good")
        ready = httpx.get(f"{url}/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "Starting")
        assert "fetching" in ready.json()["message"]
        refused = httpx.post(f"{url}/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert "octavo_requests_received_total 0" in httpx.get(f"{url}/metrics").text
        gated_hub.gate.set()
        until_sync(lambda: status(f"{url}/ready") == 200 or process.poll() is not None, "it is ready", 120)
        assert process.poll() is None, (tmp_path / "log").read_text()
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=60)
        assert answer.json()["model"] == "org/one-gguf"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == ExitCode.ENDED


def test_sigterm_during_a_download_ends_the_server_and_its_child(
    gated_hub: Any, tmp_path: Path, until_sync: Any
) -> None:
    with serve(gated_hub.url, tmp_path, "hf://org/one-gguf") as (process, url, _):
        until_sync(lambda: status(f"{url}/health") == 200, "health is good")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until_sync(lambda: bool(children.read_text().split()), "the download's process is there")
        [child] = children.read_text().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == ExitCode.ENDED
        assert not Path(f"/proc/{child}").exists()


def test_a_download_that_can_not_be_ends_the_server_with_the_reason(gated_hub: Any, tmp_path: Path) -> None:
    with serve(gated_hub.url, tmp_path, "hf://org/nothing") as (process, _, reason):
        assert process.wait(60) == ExitCode.REFUSED
        told = json.loads(reason.read_text())
        assert told["reason"] == "ModelNotFound"
        assert "org/nothing" in told["message"]
