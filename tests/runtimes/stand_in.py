"""A program that behaves like `vllm serve`, SGLang's or MLC's server as far as the operator sees: arguments, probes,
chat, metrics under the recorded names, and the end on SIGTERM.

Run as `stand_in.py VLLM|SGLang|MLC ARGUMENTS…`. STAND_IN_LOAD (JSON: running, waiting, used, capacity, finished) sets
what its metrics tell; PUT /load changes it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
LOAD = {"running": 0, "waiting": 0, "used": 0, "capacity": 16000, "finished": 0, "preemptions": 0}


def parse(runtime: str, words: list[str]) -> argparse.Namespace:
    """Takes the flags that the real program takes, and ends with 2 for another."""
    parser = argparse.ArgumentParser(prog=runtime, allow_abbrev=False)
    if runtime == "VLLM":
        parser.add_argument("command", choices=["serve"])
    if runtime in ("VLLM", "MLC"):
        parser.add_argument("model")
    flags = [name for name in RECORDED[runtime]["flags"] if name != "--model"]
    for name in flags:
        switch = name.startswith(("--enable-", "--disable-", "--no-"))
        choices = RECORDED[runtime]["choices"].get(name)
        if name == "--overrides":
            parser.add_argument(name, type=overrides)
        elif switch and runtime == "VLLM":
            parser.add_argument(name, action=argparse.BooleanOptionalAction)
        elif switch:
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, choices=choices)
    return parser.parse_args(words)


def overrides(text: str) -> dict[str, float]:
    """MLC's engine settings in one argument; ends with 2 for a name that it does not know."""
    found = dict(part.split("=", 1) for part in text.split(";") if part)
    unknown = sorted(set(found) - set(RECORDED["MLC"]["overrides"]))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
    return {name: float(value) for name, value in found.items()}


def metrics(runtime: str, load: dict[str, Any]) -> str:
    """The text of /metrics, under the names that the real program's source holds."""
    if runtime == "MLC":
        # Sums over all requests, as its text form shows them; nothing tells what runs or waits now.
        return "# be careful\n" + "".join(f"{name}\t{load['finished']}\n" for name in RECORDED["MLC"]["metrics"])
    if runtime == "VLLM":
        names, labels = "vllm:", '{engine="0",model_name="m"}'
        values = {
            "num_requests_running": load["running"],
            "num_requests_waiting": load["waiting"],
            "kv_cache_usage_perc": load["used"] / load["capacity"],
            "num_preemptions_total": load["preemptions"],
            "request_success_total": load["finished"],
        }
        size = f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{load["capacity"] // 16}"}} 1.0\n'
    else:
        names, labels, size = "sglang:", '{model_name="m",tp_rank="0"}', ""
        values = {
            "num_running_reqs": load["running"],
            "num_queue_reqs": load["waiting"],
            "num_used_tokens": load["used"],
            "max_total_num_tokens": load["capacity"],
            "num_requests_total": load["finished"],
        }
    for name in values:
        known = RECORDED[runtime]["metrics"]
        # A counter's series end in _total whatever it is called where it is made.
        assert f"{names}{name}" in known or f"{names}{name.removesuffix('_total')}" in known, name
    return "".join(f"{names}{name}{labels} {float(value)}\n" for name, value in values.items()) + size


def handler(runtime: str, name: str, key: str, load: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def reply(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/health" and runtime != "MLC":
                self.reply(b"")
            elif path == "/metrics":
                self.reply(metrics(runtime, load).encode(), "text/plain; version=0.0.4")
            elif path == "/v1/models":
                self.reply(json.dumps({"object": "list", "data": [{"id": name, "object": "model"}]}).encode())
            else:
                self.reply(b"", status=404)

        def do_PUT(self) -> None:
            load.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.reply(b"{}")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if key and self.headers.get("Authorization") != f"Bearer {key}":
                self.reply(b"{}", status=401)
                return
            message = {"role": "assistant", "content": f"{runtime} answers"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.reply(json.dumps({"object": "chat.completion", "model": name, "choices": [choice]}).encode())

    return Handler


def main(runtime: str, words: list[str]) -> None:
    flags = parse(runtime, words)
    key = getattr(flags, "api_key", "") or os.environ.get("VLLM_API_KEY", "")
    load = {**LOAD, **json.loads(os.environ.get("STAND_IN_LOAD", "{}"))}
    name = str(flags.model if runtime == "MLC" else flags.served_model_name)
    server = ThreadingHTTPServer((flags.host, int(flags.port)), handler(runtime, name, key, load))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    stop.wait()
    server.shutdown()
    thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
