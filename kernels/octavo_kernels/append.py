"""Writing new keys and values into the paged pool, with or without rotary position embedding.

What depends on the step alone (where each token goes, its angles) can be prepared once by `plan_append` and passed to
every layer's call; that saves most of the time on a CPU, where each small torch operation costs microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.compat import uses_triton


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


def append_kv(
    k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, slot_mapping: torch.Tensor, *, plan: AppendPlan | None = None
) -> None:
    """Writes each token's key and value into its slot of the pool.

    k, v: `[tokens, kv_heads, head_size]`, cast to the pool's dtype; any strides.
    kv: `[pages, 2, kv_heads, page_size, head_size]`, contiguous.
    slot_mapping: int64 `[tokens]`, page · page_size + offset; −1 writes nothing.
    plan: this step's `plan_append`, optional; the Triton path needs none.
    """
    _check(k, v, kv, slot_mapping)
    kv_heads, page_size = kv.shape[2], kv.shape[3]
    if uses_triton(k) and k.stride(2) == v.stride(2) == 1:
        from octavo_kernels.triton_append import launch_append

        launch_append(None, k, v, None, None, kv, slot_mapping)
        return
    plan = plan or plan_append(slot_mapping, kv_heads=kv_heads, page_size=page_size)
    _write(k, v, kv, plan)


def rope_append_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    interleaved: bool = False,
    plan: AppendPlan | None = None,
) -> None:
    """Rotates q and k by their positions, in place, and appends k and v.

    q: `[tokens, query_heads, head_size]`; k, v: `[tokens, kv_heads, head_size]`. Both q and k may be views into one
        merged projection; the first rope_size elements of each head are rotated. k may or may not be rotated in place.
    positions: int64 `[tokens]`.
    cos_sin: float32 `[max_positions, rope_size]`, cosines of rope_size / 2 frequencies first, then their sines.
    kv, slot_mapping: as for append_kv.
    interleaved: pairs are (2i, 2i + 1) instead of (i, i + rope_size / 2).
    plan: this step's `plan_append` with positions and cos_sin, optional.
    """
    _check(k, v, kv, slot_mapping)
    if cos_sin.shape[1] % 2 or cos_sin.shape[1] > q.shape[2]:
        raise ValueError(f"cos_sin has {cos_sin.shape[1]} columns; rope_size must be even and at most {q.shape[2]}")
    if cos_sin.dtype != torch.float32 or not cos_sin.is_contiguous():
        raise ValueError(f"cos_sin is {cos_sin.dtype}; it must be contiguous float32 [max_positions, rope_size]")
    if positions.dtype != torch.int64 or positions.shape != slot_mapping.shape:
        raise ValueError(
            f"positions is {positions.dtype} {list(positions.shape)}; it must be int64 {list(slot_mapping.shape)}"
        )
    if uses_triton(k) and q.stride(2) == k.stride(2) == v.stride(2) == 1:
        from octavo_kernels.triton_append import launch_append

        launch_append(q, k, v, positions, cos_sin, kv, slot_mapping, interleaved=interleaved)
        return
    if plan is None:
        plan = plan_append(
            slot_mapping,
            kv_heads=kv.shape[2],
            page_size=kv.shape[3],
            positions=positions,
            cos_sin=cos_sin,
            interleaved=interleaved,
        )
    if plan.cos is None or plan.sin is None:
        raise ValueError("the append plan has no angles; give plan_append positions and cos_sin")
    if plan.interleaved != interleaved:
        raise ValueError(f"the append plan was made for interleaved={plan.interleaved}, the call is {interleaved}")
    merged = _adjacent_heads(q, k)
    for heads in (q, k) if merged is None else (merged,):
        _rotate_(heads, plan.cos, plan.sin, interleaved)
    _write(k, v, kv, plan)


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


def _write(k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, plan: AppendPlan) -> None:
    if (plan.kv_heads, plan.page_size) != (kv.shape[2], kv.shape[3]):
        raise ValueError(
            f"the append plan was made for {plan.kv_heads} KV heads and pages of {plan.page_size} tokens;"
            f" the pool has {kv.shape[2]} and {kv.shape[3]}"
        )
    merged = _adjacent_heads(k, v)
    source = torch.cat((k, v), dim=1) if merged is None else merged
    if plan.written is not None:
        source = source[plan.written]
    if source.dtype != kv.dtype:
        source = source.to(kv.dtype)
    kv.view(-1, kv.shape[4]).index_put_((plan.rows,), source)


def _check(k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    if kv.dim() != 5 or kv.shape[1] != 2 or not kv.is_contiguous():
        raise ValueError(
            f"kv has shape {list(kv.shape)}; it must be contiguous [pages, 2, kv_heads, page_size, head_size]"
        )
    expected = (slot_mapping.shape[0], kv.shape[2], kv.shape[4])
    if k.shape != expected or v.shape != expected:
        raise ValueError(
            f"k has shape {list(k.shape)} and v {list(v.shape)}; for this pool and slot_mapping both must be"
            f" {list(expected)}"
        )
    if slot_mapping.dtype != torch.int64:
        raise ValueError(f"slot_mapping has dtype {slot_mapping.dtype}; it must be torch.int64")
