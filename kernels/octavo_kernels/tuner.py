"""Measures launch configurations on this machine and writes a table of the fastest, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata

import torch

from octavo_kernels.compat import triton_version
from octavo_kernels.cpu_plan import CPU_KERNEL, GROUP_BYTES
from octavo_kernels.launch_table import LaunchRow, LaunchTable, capability_of, launch_shape, name_of, shipped
from octavo_kernels.shape import AttentionShape, AttentionVariant
from octavo_kernels.tune_measure import Reference, Sequences, Workload, attention_with
from octavo_kernels.tune_search import combined, descend

DECODE: tuple[Sequences, ...] = (((1, 2048),) * 64, ((1, 4096),) * 4)
PREFILL: tuple[Sequences, ...] = (((4096, 4096),), ((512, 2048),) * 4)
HOST_DECODE: tuple[Sequences, ...] = (((1, 1024),) * 8, ((1, 200),) * 16)
"""What each kind of launch is timed with: no shape of a model, but the sizes between which serving moves."""


def tune(
    shapes: AttentionShape | Sequence[AttentionShape],
    *,
    device: torch.device | str | None = None,
    seconds: float = 120.0,
    table: LaunchTable | None = None,
    progress: Callable[[str], None] | None = None,
) -> LaunchTable:
    """Searches the fastest launches of attention for these shapes, and returns a table with a row for each.

    shapes: one AttentionShape, or several; shapes that differ in their page size alone become rows of their own.
    device: None takes the first GPU, else host memory. On a GPU, launches of short and of long tiles are searched; in
        host memory, how many bytes one call of the CPU backend gathers.
    seconds: the budget, spread over what there is to search. At least one launch, the safe default, is measured of
        each, so that a small budget is overrun by what these take.
    table: rows that stay where nothing is searched for them; None: the package's for this device.
    progress: called with a line for each launch that was measured.
    A launch counts only if its output on a random batch, free slots NaN, equals the float64 reference's up to rounding,
    and if it is faster than the best before it by more than 2 %. Raises ValueError for no shapes or no time.
    Save the result with launch_table.save; PagedAttention(launch_table=…) takes it.
    """
    listed = [shapes] if isinstance(shapes, AttentionShape) else list(shapes)
    if not listed:
        raise ValueError("shapes is empty; tune needs at least one AttentionShape")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; it must be above 0")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    tell = progress or (lambda line: None)
    base = table or shipped(capability_of(place), name_of(place))
    work = [(shape, kernel, first) for shape in listed for kernel, first in _kernels(shape, place)]
    begin = time.monotonic()
    rows = []
    for done, (shape, kernel, first) in enumerate(work):
        left = seconds - (time.monotonic() - begin)
        deadline = time.monotonic() + left / (len(work) - done)
        rows.append(_search(shape, kernel, first, place, base, deadline, tell))
    tuned = LaunchTable(
        name_of(place),
        capability_of(place),
        (),
        {
            "octavo-kernels": _own_version(),
            "torch": torch.__version__,
            "triton": triton_version() or "none",
        },
        f"tuned in {time.monotonic() - begin:.0f} s",
    )
    kept = base.rows if base.capability == tuned.capability else ()
    return tuned.merged(kept).merged(rows)


def _kernels(shape: AttentionShape, device: torch.device) -> list[tuple[str, Mapping[str, int]]]:
    """What there is to search for a shape, each with the safe default."""
    if device.type == "cpu":
        return [(CPU_KERNEL, {"group_bytes": GROUP_BYTES})]
    # Triton is an optional import.
    from octavo_kernels.triton_hopper_choice import refuse_hopper
    from octavo_kernels.triton_launch import Device, default_launch, kernel_name

    hopper = refuse_hopper(shape, AttentionVariant(), Device.of(device)) is None
    found: list[tuple[str, Mapping[str, int]]] = []
    for decode in (True, False):
        launch = asdict(default_launch(shape, decode=decode, hopper=hopper))
        launch["ping_pong"] = int(launch["ping_pong"])
        found.append((kernel_name(decode=decode, hopper=hopper), launch))
    return found


def _search(
    shape: AttentionShape,
    kernel: str,
    first: Mapping[str, int],
    device: torch.device,
    base: LaunchTable,
    deadline: float,
    tell: Callable[[str], None],
) -> LaunchRow:
    fields = launch_shape(shape)
    reference = Reference.of(shape, device)
    batches = HOST_DECODE if device.type == "cpu" else DECODE if ".short" in kernel else PREFILL
    workloads = [Workload(shape, batch, device) for batch in batches]
    others = LaunchTable(base.device, capability_of(device), base.rows)
    unit: list[float] = []
    name = f"{kernel} {shape.query_heads}:{shape.kv_heads} × {shape.head_size}, page {shape.page_size}"

    def measure(launch: Mapping[str, int]) -> float | None:
        candidate = others.merged([LaunchRow(kernel, fields, launch)])
        try:
            tokens = max(workload.tokens for workload in workloads)
            if not reference.agrees(attention_with(shape, device, candidate, max(tokens, 64))):
                tell(f"{name}: {_short(launch, first)} wrong result, left out")
                return None
            times = [workload.seconds(candidate) for workload in workloads]
        except _refusals() as error:
            tell(f"{name}: {_short(launch, first)} refused: {str(error).splitlines()[0][:80]}")
            return None
        if not unit:
            unit.extend(times)
        tell(f"{name}: {_short(launch, first)} {', '.join(f'{took * 1e6:.1f} µs' for took in times)}")
        return combined(times, unit) * unit[0]

    found = descend(kernel, first, measure, lambda: time.monotonic() < deadline)
    ended = "nothing faster is near" if found.complete else "time is up"
    tell(
        f"{name}: {found.first_seconds / found.seconds:.2f} × the default, {found.tried} tried,"
        f" {found.refused} refused; {ended}"
    )
    return LaunchRow(
        kernel, fields, dict(found.launch), round(found.seconds * 1e6, 1), round(found.first_seconds * 1e6, 1)
    )


def _short(launch: Mapping[str, int], first: Mapping[str, int]) -> str:
    """What of a launch differs from the default."""
    changed = [f"{name} {value}" for name, value in launch.items() if value != first[name]]
    return ", ".join(changed) or "default"


def _refusals() -> tuple[type[Exception], ...]:
    """What a launch that the device or the compiler does not take raises."""
    if triton_version() is None:
        return (RuntimeError, ValueError)
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    return (RuntimeError, ValueError, CompilationError, OutOfResources, PTXASError)


def _own_version() -> str:
    try:
        return metadata.version("octavo-kernels")
    except metadata.PackageNotFoundError:
        # Imported from a folder on the path, without the package's metadata.
        return "unknown"
