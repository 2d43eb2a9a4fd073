"""The torch path of appends, and what of a step can be prepared for all of its layers.

What depends on the step alone (where each token goes, its angles) can be prepared once by `plan_append` and passed to
every layer's call; that saves most of the time on a CPU, where each small torch operation costs microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from octavo_kernels.shape import FP8

LARGEST_FP8 = 448.0
"""The largest finite number of e4m3; what is larger is stored as it."""


@dataclass(frozen=True)
class AppendPlan:
    """A step's part of an append, valid for every layer with the same number of KV heads and the same page size.

    kv_heads, page_size: what it was made for.
    rows: int64 `[written, 2 · kv_heads]`, rows of the pool seen as `[pages · 2 · kv_heads · page_size, head_size]`,
        K of each head first, then V of each head.
    written: int64 `[written]`, the tokens whose slot is not −1, or None when all are written.
    cos, sin: float32 `[tokens, 1, rope_size]`, ready for x · cos + half_swapped(x) · sin; None without rope.
    interleaved: whether pairs are neighbours (2i, 2i + 1) or halves (i, i + rope_size / 2).
    """

    kv_heads: int
    page_size: int
    rows: torch.Tensor
    written: torch.Tensor | None
    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None
    interleaved: bool = False


def plan_append(
    slot_mapping: torch.Tensor,
    *,
    kv_heads: int,
    page_size: int,
    positions: torch.Tensor | None = None,
    cos_sin: torch.Tensor | None = None,
    interleaved: bool = False,
) -> AppendPlan:
    """Prepares one step's appends for the torch path (host memory).

    slot_mapping: int64 `[tokens]`, page · page_size + offset; −1 writes nothing.
    positions: int64 `[tokens]`, with cos_sin float32 `[max_positions, rope_size]` (cosines first, then sines).
    """
    kept = slot_mapping >= 0
    written = None if bool(kept.all()) else kept.nonzero().squeeze(1)
    slots = slot_mapping if written is None else slot_mapping[written]
    page = torch.div(slots, page_size, rounding_mode="floor")
    offset = slots - page * page_size
    lanes = torch.arange(2 * kv_heads, device=slots.device)
    rows = (page[:, None] * (2 * kv_heads) + lanes) * page_size + offset[:, None]
    cos = sin = None
    if positions is not None and cos_sin is not None:
        cos, sin = _full_angles(cos_sin[positions], interleaved)
    return AppendPlan(kv_heads, page_size, rows, written, cos, sin, interleaved)


def rotate_(
    q: torch.Tensor,
    k: torch.Tensor,
    plan: AppendPlan,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> None:
    """Normalises and rotates q and k in place; arguments as those of rope_append_kv, checked.

    Raises ValueError where the plan has no angles.
    """
    if plan.cos is None or plan.sin is None:
        raise ValueError("the append plan has no angles; give plan_append positions and cos_sin")
    if q_norm is not None and k_norm is not None:
        for heads, weight in ((q, q_norm), (k, k_norm)):
            normed = F.rms_norm(_wide(heads), weight.shape, _wide(weight).to(_wide(heads).dtype), eps)
            _rotate_(normed, plan.cos, plan.sin, plan.interleaved)
            heads.copy_(normed)
        return
    merged = _adjacent_heads(q, k)
    for heads in (q, k) if merged is None else (merged,):
        _rotate_(heads, plan.cos, plan.sin, plan.interleaved)


def write(k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, plan: AppendPlan, scales: torch.Tensor | None) -> None:
    """Puts k and v into the pool's rows; arguments as those of append_kv, checked. Raises ValueError for another pool's
    plan."""
    if (plan.kv_heads, plan.page_size) != (kv.shape[2], kv.shape[3]):
        raise ValueError(
            f"the append plan was made for {plan.kv_heads} KV heads and pages of {plan.page_size} tokens;"
            f" the pool has {kv.shape[2]} and {kv.shape[3]}"
        )
    merged = _adjacent_heads(k, v)
    source = torch.cat((k, v), dim=1) if merged is None else merged
    if plan.written is not None:
        source = source[plan.written]
    if kv.dtype == FP8:
        # Bytes are put: torch has no indexed write of eight-bit floats.
        kv, source = kv.view(torch.uint8), _to_fp8(source, scales).view(torch.uint8)
    elif source.dtype != kv.dtype:
        source = source.to(kv.dtype)
    kv.view(-1, kv.shape[4]).index_put_((plan.rows,), source)


def _to_fp8(heads: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """heads: `[tokens, 2 · kv_heads, head_size]`. Cut first, since torch makes NaN of what is too large."""
    wide = heads.float()
    if scales is not None:
        wide = wide / scales.reshape(1, -1, 1)
    return wide.clamp(-LARGEST_FP8, LARGEST_FP8).to(FP8)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _full_angles(cos_sin: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos_sin.float().chunk(2, dim=-1)
    if interleaved:
        full_cos = torch.stack((cos, cos), -1).flatten(-2)
        full_sin = torch.stack((-sin, sin), -1).flatten(-2)
    else:
        full_cos = torch.cat((cos, cos), -1)
        full_sin = torch.cat((-sin, sin), -1)
    return full_cos[:, None], full_sin[:, None]


def _rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    rope_size = cos.shape[-1]
    part = x if rope_size == x.shape[-1] else x[..., :rope_size]
    if interleaved:
        swapped = part.reshape(*part.shape[:-1], -1, 2).flip(-1).flatten(-2)
    else:
        swapped = torch.roll(part, rope_size // 2, -1)
    if part.dtype in (torch.float32, torch.float64):
        part.mul_(cos).addcmul_(swapped, sin)
    else:
        part.copy_(part.float() * cos + swapped.float() * sin)


def _adjacent_heads(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    """One view over both when second's heads follow first's in memory, as in a merged projection's output."""
    tokens, heads, head_size = first.shape
    if (
        first.stride() != second.stride()
        or first.stride(2) != 1
        or first.stride(1) != head_size
        or first.dtype != second.dtype
        or first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
        or first.storage_offset() + heads * head_size != second.storage_offset()
    ):
        return None
    return first.as_strided((tokens, heads + second.shape[1], head_size), first.stride())
