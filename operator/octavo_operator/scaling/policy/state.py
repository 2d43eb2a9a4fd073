"""What the policy remembers. Learned capacity and the last changes live in status; a restart refills the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .fleet import Kind
from .residency import Residency
from .trend import Past

VERSION = 1
KEPT_USES = 10
KEPT_CHANGES = 10
KEPT_KINDS = 64


class UnknownStateError(ValueError):
    """A state of a version that this operator does not know."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the count."""

    time: float
    before: int
    after: int
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Removal:
    """A replica that went."""

    time: float
    count: int
    """Replicas that were left."""
    needed: float
    """Largest demand, in replicas, of the window before."""


@dataclass(frozen=True)
class State:
    """Small and immutable; each decision returns the next one."""

    uses: Mapping[Kind, tuple[float, ...]] = field(default_factory=dict)
    """By kind, the last tokens in use that a replica was seen to sustain."""
    rates: Mapping[Kind, tuple[float, ...]] = field(default_factory=dict)
    """By kind, the last requests per second that a replica ended while it had a queue."""
    residency: Residency | None = None
    """Token-seconds that a request holds the cache."""
    startup_seconds: float | None = None
    """From asked for to serving, as the replicas showed it."""
    demands: tuple[tuple[float, float], ...] = ()
    """(time, replicas needed), falling: each the largest since its time. Covers the scale-down window."""
    peaks: tuple[tuple[float, float], ...] = ()
    """The same over the longer time for which a share of the largest demand is kept."""
    lows: tuple[tuple[float, float], ...] = ()
    """(time, replicas needed), rising: each the smallest since its time. Covers the time that replicas take to answer.
    """
    rises: tuple[tuple[float, float], ...] = ()
    """(time, rise of the demand above its smallest in that time), falling; over the time of `peaks`."""
    past: tuple[Past, ...] = ()
    """What the last decisions saw, for the trend."""
    watched_since: float | None = None
    """Since when demand was seen without a gap."""
    counts: tuple[tuple[float, int], ...] = ()
    """(time, count in force) over the rise window."""
    idle_since: float | None = None
    blocked_until: float = 0.0
    """Until then nothing is added: no accelerator was found."""
    zero_since: float | None = None
    removal: Removal | None = None
    """The last one for want of demand."""
    regret: Removal | None = None
    """The last one that had to be undone, and when it was."""
    strained: Removal | None = None
    """The last count at which requests lost their cache blocks, and the demand then."""
    lull: tuple[float, float] | None = None
    """(when, how long) the demand of a removal was gone before it came back and found too few replicas."""
    changes: tuple[Change, ...] = ()

    def learned(self, kind: Kind) -> float | None:
        """Mean of the uses seen of a kind; None before there was any."""
        uses = self.uses.get(kind)
        return sum(uses) / len(uses) if uses else None

    def learned_rate(self, kind: Kind) -> float | None:
        """Mean of the rates seen of a kind; None before there was any."""
        rates = self.rates.get(kind)
        return sum(rates) / len(rates) if rates else None

    def with_use(self, kind: Kind, tokens: float) -> State:
        """One more use of a kind."""
        return replace(self, uses=_with(self.uses, kind, tokens))

    def with_rate(self, kind: Kind, requests_per_second: float) -> State:
        """One more rate of a kind."""
        return replace(self, rates=_with(self.rates, kind, requests_per_second))

    def with_change(self, change: Change) -> State:
        """One more change; the oldest goes."""
        return replace(self, changes=(*self.changes, change)[-KEPT_CHANGES:])

    def dump(self) -> dict[str, Any]:
        """What outlives a restart, as plain data."""
        return {
            "version": VERSION,
            "capacities": [
                {"nodeType": kind[0], "template": kind[1], "tokens": round(sum(uses) / len(uses))}
                for kind, uses in sorted(self.uses.items())
            ],
            "changes": [
                {"time": c.time, "from": c.before, "to": c.after, "reason": c.reason, "message": c.message}
                for c in self.changes
            ],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> State:
        """From `dump`; raises UnknownStateError for another version. A learned mean weighs as much as all its uses."""
        version = data.get("version", VERSION)
        if version != VERSION:
            raise UnknownStateError(f"scaling state of version {version}: this operator knows {VERSION}")
        uses = {
            (str(item["nodeType"]), str(item["template"])): (float(item["tokens"]),) * KEPT_USES
            for item in data.get("capacities") or ()
            if float(item["tokens"]) > 0
        }
        changes = tuple(
            Change(float(c["time"]), int(c["from"]), int(c["to"]), str(c["reason"]), str(c.get("message", "")))
            for c in data.get("changes") or ()
        )
        return cls(uses=uses, changes=changes)


def _with(known: Mapping[Kind, tuple[float, ...]], kind: Kind, value: float) -> dict[Kind, tuple[float, ...]]:
    """One more value of a kind; the oldest kind goes when there are too many."""
    found = {key: values for key, values in known.items() if key != kind}
    found[kind] = (*known.get(kind, ()), value)[-KEPT_USES:]
    for key in list(found)[: max(0, len(found) - KEPT_KINDS)]:
        del found[key]
    return found
