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
    """Share of the sustained capacity, and of the throughput of a replica with a queue, that demand should fill."""
    scale_down_seconds: float | None = None
    """How long a smaller demand must last before a replica goes; None: a multiple of the time a replica takes to start.
    """
    idle_seconds: float = 600.0
    """How long a service must be idle before its last replica goes."""
    tolerance: float = 0.10
    """A demand that exceeds the present count by no more than this share adds nothing."""
    margin: float = 0.0
    """A replica goes only if the others would be filled to less than their target by this share."""
    startup_prior_seconds: float = 120.0
    """Assumed time from asked for to serving until a replica showed it."""
    startup_most_seconds: float = 900.0
    window_startups: float = 2.0
    """Scale-down window by default, in start-up times: an idle replica costs that much, one too few twice that in SLO.
    """
    window_least_seconds: float = 60.0
    window_most_seconds: float = 600.0
    lull_startups: float = 10.0
    """A load that came back within so many start-up times and then found too few replicas is waited for next time."""
    lull_margin: float = 1.25
    keep_share: float = 0.7
    """The replicas suffice for this share of the largest demand of late: what came once comes again, and part of the
    way up is then gone already. No more than what is expected and the largest rise of late within the time that
    replicas take to answer. Not where `scale_down_seconds` is set: that says how long to wait."""
    keep_startups: float = 20.0
    """Of late, in start-up times."""
    keep_most_seconds: float = 3600.0
    trend_responses: float = 2.0
    """From how long a past the trend is read, in times from a rise to the replicas for it."""
    trend_deviations: float = 2.0
    """By how many standard deviations of chance a trend is discounted."""
    falling_seconds: float = 30.0
    """The scale-down window while the load falls steadily."""
    active_deviations: float = 1.4
    """By how many of 1 ÷ √(running requests) what is held now is discounted: how many run is chance, and with their
    lengths √2 as much. What the whole window held counts in full."""
    imbalance: float = 0.15
    """Room for uneven shares of the load, in roots of the replicas needed."""
    saturation_seconds: float = 10.0
    """How long a queue must have lasted before the recent seconds for their completions to show the throughput."""
    unlearned_share: float = 0.8
    """Share of the blocks that counts as sustained until a queue was seen, and at most."""
    settle_seconds: float = 30.0
    """After a pod became ready its uses teach nothing: caches and graphs are cold."""
    drain_backlog_seconds: float = 60.0
    """Waiting requests count as arrivals that shall be served within this time."""
    burst_deviations: float = 1.0
    """By how many standard deviations recent arrivals are discounted before they count as a burst."""
    residency_seconds: float = 180.0
    """Time constant of the mean residency. Lengths of requests spread widely: a shorter one follows chance."""
    unlearned_seconds: float = 15.0
    """Before a residency is known, arrivals of so long add to what is held: a decision's length."""
    rise_seconds: float = 60.0
    """Over this time the count grows by at most max(rise_least, 100 %)."""
    rise_least: int = 4
    regret_windows: float = 5.0
    """A removal that is undone within so many scale-down windows was one too many."""
    regret_seconds: float = 3600.0
    """How long a removal that had to be undone is remembered."""
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
