# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Logit transforms that come with the library. They need Triton; so does the import of this module."""

import torch
import triton
import triton.language as tl

from octavo_kernels.shape import LogitTransform


@triton.jit
def _alibi(scores, query_position, key_position, query_head, values):
    return scores + tl.load(values[0] + query_head) * (key_position - query_position).to(tl.float32)


def _alibi_reference(scores, query_position, key_position, query_head, values):
    return scores + values[0].to(scores)[query_head] * (key_position - query_position)


def alibi(slopes: torch.Tensor) -> LogitTransform:
    """Attention with linear biases (Press et al. 2022): a score falls by its head's slope for each token of distance.

    slopes: float32 `[query_heads]`, on the device of q. Raises ValueError for another dtype or shape.
    """
    if slopes.dim() != 1 or slopes.dtype != torch.float32:
        raise ValueError(f"slopes is {slopes.dtype} {list(slopes.shape)}; it must be float32 [query_heads]")
    return LogitTransform(_alibi, _alibi_reference, (slopes,))
