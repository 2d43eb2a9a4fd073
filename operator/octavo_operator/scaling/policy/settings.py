"""Settings of the policy: what a service may set, and the constants of the algorithm with their reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PolicySettings:
    """One service's settings; the first six come from `spec.scaling`."""

    min_replicas: int = 1
    """0 acts as 1 while nothing can wake the service."""
    max_replicas: int = 1
    target: float = 0.8
    """Share of the sustained capacity that demand should fill."""
    scale_down_seconds: float = 300.0
    """How long a smaller demand must last before a replica goes."""
    idle_seconds: float = 600.0
    """How long a service must be idle before its last replica goes."""
    tolerance: float = 0.10
    """A demand within this share of the present count changes nothing."""
    unlearned_share: float = 0.8
    """Share of the blocks that counts as sustained until a queue was seen, and at most."""
    settle_seconds: float = 30.0
    """After a pod became ready its uses teach nothing: caches and graphs are cold."""
    drain_backlog_seconds: float = 120.0
    """Waiting requests count as arrivals that shall be served within this time."""
    burst_deviations: float = 2.0
    """By how many standard deviations recent arrivals are discounted before they count as a burst."""
    residency_seconds: float = 60.0
    """Time constant of the mean residency."""
    rise_seconds: float = 60.0
    """Over this time the count grows by at most max(rise_least, 100 %)."""
    rise_least: int = 4
    regret_seconds: float = 3600.0
    """How long a removal that had to be undone is remembered."""
    most_stretch: float = 4.0
    """Each removal that had to be undone doubles the scale-down window, up to this."""
    unschedulable_seconds: float = 300.0
    """A replica for which no node was found this long is withdrawn; less would outrun an autoscaler of nodes."""
    retry_seconds: float = 300.0
    """After a withdrawal nothing is added for this time, unless an accelerator becomes free."""

    def __post_init__(self) -> None:
        """Refuse what would make the arithmetic meaningless."""
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise ValueError(
                f"minReplicas {self.min_replicas}, maxReplicas {self.max_replicas}: need 0 ≤ min ≤ max and max ≥ 1"
            )
        if not 0 < self.target <= 1:
            raise ValueError(f"target {self.target}: a share above 0 and at most 1")
