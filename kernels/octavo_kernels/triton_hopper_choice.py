"""Which kernels a shape and variant take on a device, with the reason where it is not the ones for Hopper GPUs."""

from __future__ import annotations

import torch

from octavo_kernels.shape import AttentionShape, AttentionVariant
from octavo_kernels.triton_launch import Device

MAX_HOPPER_HEAD_SIZE = 128


def refuse_hopper(shape: AttentionShape, variant: AttentionVariant, device: Device) -> str | None:
    """None where the kernels for Hopper GPUs serve; else why the plain Triton kernel does."""
    if device.major != 9:
        return "no Hopper GPU"
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"{shape.dtype} has no warpgroup products"
    if shape.pool_dtype != shape.dtype:
        return f"a {shape.pool_dtype} pool must be widened between the copy and the product"
    if shape.head_size > MAX_HOPPER_HEAD_SIZE:
        return f"head_size {shape.head_size} is above {MAX_HOPPER_HEAD_SIZE}: two blocks of keys fill shared memory"
    if shape.group_size > 64:
        return f"{shape.group_size} query heads a KV head are more than the 64 rows of a tile"
    if variant.transform is not None:
        return "a transform is a Triton function, which Gluon's layouts do not take"
    if variant.custom_mask:
        return "a custom mask is read beside the scores"
    return None
