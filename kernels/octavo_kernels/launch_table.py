"""Tables of launch configurations: one JSON file per GPU, rows by kernel and shape, written by the tuner.

A kernel asks for its shape; what the table lacks is launched with a configuration that is safe everywhere. Tables of
measured GPUs come with the package, one for each compute capability; another GPU gets an empty one that says so.
Imports neither Triton nor a kernel, so that any process may read a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from octavo_kernels.shape import AttentionShape

FORMAT = 1
SHIPPED = Path(__file__).resolve().parent / "launch_tables"
ATTENTION = "attention."
"""How the names of attention's kernels begin."""
CPU = "cpu"
"""What stands for a compute capability where there is no GPU."""


@dataclass(frozen=True)
class LaunchRow:
    """The launch that was fastest for one kernel and shape.

    kernel: the kernel's name, as its module gives it to `LaunchTable.find`.
    shape: what the launch depends on, by name; fields that are left out match every value.
    launch: the configuration's numbers, by name.
    microseconds: what it took; default_microseconds: what the safe default took in the same run. 0: not measured.
    """

    kernel: str
    shape: Mapping[str, int | str]
    launch: Mapping[str, int]
    microseconds: float = 0.0
    default_microseconds: float = 0.0


@dataclass(frozen=True)
class LaunchTable:
    """Launches by kernel and shape.

    device, capability: what they were measured on, `9.0` for instance, or `cpu`.
    versions: of what decides how fast they are. note: what a reader should know.
    reason: why this table has no rows for its reader's device, so that safe defaults serve; None where it has.
    """

    device: str = ""
    capability: str = ""
    rows: Sequence[LaunchRow] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    reason: str | None = None

    def find(self, kernel: str, shape: Mapping[str, int | str]) -> Mapping[str, int] | None:
        """The launch of the row that names most of this shape's fields and no other value of them; None without one.

        Of rows that name equally many, the last one counts.
        """
        best: LaunchRow | None = None
        for row in self.rows:
            if row.kernel != kernel or any(shape.get(name) != value for name, value in row.shape.items()):
                continue
            if best is None or len(row.shape) >= len(best.shape):
                best = row
        return None if best is None else best.launch

    def merged(self, rows: Sequence[LaunchRow]) -> LaunchTable:
        """This table with other rows in the place of its own of the same kernel and shape, or after them."""
        found = {(row.kernel, tuple(sorted(row.shape.items()))): row for row in (*self.rows, *rows)}
        return replace(self, rows=tuple(found.values()))


def load(path: str | Path) -> LaunchTable:
    """Reads a table. Raises ValueError that names the file, the field and what it must be; OSError as open does."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        way_out = "'python -m octavo_kernels.tune' writes one"
        raise ValueError(f"launch table {path} is not JSON: {error}; {way_out}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise ValueError(
            f"launch table {path} has format {found!r}; this version reads format {FORMAT}:"
            " 'python -m octavo_kernels.tune' writes one"
        )
    rows, versions = data.get("launches"), data.get("versions", {})
    if not isinstance(rows, list) or not isinstance(versions, dict):
        raise ValueError(f"launch table {path}: launches must be a list of rows, and versions an object")
    return LaunchTable(
        str(data.get("device", "")),
        str(data.get("capability", "")),
        tuple(_row(row, f"launch table {path}: launches[{place}]") for place, row in enumerate(rows)),
        {str(name): str(value) for name, value in versions.items()},
        str(data.get("note", "")),
    )


def save(table: LaunchTable, path: str | Path) -> None:
    """Writes a table as `load` reads it, a row a line."""
    rows = ",\n    ".join(json.dumps(asdict(row)) for row in table.rows)
    text = json.dumps(_head(table), indent=2)[:-2] + f',\n  "launches": [\n    {rows}\n  ]\n}}\n'
    Path(path).write_text(text, encoding="utf-8")


def compact(table: LaunchTable) -> str:
    """A table as `load` reads it, in one line and as few bytes as it takes."""
    head = {key: part for key, part in _head(table).items() if part}
    return json.dumps({**head, "launches": [asdict(row) for row in table.rows]}, separators=(",", ":"))


def _head(table: LaunchTable) -> dict[str, Any]:
    head = {"format": FORMAT, "device": table.device, "capability": table.capability}
    return {**head, "versions": dict(table.versions), "note": table.note}


def capability_of(device: torch.device) -> str:
    """The compute capability as tables name it, `9.0` for instance; `cpu` where there is no GPU."""
    if device.type != "cuda":
        return CPU
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}"


def name_of(device: torch.device) -> str:
    """The device's name as tables tell it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else CPU


def shipped(capability: str, name: str = "this device") -> LaunchTable:
    """The package's table for a compute capability; without one, a table without rows whose reason says so."""
    path = SHIPPED / f"sm_{capability.replace('.', '')}.json"
    if path.exists():
        return load(path)
    if capability == CPU:
        reason = "no launch table for host memory is shipped: safe defaults are used"
    else:
        reason = f"no launch table for {name} (compute capability {capability}) is shipped: safe defaults are used"
    return LaunchTable(name, capability, reason=f"{reason}; 'python -m octavo_kernels.tune' measures one")


def table_for(device: torch.device, given: LaunchTable | None = None) -> LaunchTable:
    """The table that kernels on this device take: the given one, else the package's.

    A given table of another compute capability serves nothing: its rows are left out, and reason says so.
    """
    capability = capability_of(device)
    if given is None:
        return shipped(capability, name_of(device))
    if given.capability in ("", capability):
        return given
    reason = (
        f"the launch table was measured on {given.device} ({given.capability}); {name_of(device)} is {capability}:"
        " safe defaults are used"
    )
    return replace(given, rows=(), reason=reason)


def serves(table: LaunchTable, shape: AttentionShape) -> bool:
    """Whether the table holds a launch of attention for this shape, for any kernel."""
    wanted = launch_shape(shape)
    rows = (row for row in table.rows if row.kernel.startswith(ATTENTION))
    return any(all(wanted.get(name) == value for name, value in row.shape.items()) for row in rows)


def launch_shape(shape: AttentionShape) -> dict[str, int | str]:
    """What attention's launches may depend on, as launch tables name it."""
    return {
        "group": shape.group_size,
        "kv_heads": shape.kv_heads,
        "head_size": shape.head_size,
        "page_size": shape.page_size,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "kv_dtype": str(shape.pool_dtype).removeprefix("torch."),
    }


def _row(row: Any, place: str) -> LaunchRow:
    if not isinstance(row, dict):
        raise ValueError(f"{place} is {type(row).__name__}; it must be an object with kernel, shape and launch")
    kernel, shape, launch = row.get("kernel"), row.get("shape"), row.get("launch")
    if not isinstance(kernel, str) or not isinstance(shape, dict) or not isinstance(launch, dict):
        raise ValueError(f"{place} must have kernel (text), shape (object) and launch (object)")
    for name, value in launch.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{place}: launch.{name} is {value!r}; it must be a whole number, 0 or more")
    for name, value in shape.items():
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise ValueError(f"{place}: shape.{name} is {value!r}; it must be a whole number or text")
    times = [row.get(name, 0.0) for name in ("microseconds", "default_microseconds")]
    if not all(isinstance(took, int | float) for took in times):
        raise ValueError(f"{place}: microseconds and default_microseconds must be numbers, not {times}")
    return LaunchRow(kernel, shape, launch, float(times[0]), float(times[1]))
