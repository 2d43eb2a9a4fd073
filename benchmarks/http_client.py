"""A client for thousands of streams that costs little: plain sockets in one process, events looked at after the run.

`python http_client.py PORT STREAMS MAX_TOKENS` opens all connections, sends one streaming chat request on each, reads
until every stream has ended, and prints one JSON object: streams that ended rightly, events, characters, seconds, and
the time of each piece that arrived if `--times` is given. It needs Python's standard library alone.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import time

_CONTENT = re.compile(rb'"content":\s?"((?:[^"\\]|\\.)*)"')
_END = b"0\r\n\r\n"


class Stream:
    """One connection with one request."""

    def __init__(self, number: int, channel: socket.socket) -> None:
        self.number = number
        self.channel = channel
        self.pieces: list[tuple[int, bytes]] = []
        self.kept = b""
        self.size = 0
        self.events = 0
        self.characters = 0
        self.done = False
        self.status = 0


def run(
    port: int, count: int, max_tokens: int, *, model: str, keep: bool, slow: int, seconds: float
) -> dict[str, object]:
    """All streams to their ends. slow: that many streams read nothing until the others have ended."""
    body = json.dumps({
        "model": model, "messages": [{"role": "user", "content": "count"}], "max_tokens": max_tokens, "stream": True,
    }).encode()  # fmt: skip
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    selector = selectors.DefaultSelector()
    streams: list[Stream] = []
    for number in range(count):
        channel = socket.socket()
        if number < slow:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        channel.connect(("127.0.0.1", port))
        channel.setblocking(False)
        streams.append(Stream(number, channel))
    began = time.perf_counter()
    for stream in streams:
        stream.channel.sendall(request)
        if stream.number >= slow:
            selector.register(stream.channel, selectors.EVENT_READ, stream)
    open_streams = count - slow
    deadline = time.monotonic() + seconds
    fast_done = 0.0
    while open_streams and time.monotonic() < deadline:
        for key, _ in selector.select(1.0):
            stream = key.data
            try:
                data = stream.channel.recv(1 << 16)
            except ConnectionError:
                data = b""
            now = time.monotonic_ns()
            stream.size += len(data)
            if keep:
                stream.pieces.append((now, data))
            else:
                look(stream, data)
            if not data or data.endswith(_END):
                stream.done = data.endswith(_END)
                selector.unregister(stream.channel)
                stream.channel.close()
                open_streams -= 1
                if not open_streams and not fast_done:
                    fast_done = time.perf_counter() - began
                    for late in streams[:slow]:
                        selector.register(late.channel, selectors.EVENT_READ, late)
                        open_streams += 1
    for stream in streams:
        if keep:
            for _, data in stream.pieces:
                look(stream, data)
    return {
        "seconds": fast_done or time.perf_counter() - began,
        "ended": sum(stream.done for stream in streams),
        "complete": sum(complete(stream.kept) for stream in streams),
        "errors": sum(b'"error"' in stream.kept for stream in streams),
        "ok": sum(stream.status == 200 for stream in streams),
        "events": sum(stream.events for stream in streams),
        "characters": sum(stream.characters for stream in streams),
        "bytes": sum(stream.size for stream in streams),
        "pieces": [
            (at, stream.number, [text.decode() for text in _CONTENT.findall(data)])
            for stream in streams for at, data in stream.pieces
        ] if keep else [],
    }  # fmt: skip


def complete(end: bytes) -> bool:
    """Whether a stream's last bytes are those of one that reached its limit of tokens."""
    return b"[DONE]" in end and b'"finish_reason":"length"' in end.replace(b": ", b":")


def look(stream: Stream, data: bytes) -> None:
    """Counts what a piece holds; the last 600 bytes are kept, which hold the end of a stream."""
    if not stream.status and data:
        stream.status = int(data[9:12])
    stream.events += data.count(b"data: ")
    for text in _CONTENT.findall(data):
        stream.characters += len(text)
    stream.kept = (stream.kept + data)[-600:]


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("streams", type=int)
    parser.add_argument("max_tokens", type=int)
    parser.add_argument("--model", default="dummy")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--slow", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300.0)
    given = parser.parse_args()
    result = run(
        given.port, given.streams, given.max_tokens, model=given.model, keep=given.times, slow=given.slow,
        seconds=given.seconds,
    )  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
