"""How many threads a step on a CPU uses: all while the machine is ours, one while others need it.

Threads of one operation wait for each other in a spin loop. When another process takes one of their cores, all of them
wait for it at every operation: with both of two cores busy elsewhere, two threads were measured at a tenth of the speed
of one. Involuntary context switches per second of processor time show it, however slow the steps have become: a machine
that is shared by many gives each of them few turns, and takes each away soon.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

import torch

_WINDOW_SECONDS = 0.25
_CROWDED_SWITCHES_PER_CPU_SECOND = 100.0
_LEAST_CPU_SECONDS = 0.1
"""Of a window that says anything: an idle time does not."""
_ALONE_SECONDS = 5.0


@dataclass
class ThreadGovernor:
    """Decides from (time, processor time and involuntary switches of this process so far).

    `most` threads at first, one for 5 s after a crowded window.
    """

    most: int
    threads: int = 0
    _window_start: float = 0.0
    _window_switches: int = 0
    _window_cpu: float = 0.0
    _crowded_until: float = 0.0

    def __post_init__(self) -> None:
        self.threads = self.most

    def decide(self, now_seconds: float, cpu_seconds: float, switches: int) -> int:
        """Threads for the next step."""
        elapsed = now_seconds - self._window_start
        if elapsed < _WINDOW_SECONDS:
            return self.threads
        used = cpu_seconds - self._window_cpu
        crowded = switches - self._window_switches > _CROWDED_SWITCHES_PER_CPU_SECOND * used
        if self.threads > 1 and used > _LEAST_CPU_SECONDS and crowded:
            self.threads, self._crowded_until = 1, now_seconds + _ALONE_SECONDS
        elif self.threads < self.most and now_seconds >= self._crowded_until:
            self.threads = self.most
        self._window_start, self._window_cpu, self._window_switches = now_seconds, cpu_seconds, switches
        return self.threads


def apply(governor: ThreadGovernor, now_seconds: float) -> None:
    """Asks the governor and sets torch's threads when its answer changed."""
    before = governor.threads
    usage = resource.getrusage(resource.RUSAGE_SELF)
    threads = governor.decide(now_seconds, usage.ru_utime + usage.ru_stime, usage.ru_nivcsw)
    if threads != before:
        set_threads(threads)


def set_threads(count: int) -> None:
    """Sets the threads of torch's operations in this process."""
    torch.set_num_threads(count)
