"""Launch configurations of the attention kernels, by shape and device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from octavo_kernels.compat import is_interpreting
from octavo_kernels.launch_table import LaunchTable, launch_shape
from octavo_kernels.shape import AttentionShape


@dataclass(frozen=True)
class Launch:
    """Launch configuration of one kind of tiles.

    block_m: rows of a tile: tokens times the query heads of a KV head.
    block_n: keys that a program takes at a time.
    warps: warps that compute.
    stages: software-pipelining depth; on Hopper GPUs, blocks of keys and of values that shared memory holds.
    programs: programs of a multiprocessor that the work of short tiles is divided among.
    least_blocks: blocks of keys below which work is not divided further.
    ping_pong: whether the warpgroups of the kernel for long tiles on Hopper GPUs take turns.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    programs: int = 3
    least_blocks: int = 1
    ping_pong: bool = False


@dataclass(frozen=True)
class Device:
    """What launches depend on: multiprocessors, compute capability (0 where there is no GPU)."""

    processors: int
    major: int

    @classmethod
    def of(cls, device: torch.device) -> Device:
        if device.type != "cuda":
            return cls(4, 0)
        properties = torch.cuda.get_device_properties(device)
        return cls(properties.multi_processor_count, properties.major)


def choose_launch(
    shape: AttentionShape, *, decode: bool, hopper: bool = False, table: LaunchTable | None = None
) -> Launch:
    """Launch configuration of short (decode) or long tiles: the table's where it has a row, else a safe default.

    Raises ValueError where the table's row names what no launch has, or a configuration that the kernels refuse.
    """
    safe = default_launch(shape, decode=decode, hopper=hopper)
    kernel = kernel_name(decode=decode, hopper=hopper)
    found = None if table is None else table.find(kernel, launch_shape(shape))
    return safe if found is None else launch_of(found, safe, shape, kernel)


def kernel_name(*, decode: bool, hopper: bool) -> str:
    """A kind of tiles as launch tables name it."""
    return f"attention.{'short' if decode else 'long'}{'.hopper' if hopper else ''}"


def launch_of(found: Mapping[str, int], safe: Launch, shape: AttentionShape, kernel: str) -> Launch:
    """A table's row as a Launch; fields that it leaves out are the safe default's. Raises ValueError for a bad one."""
    known = {field.name for field in fields(Launch)}
    values = {name: getattr(safe, name) for name in known} | dict(found)
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"launch table: {kernel} has {name}; a launch has {', '.join(sorted(known))}")
        if name in ("block_m", "block_n", "warps") and (value < 1 or value & (value - 1)):
            raise ValueError(f"launch table: {kernel} has {name} {value}; it must be a power of two")
        if name in ("stages", "programs", "least_blocks") and value < 1:
            raise ValueError(f"launch table: {kernel} has {name} {value}; it must be at least 1")
    if values["block_m"] < shape.group_size:
        raise ValueError(
            f"launch table: {kernel} has block_m {values['block_m']}; a tile must hold the {shape.group_size} query"
            " heads of a KV head"
        )
    if kernel.endswith(".hopper") and values["block_m"] != safe.block_m:
        raise ValueError(f"launch table: {kernel} has block_m {values['block_m']}; it must be {safe.block_m}")
    return Launch(**{**values, "ping_pong": bool(values["ping_pong"])})


def default_launch(shape: AttentionShape, *, decode: bool, hopper: bool = False) -> Launch:
    """The launch that serves a shape on every GPU; decode tiles hold few tokens' groups, prefill tiles many tokens."""
    if hopper:
        # A multiprocessor holds two programs of short tiles with 96 KiB of keys and values each, or one of long tiles.
        narrow = shape.head_size <= 64
        return Launch(64, 64, 4, 6 if narrow else 3, programs=2) if decode else Launch(128, 128, 8, 4 if narrow else 2)
    group = power_of_two(shape.group_size)
    if is_interpreting():
        return Launch(max(16, group), 16, 4, 1, 1) if decode else Launch(max(32, group), 32, 4, 1, 1)
    wide = power_of_two(shape.head_size) > 128
    if shape.dtype == torch.float32:
        # Exact float32 products run outside of the matrix units, where large tiles only take long to compile.
        return Launch(max(16 if decode else 32, group), 16 if wide else 32, 4, 2)
    if decode:
        return Launch(max(16, group), 32 if wide else 64, 2, 3, programs=4)
    return Launch(max(64, group), 32, 4, 2) if wide else Launch(max(128, group), 128, 8, 3)


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below value."""
    return 1 << (value - 1).bit_length()
