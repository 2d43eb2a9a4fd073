"""Files into an accelerator's memory at the speed of disk or bus: pieces read and copied side by side.

A worker reads a piece into pinned memory and queues its copy on a stream of its own; while one piece is copied others
are read. Mapped files would be read one page fault after another, and copied through a hidden buffer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

_WORKERS = 8
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Reading:
    """Bytes on their way. `wait` returns them, uint8 `[size]` on the device, or raises what reading raised."""

    tensor: torch.Tensor
    pieces: list[Future[None]]

    def wait(self) -> torch.Tensor:
        """The bytes, once all of them are there."""
        for piece in self.pieces:
            piece.result()
        return self.tensor


class DeviceReader:
    """Reads parts of files into tensors of one device; `close` ends its threads and frees its pinned memory."""

    def __init__(self, device: torch.device, *, workers: int = _WORKERS, piece_bytes: int = _PIECE_BYTES) -> None:
        self._device = device
        self._piece_bytes = piece_bytes
        self._on_gpu = device.type == "cuda"
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="weights")
        self._rooms: SimpleQueue[tuple[torch.Tensor, Any]] = SimpleQueue()
        for _ in range(workers):
            stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]
            self._rooms.put((torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=self._on_gpu), stream))
        self._files: dict[Path, int] = {}

    def start(self, path: Path, offset: int, size: int) -> Reading:
        """Begins to read `size` bytes from `offset`; raises OSError where the file can't be opened."""
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        target = torch.empty(size, dtype=torch.uint8, device=self._device)
        # The memory may have been another tensor's until now, which queued work still reads.
        free = torch.cuda.current_stream(self._device).record_event() if self._on_gpu else None
        pieces = []
        for at in range(0, size, self._piece_bytes):
            piece = target[at : at + self._piece_bytes]
            pieces.append(self._threads.submit(self._piece, self._files[path], path, offset + at, piece, free))
        return Reading(target, pieces)

    def close(self) -> None:
        """Waits for what is being read."""
        self._threads.shutdown()
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _piece(self, file: int, path: Path, offset: int, target: torch.Tensor, free: Any) -> None:
        room, stream = self._rooms.get()
        try:
            size = len(target)
            fill(room.numpy().data[:size], lambda into, at: os.preadv(file, [into], offset + at), path)
            if stream is None:
                target.copy_(room[:size])
                return
            with torch.cuda.stream(stream):
                stream.wait_event(free)
                target.copy_(room[:size], non_blocking=True)
            stream.synchronize()
        finally:
            self._rooms.put((room, stream))


def fill(into: memoryview, read: Callable[[memoryview, int], int], path: Path) -> None:
    """Reads until `into` is full, however little a read gives; raises OSError where the file ends before."""
    done = 0
    while done < len(into):
        count = read(into[done:], done)
        if count == 0:
            raise OSError(f"{path} ended {len(into) - done} bytes early while it was read")
        done += count
