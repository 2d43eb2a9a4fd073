"""Which launch configurations the attention kernels get: a measured table, the package's, or safe defaults."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from octavo_kernels import AttentionShape
from octavo_kernels.launch_table import LaunchTable, capability_of, load, name_of, serves, shipped, table_for

from octavo_server.engine.sizes import Refusal

GIVEN, SHIPPED, SAFE = "LaunchTable", "Shipped", "SafeDefaults"
_WAY_OUT = "give a file of `octavo-server calibrate` or `python -m octavo_kernels.tune`, or leave the flag out"


@dataclass(frozen=True)
class Launches:
    """What PagedAttention takes, and what people are told of it."""

    table: LaunchTable | None
    """None: nothing was given."""
    source: str
    """LaunchTable, Shipped or SafeDefaults: what this shape's launches really come from."""
    message: str


def read_launches(path: str) -> LaunchTable | None:
    """The table of a file; None for an empty path. Raises Refusal with reason LaunchTableUnreadable, naming file, field
    and way out, for a file that is missing or wrong: somebody asked for it."""
    try:
        return load(path) if path else None
    except OSError as error:
        reason = f"--launch-table {path} can't be read: {error.strerror or error}; {_WAY_OUT}"
        raise Refusal("LaunchTableUnreadable", reason) from error
    except ValueError as error:
        raise Refusal("LaunchTableUnreadable", f"--launch-table: {error}; {_WAY_OUT}") from error


@contextlib.contextmanager
def refuses_launches(launches: Launches) -> Iterator[None]:
    """Turns a kernel's refusal of a given launch into a Refusal; other ValueErrors pass."""
    try:
        yield
    except ValueError as error:
        if launches.table is None:
            raise
        raise Refusal("LaunchTableUnreadable", f"--launch-table: {error}; {_WAY_OUT}") from error


def launches_for(given: LaunchTable | None, shape: AttentionShape, device: torch.device) -> Launches:
    """The launches for a shape on a device; None = those that come with the kernels.

    A table of another accelerator, or without this shape, serves nothing and is told: safe defaults are right
    everywhere.
    """
    own = shipped(capability_of(device), name_of(device))
    if given is None:
        if serves(own, shape):
            return Launches(None, SHIPPED, f"those that come with the kernels for {own.device}")
        return Launches(None, SAFE, own.reason or "the kernels bring none for this shape: safe defaults are used")
    fitting = table_for(device, given)
    if fitting.reason is None and serves(fitting, shape):
        # Other kernels, which the table says nothing of, keep what comes with the package.
        table = LaunchTable(given.device, own.capability, (*own.rows, *given.rows), given.versions, given.note)
        return Launches(table, GIVEN, f"of --launch-table, measured on {given.device or 'a device it does not name'}")
    why = (
        fitting.reason
        or f"none of the {len(given.rows)} rows of --launch-table is for this shape: safe defaults are used"
    )
    if serves(own, shape):
        return Launches(None, SHIPPED, why.replace("safe defaults are", "what comes with the kernels is"))
    return Launches(None, SAFE, why)
