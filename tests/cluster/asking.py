"""A client that asks a service all the time, so that a gap in its answers is seen."""

from __future__ import annotations

import threading
import time

from scripts.demo_chat import ChatFailed, stream_chat

QUESTION = "What is the capital of France?"


class Client(threading.Thread):
    """Asks short questions one after another until told to stop, and keeps what failed."""

    def __init__(self, address: str, model: str) -> None:
        super().__init__(daemon=True)
        self.address, self.model = address, model
        self.answered = 0
        self.failed: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                stream_chat(self.address, self.model, QUESTION, max_tokens=4)
                self.answered += 1
            except (ChatFailed, OSError, ValueError) as error:
                self.failed.append(f"{time.strftime('%H:%M:%S')} {error!r}")

    def __enter__(self) -> Client:
        self.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.stopping.set()
        self.join(60)
