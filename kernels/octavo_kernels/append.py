"""Writing new keys and values into the paged pool, with or without rotary position embedding and head norms."""

from __future__ import annotations

import torch

from octavo_kernels.append_torch import AppendPlan, plan_append, rotate_, write
from octavo_kernels.compat import uses_triton
from octavo_kernels.shape import FP8

__all__ = ["AppendPlan", "append_kv", "plan_append", "rope_append_kv"]


def append_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    plan: AppendPlan | None = None,
) -> None:
    """Writes each token's key and value into its slot of the pool.

    k, v: `[tokens, kv_heads, head_size]`, cast to the pool's dtype; any strides.
    kv: `[pages, 2, kv_heads, page_size, head_size]`, contiguous.
    slot_mapping: int64 `[tokens]`, page · page_size + offset; −1 writes nothing.
    scales: for a float8_e4m3fn pool, float32 `[2, kv_heads]`, positive: numbers are divided by their head's before they
        are stored, rounded to the nearest, ties to even; what lies past ±448 then is stored as ±448. None for 1.
    plan: this step's `plan_append`, optional; the Triton path needs none.
    Raises ValueError where a tensor's shape, dtype or layout is wrong.
    """
    _check(k, v, kv, slot_mapping, scales)
    if uses_triton(k) and k.stride(2) == v.stride(2) == 1:
        from octavo_kernels.triton_append import launch_append

        launch_append(None, k, v, None, None, kv, slot_mapping, scales=scales)
        return
    plan = plan or plan_append(slot_mapping, kv_heads=kv.shape[2], page_size=kv.shape[3])
    write(k, v, kv, plan, scales)


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
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    scales: torch.Tensor | None = None,
    plan: AppendPlan | None = None,
) -> None:
    """Normalises (where asked) and rotates q and k, in place, and appends k and v: one launch on a GPU.

    q: `[tokens, query_heads, head_size]`; k, v: `[tokens, kv_heads, head_size]`. Both q and k may be views into one
        merged projection; the first rope_size elements of each head are rotated. k may or may not be changed in place.
    positions: int64 `[tokens]`.
    cos_sin: float32 `[max_positions, rope_size]`, cosines of rope_size / 2 frequencies first, then their sines:
        `rotary_table` makes it for every kind of scaling.
    kv, slot_mapping, scales: as for append_kv.
    interleaved: pairs are (2i, 2i + 1) instead of (i, i + rope_size / 2).
    q_norm, k_norm: any float, `[head_size]`, contiguous: each head of q and of k becomes head / sqrt(mean(head²) +
        norm_eps) · weight before it is rotated (Henry et al. 2020, query-key normalisation, as RMSNorm), in float32 and
        without rounding between. Both or none.
    plan: this step's `plan_append` with positions and cos_sin, optional.
    Raises ValueError where a tensor's shape, dtype or layout is wrong.
    """
    _check(k, v, kv, slot_mapping, scales)
    _check_angles(q, positions, cos_sin, slot_mapping)
    _check_norms(q_norm, k_norm, q.shape[2])
    if uses_triton(k) and q.stride(2) == k.stride(2) == v.stride(2) == 1:
        from octavo_kernels.triton_append import launch_append

        launch_append(
            q,
            k,
            v,
            positions,
            cos_sin,
            kv,
            slot_mapping,
            interleaved=interleaved,
            q_norm=q_norm,
            k_norm=k_norm,
            norm_eps=norm_eps,
            scales=scales,
        )
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
    if plan.interleaved != interleaved:
        raise ValueError(f"the append plan was made for interleaved={plan.interleaved}, the call is {interleaved}")
    rotate_(q, k, plan, q_norm, k_norm, norm_eps)
    write(k, v, kv, plan, scales)


def _check_angles(q: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    if cos_sin.shape[1] % 2 or cos_sin.shape[1] > q.shape[2]:
        raise ValueError(f"cos_sin has {cos_sin.shape[1]} columns; rope_size must be even and at most {q.shape[2]}")
    if cos_sin.dtype != torch.float32 or not cos_sin.is_contiguous():
        raise ValueError(f"cos_sin is {cos_sin.dtype}; it must be contiguous float32 [max_positions, rope_size]")
    if positions.dtype != torch.int64 or positions.shape != slot_mapping.shape:
        raise ValueError(
            f"positions is {positions.dtype} {list(positions.shape)}; it must be int64 {list(slot_mapping.shape)}"
        )


def _check_norms(q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, head_size: int) -> None:
    if (q_norm is None) != (k_norm is None):
        given, missing = ("k_norm", "q_norm") if q_norm is None else ("q_norm", "k_norm")
        raise ValueError(f"{given} was given without {missing}; give both, or ones for the head that is not weighted")
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None and (weight.shape != (head_size,) or not weight.is_contiguous()):
            raise ValueError(f"{name} has shape {list(weight.shape)}; it must be [{head_size}], contiguous")


def _check(
    k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, slot_mapping: torch.Tensor, scales: torch.Tensor | None
) -> None:
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
    if scales is None:
        return
    if kv.dtype != FP8:
        raise ValueError(f"scales were given; a {kv.dtype} pool takes none")
    wanted = (2, kv.shape[2])
    if scales.dtype != torch.float32 or scales.shape != wanted or not scales.is_contiguous():
        raise ValueError(
            f"scales is {scales.dtype} {list(scales.shape)}; it must be float32 {list(wanted)}, contiguous"
        )
