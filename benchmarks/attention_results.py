"""Joins a run of some parts with the figures that stand: what was not measured again says which run it is from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_ORIGIN = re.compile(r"(?:^|; )run of [^;]*$")


def joined(standing: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows for the result file of a new run.

    standing: the result file as it is, or None. rows: what the new run measured. A standing row of the same name gives
    way, in its place; another stays and its note ends with the date and commit it was measured at. New names come last.
    """
    fresh = {row["name"]: dict(row) for row in rows}
    result = []
    if standing is not None:
        origin = f"run of {standing['date'][:16].replace('T', ' ')} at commit {standing['commit'][:7]}"
        for row in standing["rows"]:
            found = fresh.pop(row["name"], None)
            result.append(found or {**row, "note": _with_origin(row["note"], origin)})
    return [*result, *fresh.values()]


def _with_origin(note: str, origin: str) -> str:
    if _ORIGIN.search(note):
        return note
    return f"{note}; {origin}" if note else origin
