"""Fetching into the store: breaks, resumption, checksums, locks, space, and what is told meanwhile."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from octavo_server.fetching.origin import Interrupted, RemoteFile
from octavo_server.fetching.progress import Progress, ProgressServer, told
from octavo_server.fetching.store import Store
from octavo_server.fetching.transfer import TransferSettings, checksum_of, fetch_files
from octavo_server.termination import Refused

from tests.server.hub_server import Hub

PIECE = 64 * 1024
QUICK = TransferSettings(workers=3, piece_bytes=PIECE, first_wait_seconds=0.001, longest_wait_seconds=0.01)


def content(size: int, seed: int = 0) -> bytes:
    return hashlib.shake_256(str(seed).encode()).digest(size)


class Source:
    """A model in memory that breaks as it is told."""

    location = "hf://org/model"
    name = "org/model"

    def __init__(self, **contents: bytes) -> None:
        self.contents = {name.replace("_", "."): data for name, data in contents.items()}
        self.asked: list[tuple[str, int, int]] = []
        self.breaks: list[int] = []
        """Each number ends one answer after so many bytes."""
        self.wrong = 0
        self.hold: threading.Event | None = None
        self._lock = threading.Lock()

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        return tuple(
            RemoteFile(name, len(data), hashlib.sha256(data).hexdigest(), f"sha256:{hashlib.sha256(data).hexdigest()}")
            for name, data in sorted(self.contents.items())
        )

    @contextlib.contextmanager
    def open(self, file: RemoteFile, start: int, size: int) -> Iterator[Iterator[bytes]]:
        with self._lock:
            self.asked.append((file.path, start, size))
            cut = self.breaks.pop(0) if self.breaks else size
            wrong = self.wrong > 0
            self.wrong -= wrong
        yield self._pieces(file, start, size, cut, wrong)

    def _pieces(self, file: RemoteFile, start: int, size: int, cut: int, wrong: bool) -> Iterator[bytes]:
        data = self.contents[file.path][start : start + size]
        if wrong:
            data = bytes([data[0] ^ 1]) + data[1:]
        for at in range(0, min(cut, size), 4096):
            if self.hold is not None:
                assert self.hold.wait(30)
            yield data[at : min(at + 4096, cut)]
        if cut < size:
            raise Interrupted("connection reset")


def fetch(source: Source, folder: Path, settings: TransferSettings = QUICK, progress: Progress | None = None) -> Path:
    return fetch_files(source, Store(folder / "cache"), folder / "model", progress or Progress(), settings)


def test_a_transfer_that_breaks_again_and_again_goes_on_at_the_byte_it_broke_at(tmp_path: Path) -> None:
    source = Source(a_safetensors=content(10 * PIECE + 7), config_json=b"{}")
    source.breaks = [10_000, 1, 0, 65_535, 4096, 20_000, 0, 30_000]
    folder = fetch(source, tmp_path)
    assert (folder / "a.safetensors").read_bytes() == source.contents["a.safetensors"]
    # What arrived was never asked for again: each request starts where the bytes before it ended.
    fetched = sum(size for _, _, size in source.asked)
    assert fetched < 10 * PIECE + 7 + 2 + len(source.asked) * PIECE
    starts = [start for name, start, _ in source.asked if name == "a.safetensors" and start % PIECE]
    assert 10_000 in {start % PIECE for start in starts}


def test_a_source_that_gives_nothing_any_more_is_told_and_what_was_fetched_is_kept(tmp_path: Path) -> None:
    source = Source(a_safetensors=content(6 * PIECE))
    source.breaks = [PIECE, PIECE, PIECE] + [0] * 60
    with pytest.raises(Refused) as refused:
        fetch(source, tmp_path)
    assert refused.value.reason == "SourceUnreachable"
    assert "what was fetched is kept" in refused.value.message
    source.breaks, source.asked = [], []
    fetch(source, tmp_path)
    assert 0 < sum(size for _, _, size in source.asked) <= 3 * PIECE


def test_a_file_that_arrives_wrong_is_thrown_away_and_fetched_once_more(tmp_path: Path) -> None:
    source = Source(a_safetensors=content(3 * PIECE))
    source.wrong = 1
    progress = Progress()
    folder = fetch(source, tmp_path, progress=progress)
    assert (folder / "a.safetensors").read_bytes() == source.contents["a.safetensors"]
    assert progress.report()["presentBytes"] == progress.report()["totalBytes"]
    source = Source(b_safetensors=content(3 * PIECE, 1))
    source.wrong = 100
    with pytest.raises(Refused, match="the source says sha256:") as refused:
        fetch(source, tmp_path)
    assert refused.value.reason == "ModelUnreadable"
    assert not list((tmp_path / "cache" / "parts").iterdir())


def test_two_models_that_hold_the_same_file_fetch_it_once(tmp_path: Path) -> None:
    shared = content(2 * PIECE)
    first, second = Source(a_safetensors=shared, config_json=b"{}"), Source(b_safetensors=shared, config_json=b"[]")
    store = Store(tmp_path / "cache")
    fetch_files(first, store, tmp_path / "one", Progress(), QUICK)
    fetch_files(second, store, tmp_path / "two", Progress(), QUICK)
    assert [name for name, _, _ in second.asked] == ["config.json"]
    assert (tmp_path / "two" / "b.safetensors").read_bytes() == shared
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["b.safetensors", "config.json"]


def test_a_folder_shows_the_present_revision_alone(tmp_path: Path) -> None:
    fetch(Source(a_safetensors=content(100), old_json=b"1"), tmp_path)
    folder = fetch(Source(a_safetensors=content(100, 1), new_json=b"2"), tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["a.safetensors", "new.json"]
    assert (folder / "a.safetensors").read_bytes() == content(100, 1)


def test_a_second_process_waits_for_the_first_and_fetches_nothing(tmp_path: Path) -> None:
    source = Source(a_safetensors=content(2 * PIECE))
    source.hold = threading.Event()
    first = threading.Thread(target=fetch, args=(source, tmp_path))
    first.start()
    until(lambda: bool(source.asked))
    other, progress = Source(a_safetensors=content(2 * PIECE)), Progress()
    second = threading.Thread(target=fetch, args=(other, tmp_path, QUICK, progress))
    second.start()
    until(lambda: progress.report()["state"] == "Waiting")
    assert "another process fetches the rest" in progress.sentence()
    source.hold.set()
    first.join(30)
    second.join(30)
    assert other.asked == []
    assert progress.report() == {**progress.report(), "state": "Complete", "presentBytes": 2 * PIECE}


def test_a_model_that_does_not_fit_is_refused_before_a_byte_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(a_safetensors=content(4 * PIECE))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=3 * PIECE))
    with pytest.raises(Refused, match="GiB free") as refused:
        fetch(source, tmp_path)
    assert (refused.value.reason, source.asked) == ("NoSpaceLeft", [])


def test_a_disk_that_fills_meanwhile_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Refused) as refused:
        fetch(Source(a_safetensors=content(100)), tmp_path)
    assert refused.value.reason == "NoSpaceLeft"


def test_the_report_says_percent_size_speed_and_time_left() -> None:
    now = [0.0]
    progress = Progress(lambda: now[0])
    progress.begin(16_320_875_724, 0)
    now[0] = 50.0
    progress.add(6_040_000_000)
    assert progress.sentence() == "37 % of 15.2 GiB, 115 MiB/s, 1 min 26 s left"
    progress.interrupted()
    assert progress.sentence().endswith("resumed 1 times")
    assert told({**progress.report(), "state": "Waiting"}).startswith("37 % of 15.2 GiB, another process")


def test_progress_is_served_while_a_fetch_runs_and_not_after(tmp_path: Path) -> None:
    source, progress = Source(a_safetensors=content(2 * PIECE)), Progress()
    source.hold = threading.Event()
    with ProgressServer(progress, "127.0.0.1:0") as server:
        thread = threading.Thread(target=fetch, args=(source, tmp_path, QUICK, progress))
        thread.start()
        address = f"http://127.0.0.1:{server.port}/progress"

        def asked() -> dict[str, Any]:
            answer: dict[str, Any] = json.load(urllib.request.urlopen(address, timeout=10))
            return answer

        until(lambda: asked()["state"] == "Fetching")
        assert (asked()["presentBytes"], asked()["totalBytes"]) == (0, 2 * PIECE)
        source.hold.set()
        thread.join(30)
        assert asked()["state"] == "Complete"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


@pytest.mark.parametrize("kind", ["sha256", "md5", "git-sha1"])
def test_checksums_are_those_of_the_sources(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello\n")
    known = {
        "sha256": "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        "md5": "b1946ac92492d2347c6235b4d2611184",
        "git-sha1": "ce013625030ba8dba906f756967f9e9ca394464a",
    }
    assert checksum_of(path, f"{kind}:x") == f"{kind}:{known[kind]}"


def until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


# Against a Hub, as users start it.


@pytest.fixture
def hub(model_path: Path) -> Iterator[Hub]:
    hub = Hub()
    hub.repositories = {"org/one-gguf": {"smol.gguf": model_path.read_bytes()}}
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.stopping.set()
    hub.shutdown()
    thread.join()
    hub.server_close()


def command(hub: Hub, tmp_path: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    words = ["fetch", "--model", "hf://org/one-gguf", "--to", str(tmp_path / "model")]
    words += ["--cache", str(tmp_path / "cache"), *arguments]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_right"}
    return [sys.executable, "-m", "octavo_server", *words], environment


def test_broken_connections_to_the_hub_are_resumed_by_range_and_the_token_stays_with_it(
    hub: Hub, tmp_path: Path
) -> None:
    hub.private = {"org/one-gguf"}
    hub.breaks_after = [3_000_000, 0, 100_000, 7_000_000]
    words, environment = command(hub, tmp_path)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    size = len(hub.repositories["org/one-gguf"]["smol.gguf"])
    assert (tmp_path / "model" / "smol.gguf").stat().st_size == size
    assert "going on there" in done.stderr
    assert hub.served_bytes < size + 1_000_000
    assert {token for _, token, _ in hub.requests} == {""}, "the content's host was sent the Hub's token"
    assert all(asked.startswith("bytes=") for _, _, asked in hub.requests)


def test_a_fetch_that_was_killed_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    size = len(hub.repositories["org/one-gguf"]["smol.gguf"])
    hub.slow_seconds = 0.005
    words, environment = command(hub, tmp_path, "--connections", "1")
    process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: hub.served_bytes > 70_000_000 or process.poll() is not None, 120)
    process.kill()
    process.wait()
    hub.slow_seconds, before = 0.0, hub.served_bytes
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "64 MiB of it are here already" in done.stderr
    assert hub.served_bytes - before < size - 60_000_000
    assert (tmp_path / "model" / "smol.gguf").read_bytes() == hub.repositories["org/one-gguf"]["smol.gguf"]


def test_a_fetch_that_waits_for_another_goes_on_where_that_one_died(hub: Hub, tmp_path: Path) -> None:
    hub.slow_seconds = 0.005
    words, environment = command(hub, tmp_path, "--connections", "1")
    holder = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: hub.served_bytes > 70_000_000 or holder.poll() is not None, 120)
        log = (tmp_path / "log").open("w")
        waiting = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        try:
            told = tmp_path / "log"
            until(lambda: "is being fetched by another process" in told.read_text(), 60)
            holder.kill()
            holder.wait()
            hub.slow_seconds, before = 0.0, hub.served_bytes
            assert waiting.wait(120) == 0, told.read_text()
        finally:
            waiting.kill()
            log.close()
    finally:
        holder.kill()
    size = len(hub.repositories["org/one-gguf"]["smol.gguf"])
    assert "64 MiB of it are here already" in told.read_text()
    assert hub.served_bytes - before < size - 60_000_000
    assert (tmp_path / "model" / "smol.gguf").read_bytes() == hub.repositories["org/one-gguf"]["smol.gguf"]


def test_a_server_without_ranges_is_used_all_the_same(hub: Hub, tmp_path: Path) -> None:
    hub.knows_ranges, hub.breaks_after = False, [2_000_000]
    words, environment = command(hub, tmp_path, "--connections", "2")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "smol.gguf").read_bytes() == hub.repositories["org/one-gguf"]["smol.gguf"]
