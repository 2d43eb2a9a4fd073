# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""What kernels share that bring a weight near for the next product (prefetch.py)."""

import triton
import triton.language as tl


@triton.jit
def bring_near(ptr, stride, chunks, program, programs, LANES: tl.constexpr):
    """Asks for chunks of 1,024 bytes, `stride` bytes apart, to be brought into the L2 cache; waits for none of them."""
    base = ptr.to(tl.int64)
    lane = tl.arange(0, LANES)
    for first in range(program * LANES, chunks, programs * LANES):
        # What lies beyond the last one asks for that once more, which costs nothing.
        chunk = tl.minimum(first + lane, chunks - 1)
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], 1024; mov.u32 $0, 0;",
            "=r,l",
            [base + chunk.to(tl.int64) * stride],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
