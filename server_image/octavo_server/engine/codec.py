"""Bytes on the socket between API processes and the engine: msgpack arrays in length-prefixed frames.

`encode` and `decode` turn one message into one payload and back; `frame` puts the length in front; `FrameBuffer` finds
payloads in a stream of bytes that arrives in any pieces. Nothing here imports torch: API processes use it as well.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import msgpack  # type: ignore[import-untyped]

from octavo_server.engine.messages import (
    Abort,
    Finished,
    Message,
    Outputs,
    PlainOutputs,
    Progress,
    Ready,
    RequestOutput,
    SamplingParams,
    StartupFailed,
    Stats,
    Submit,
    TokenLogprobs,
)

MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Submit, Abort, Outputs, Finished, Progress, Ready, StartupFailed, Stats)
}
_FIELDS: dict[type[Any], tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind))
    for kind in (*_KINDS.values(), SamplingParams, RequestOutput, TokenLogprobs)
}


class CodecError(ValueError):
    """Bytes that are no message of this contract; the connection they came from can't be trusted any further."""


def encode(message: Message) -> bytes:
    """The payload of one message, without the length in front."""
    values = _outputs(message) if isinstance(message, Outputs) else _plain(message)
    payload: bytes = msgpack.packb([type(message).__name__, *values], use_bin_type=True)
    return payload


def decode(payload: bytes) -> Message:
    """The message of one payload. Raises CodecError for anything that `encode` does not make."""
    try:
        kind, *values = msgpack.unpackb(payload, raw=False, strict_map_key=False)
        return _build(kind, values)
    except CodecError:
        raise
    except Exception as error:
        raise CodecError(f"not a message: {error}") from error


def decode_slices(payload: bytes, most: int) -> Iterator[Message]:
    """Like `decode`, with the outputs of a step in several messages of at most `most` each, and none where there are
    none. Each is built when it is asked for, so that a step of thousands of requests need not be built in one go.
    Raises CodecError as `decode` does, perhaps only at a later slice."""
    try:
        kind, *values = msgpack.unpackb(payload, raw=False, strict_map_key=False)
        if kind != "Outputs":
            yield _build(kind, values)
            return
        others, request_ids, tokens = values
        if len(request_ids) != 2 * len(tokens) or len(tokens) % 4:
            raise CodecError(f"{len(request_ids)} bytes of request ids for {len(tokens)} bytes of tokens")
        for start in range(0, len(others), most):
            yield _build(kind, [others[start : start + most], b"", b""])
        for start in range(0, len(tokens) // 4, most):
            stop = start + most
            yield _build(kind, [(), request_ids[8 * start : 8 * stop], tokens[4 * start : 4 * stop]])
    except CodecError:
        raise
    except Exception as error:
        raise CodecError(f"not a message: {error}") from error


def frame(payload: bytes) -> bytes:
    """A payload with its 4-byte big-endian length in front."""
    if len(payload) > MAX_FRAME_BYTES:
        raise CodecError(f"message of {len(payload)} bytes is longer than the limit of {MAX_FRAME_BYTES} bytes")
    return _LENGTH.pack(len(payload)) + payload


class FrameBuffer:
    """Collects received bytes; `feed` yields every payload that is complete."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Adds bytes and yields complete payloads in order. Raises CodecError for a length above MAX_FRAME_BYTES."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._data, start)
                if length > MAX_FRAME_BYTES:
                    raise CodecError(f"frame of {length} bytes is longer than the limit of {MAX_FRAME_BYTES} bytes")
                end = start + _LENGTH.size + length
                if len(self._data) < end:
                    return
                payload = bytes(self._data[start + _LENGTH.size : end])
                start = end
                yield payload
        finally:
            del self._data[:start]


def _outputs(message: Outputs) -> list[Any]:
    """Outputs with anything but one token, then ids (uint64) and tokens (int32, little endian) of the plain ones."""
    outputs = message.outputs
    if isinstance(outputs, PlainOutputs):
        others, ids, tokens = outputs.others, outputs.request_ids, outputs.tokens
        return [[_plain(one) for one in others], ids.astype("<u8").tobytes(), tokens.astype("<i4").tobytes()]
    return [[_plain(one) for one in outputs], b"", b""]


def _plain(value: Any) -> list[Any]:
    """Field values of a message in order, nested messages as arrays of their own."""
    return [_plain_field(getattr(value, name)) for name in _FIELDS[type(value)]]


def _plain_field(value: Any) -> Any:
    if type(value) in _FIELDS:
        return _plain(value)
    if isinstance(value, list) and value and not isinstance(value[0], int | float | bytes):
        return [_plain_field(item) for item in value]
    return value


def _build(kind: object, values: list[Any]) -> Message:
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CodecError(f"unknown kind of message: {kind!r}")
    if kind == "Submit":
        values[2] = SamplingParams(*values[2])
    elif kind == "Outputs":
        outputs, request_ids, tokens = values
        count = len(tokens) // 4
        plain = zip(struct.unpack(f"<{count}Q", request_ids), struct.unpack(f"<{count}i", tokens), strict=True)
        values = [[_output(item) for item in outputs] + [RequestOutput(number, [token], []) for number, token in plain]]
    message: Message = _KINDS[kind](*values)
    return message


def _output(values: list[Any]) -> RequestOutput:
    values[2] = [TokenLogprobs(*item) for item in values[2]]
    if len(values) > 3 and values[3] is not None:
        values[3] = [None if item is None else TokenLogprobs(*item) for item in values[3]]
    return RequestOutput(*values)
