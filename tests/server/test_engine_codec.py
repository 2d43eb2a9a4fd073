"""The socket's codec: what goes in comes out, in any pieces, and nonsense is refused."""

from __future__ import annotations

import msgpack
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_server.engine.codec import (
    MAX_FRAME_BYTES,
    CodecError,
    FrameBuffer,
    decode,
    decode_slices,
    encode,
    frame,
)
from octavo_server.engine.digests import digest_seed, digests
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

LOGPROBS = TokenLogprobs(3, -0.5, 2, [1, 3], [-0.25, -0.5])
MESSAGES: list[Message] = [
    Submit(1 << 48, b"\1\0\0\0", SamplingParams(logit_bias={5: -1.5}, stop_token_ids=[2], seed=2**64 - 1), 7),
    Submit(2, b"", SamplingParams(), 1, [b"a" * 32], b"s" * 32, -3, b"\2\0\0\0"),
    Abort(1, 4),
    Outputs([RequestOutput(1, [5, 6], [LOGPROBS, LOGPROBS], [None, LOGPROBS], 16), RequestOutput(2, [9], [])]),
    Outputs([]),
    Finished(1, "stop", "", 2),
    Progress("weights", 40),
    Ready("m", 10, 20, 16, 320, "cpu", "float32", "None", "CPU", ["why"]),
    StartupFailed("MaxLengthTooLong", "said in one line"),
    Stats(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, [0.5, 0.25]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_the_same_after_the_socket(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 7))
def test_the_slices_of_a_step_are_its_outputs_in_order_each_of_at_most_so_many(
    others: int, plain: int, most: int
) -> None:
    listed = [RequestOutput(number, [1, 2], [LOGPROBS, LOGPROBS]) for number in range(others)]
    alone = range(100, 100 + plain)
    tokens = numpy.arange(plain, dtype=numpy.int64)
    step = Outputs(PlainOutputs(numpy.array(alone, dtype=numpy.uint64), tokens, listed))
    slices = list(decode_slices(encode(step), most))
    assert all(isinstance(part, Outputs) and 0 < len(part.outputs) <= most for part in slices)
    found = [one for part in slices if isinstance(part, Outputs) for one in part.outputs]
    assert found == listed + [RequestOutput(number, [number - 100], []) for number in alone]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_whatever_is_no_step_comes_as_one_slice(message: Message) -> None:
    slices = list(decode_slices(encode(message), 1000))
    assert slices == ([] if message == Outputs([]) else [message])


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", msgpack.packb(["Outputs", [], b"12345678", b""]), msgpack.packb(["Outputs", [], b"", b"123"])],
)
def test_a_damaged_step_ends_the_line_also_in_slices(payload: bytes) -> None:
    with pytest.raises(CodecError):
        list(decode_slices(payload, 10))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=200))
def test_frames_are_found_however_the_stream_is_cut(cuts: list[int]) -> None:
    stream = b"".join(frame(encode(message)) for message in MESSAGES)
    buffer, received, position, turn = FrameBuffer(), [], 0, 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        received += [decode(payload) for payload in buffer.feed(stream[position : position + size])]
        position, turn = position + size, turn + 1
    assert received == MESSAGES


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgpack.packb(["Nobody"]), msgpack.packb(["Abort"]), msgpack.packb(3)]
)
def test_bytes_that_are_no_message_raise_one_kind_of_error(payload: bytes) -> None:
    with pytest.raises(CodecError):
        decode(payload)


def test_a_length_above_the_limit_is_refused_before_anything_is_stored() -> None:
    with pytest.raises(CodecError, match=str(MAX_FRAME_BYTES)):
        list(FrameBuffer().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


def test_an_adapter_name_cannot_imitate_a_salt() -> None:
    seeds = {
        digest_seed(adapter, salt) for adapter, salt in [("ab", ""), ("a", "b"), ("", "ab"), ("", ""), ("a\0b", "")]
    }
    assert len(seeds) == 5


def test_only_full_blocks_have_digests_and_each_depends_on_all_before() -> None:
    seed = digest_seed()
    tokens = b"".join(token.to_bytes(4, "little") for token in range(19))
    chain = digests(tokens, 8, seed)
    changed = digests(b"\xff" + tokens[1:], 8, seed)
    assert len(chain) == 2
    assert not set(chain) & set(changed)
    assert digests(tokens[: 16 * 4], 8, seed) == chain
