"""What the policy looks at: the replicas of one service at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo_operator.scaling.window import Signals, Unknown

Kind = tuple[str, str]
"""Node type and template of a pod: capacity is learned for each, and never merged."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One server pod that is not on its way out."""

    name: str
    node_type: str
    template: str
    ready_since: float | None
    """None while it starts."""
    seen: Signals | Unknown
    unschedulable_since: float | None = None
    """Since when the scheduler has found no node for it."""
    startup_seconds: float | None = None
    """From asked for to serving; None where it can't be told, for instance after a restart of its container."""

    @property
    def kind(self) -> Kind:
        """What its capacity is learned for."""
        return self.node_type, self.template


@dataclass(frozen=True, slots=True)
class Wake:
    """Something in front of the service holds requests while it has no replica."""

    requested_at: float | None = None
    """When it last asked for a replica."""


@dataclass(frozen=True)
class Fleet:
    """The service as of now."""

    replicas: int
    """Count in force: what was asked for, whether it runs yet or not."""
    pods: tuple[Pod, ...] = ()
    spare: int | None = None
    """Replicas that free accelerators could take; None when not known."""
    wake: Wake | None = None
    rolling: bool = False
    """Whether a rollout goes on: pods of an older template serve as well."""

    def known(self) -> Iterator[tuple[Pod, Signals]]:
        """Ready pods with fresh, complete signals."""
        for pod in self.pods:
            if pod.ready_since is not None and isinstance(pod.seen, Signals):
                yield pod, pod.seen

    def unknown(self) -> list[tuple[Pod, Unknown]]:
        """Ready pods without."""
        return [(pod, pod.seen) for pod in self.pods if pod.ready_since is not None and isinstance(pod.seen, Unknown)]

    @property
    def ready(self) -> int:
        """Pods that serve."""
        return sum(pod.ready_since is not None for pod in self.pods)

    @property
    def pending(self) -> int:
        """Replicas asked for that do not serve yet: they count as supply."""
        return max(0, self.replicas - self.ready)

    @property
    def homeless(self) -> bool:
        """Whether the scheduler has found no node for some pod."""
        return any(pod.unschedulable_since is not None for pod in self.pods)

    def stuck(self, now: float, patience_seconds: float) -> int:
        """Pods that wait for a node longer than this."""
        return sum(
            pod.ready_since is None
            and pod.unschedulable_since is not None
            and now - pod.unschedulable_since >= patience_seconds
            for pod in self.pods
        )
