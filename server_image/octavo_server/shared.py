"""Numbers that all API processes of a server share: one row of memory per process, one column per number.

A process writes its own row alone and anybody may read all of them, so that nothing is ever locked: /metrics of any
process is the sum over rows, and a limit can hold for all processes together. A process that is started again goes on
in the row of its predecessor, so that counters never fall.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily

_COLUMNS = 256
_BYTES = 8


class SharedTable:
    """Rows of float64; `row` is this process's own."""

    def __init__(self, rows: int = 1, own: int = 0, descriptor: int | None = None) -> None:
        """Makes the memory, or, with a descriptor of it, takes part in what another process made."""
        size = rows * _COLUMNS * _BYTES
        self.descriptor = _anonymous_file(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, size)
        numbers = memoryview(self._memory).cast("d")
        self._rows = [numbers[index * _COLUMNS : (index + 1) * _COLUMNS] for index in range(rows)]
        self.row = self._rows[own]
        self.leader = self._rows[0]
        self.own = own
        self._next = 0
        self.gauges: list[int] = []

    def take(self, columns: int) -> int:
        """Reserves columns; every process reserves the same ones in the same order."""
        first, self._next = self._next, self._next + columns
        assert self._next <= _COLUMNS, "the table is too narrow"
        return first

    def clear_gauges(self, row: int) -> None:
        """Sets the gauges of a process that is gone to 0; its counters stay."""
        for column in self.gauges:
            self._rows[row][column] = 0.0

    def total(self, column: int) -> float:
        """The sum over all processes."""
        return sum(row[column] for row in self._rows)


class SharedCounter:
    """A number that grows, or a gauge of which each process has a part."""

    __slots__ = ("_column", "_row", "_table")

    def __init__(self, table: SharedTable, *, gauge: bool = False) -> None:
        self._table = table
        self._column = table.take(1)
        if gauge:
            table.gauges.append(self._column)
        self._row = table.row

    def inc(self, amount: float = 1.0) -> None:
        """Adds to this process's part."""
        self._row[self._column] += amount

    def set(self, value: float) -> None:
        """Replaces this process's part."""
        self._row[self._column] = value

    @property
    def total(self) -> float:
        """The sum over all processes."""
        return self._table.total(self._column)

    @property
    def of_leader(self) -> float:
        """The first process's part, where only that one counts."""
        return self._table.leader[self._column]


class SharedHistogram:
    """Counts per bucket (upper bounds inclusive) and the sum of the values."""

    __slots__ = ("_bounds", "_first", "_row", "_sum", "_table", "name", "text")

    def __init__(self, table: SharedTable, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.text = text
        self._table = table
        self._row = table.row
        self._bounds = tuple(map(float, bounds))
        self._first = table.take(len(bounds) + 2)
        self._sum = self._first + len(bounds) + 1

    def observe(self, value: float) -> None:
        """Counts one value."""
        row = self._row
        row[self._first + bisect_left(self._bounds, value)] += 1
        row[self._sum] += value

    def family(self, name: str = "", labels: Iterable[tuple[str, str]] = ()) -> HistogramMetricFamily:
        """The metric over all processes, perhaps under another name and with labels."""
        given = dict(labels)
        family = HistogramMetricFamily(name or self.name, self.text, labels=list(given))
        running, buckets = 0.0, []
        for index, bound in enumerate((*self._bounds, float("inf"))):
            running += self._table.total(self._first + index)
            buckets.append((_bound_text(bound), running))
        family.add_metric(list(given.values()), buckets, self._table.total(self._sum))
        return family


def _bound_text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


def _anonymous_file(size: int) -> int:
    """A descriptor of memory without a name; child processes may inherit it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("octavo-numbers")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
