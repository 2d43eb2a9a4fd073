"""When a container that ended is started again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BackoffPolicy:
    """The kubelet's figures; `initial_seconds` may be smaller in tests."""

    initial_seconds: float = 10.0
    max_seconds: float = 300.0
    reset_seconds: float = 600.0


@dataclass(frozen=True)
class Backoff:
    """State between two restarts: the delay before the next start (0 = at once)."""

    delay_seconds: float = 0.0

    def after_exit(self, ran_seconds: float, policy: BackoffPolicy) -> "Backoff":
        """The state to keep while waiting after an exit: a long run forgives earlier ones."""
        return Backoff() if ran_seconds >= policy.reset_seconds else self

    def after_start(self, policy: BackoffPolicy) -> "Backoff":
        """The state after one more restart: 0, then the initial delay, doubling up to the maximum."""
        if self.delay_seconds == 0:
            return Backoff(policy.initial_seconds)
        return Backoff(min(self.delay_seconds * 2, policy.max_seconds))


def describe_delay(seconds: float) -> str:
    """`10s`, `1m20s`, `5m0s`: the spelling of Kubernetes' messages."""
    whole = round(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60}s"
