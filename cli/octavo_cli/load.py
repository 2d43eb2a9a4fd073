"""What the pods of a service carry, summed, and the table that shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_operator.scaling.exposition import read_series
from octavo_operator.scaling.runtimes import RUNTIMES
from octavo_operator.scaling.sample import Sample
from rich.table import Table

Key = tuple[str, str]
GENERATED = {
    "Octavo": "octavo_generation_tokens_total",
    "VLLM": "vllm:generation_tokens_total",
    "SGLang": "sglang:generation_tokens_total",
}
"""Counter of generated tokens by runtime."""
COLOURS: Mapping[str, str] = {"True": "green", "False": "red", "Unknown": "yellow"}
UNKNOWN = "–"


@dataclass
class Load:
    """Sums over the pods that answered with all figures."""

    at: float
    """Seconds on a clock of the reader's."""
    pods: int = 0
    answered: int = 0
    active_tokens: float = 0
    capacity_tokens: float = 0
    running: float = 0
    waiting: float = 0
    generated: float | None = None
    """Tokens so far; None where no pod tells them."""

    def add(self, text: str | None, runtime: str) -> None:
        """One pod's metrics; None when it did not answer."""
        self.pods += 1
        reading = RUNTIMES[runtime].read(text, self.at) if text is not None else None
        if text is None or not isinstance(reading, Sample):
            return
        self.answered += 1
        self.active_tokens += reading.active_tokens
        self.capacity_tokens += reading.capacity_tokens
        self.running += reading.running
        self.waiting += reading.waiting
        if name := GENERATED.get(runtime):
            told = sum(item.value for item in read_series(text, [name]))
            self.generated = (self.generated or 0) + told


def rate(now: Load, before: Load | None) -> float | None:
    """Tokens per second since the last look; None where that is not known, such as after a pod came or went."""
    if before is None or now.generated is None or before.generated is None or now.at <= before.at:
        return None
    if now.answered != before.answered or now.generated < before.generated:
        return None
    return (now.generated - before.generated) / (now.at - before.at)


def condition(service: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """Status and reason of one condition; ("Unknown", "") where it was never set."""
    found = (service.get("status") or {}).get("conditions") or ()
    one = next((item for item in found if item["type"] == kind), None)
    return (one["status"], one["reason"]) if one else ("Unknown", "")


HEADINGS = ("namespace", "service", "ready", "replicas", "KV use", "running", "waiting", "tok/s", "reason")


def table(services: Sequence[Mapping[str, Any]], loads: Mapping[Key, Load], before: Mapping[Key, Load]) -> Table:
    """One row per service: `replicas` is ready/wanted; figures of pods that did not answer are left out and said so."""
    made = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in HEADINGS:
        last = heading == "reason"
        made.add_column(
            heading,
            justify="right" if heading in HEADINGS[3:8] else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    for service in services:
        key = (service["metadata"]["namespace"], service["metadata"]["name"])
        status, load = service.get("status") or {}, loads.get(key, Load(0))
        state, reason = condition(service, "Ready")
        wanted = (status.get("scaling") or {}).get("desired", status.get("replicas", 0))
        use = f"{load.active_tokens / load.capacity_tokens:.0%}" if load.capacity_tokens else UNKNOWN
        numbers = [f"{load.running:.0f}", f"{load.waiting:.0f}"] if load.answered else [UNKNOWN, UNKNOWN]
        speed = rate(load, before.get(key))
        if load.answered < load.pods:
            reason += f" ({load.pods - load.answered} of {load.pods} pods without metrics)"
        made.add_row(
            *key,
            f"[{COLOURS.get(state, 'yellow')}]{state}[/]",
            f"{status.get('readyReplicas', 0)}/{wanted}",
            use,
            *numbers,
            UNKNOWN if speed is None else f"{speed:,.0f}",
            reason,
        )
    return made
