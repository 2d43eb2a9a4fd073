"""When a probe's answers change what is believed of a container."""

from dataclasses import dataclass

from .api import Object


@dataclass(frozen=True)
class ProbeSettings:
    """The numbers of a probe, with Kubernetes' defaults."""

    initial_delay_seconds: float = 0.0
    period_seconds: float = 10.0
    timeout_seconds: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3
    grace_seconds: float | None = None

    @classmethod
    def of(cls, probe: Object) -> "ProbeSettings":
        """Read a probe of a pod."""
        grace = probe.get("terminationGracePeriodSeconds")
        return cls(
            initial_delay_seconds=float(probe.get("initialDelaySeconds") or 0),
            period_seconds=float(probe.get("periodSeconds") or 10),
            timeout_seconds=float(probe.get("timeoutSeconds") or 1),
            success_threshold=int(probe.get("successThreshold") or 1),
            failure_threshold=int(probe.get("failureThreshold") or 3),
            grace_seconds=None if grace is None else float(grace),
        )


@dataclass(frozen=True)
class ProbeState:
    """`result` is what is believed (None: nothing yet); `streak` counts equal answers in a row."""

    result: bool | None
    last: bool | None = None
    streak: int = 0

    def observe(self, ok: bool, settings: ProbeSettings) -> "ProbeState":
        """The state after one more answer: it counts once its threshold of equal answers in a row is reached."""
        streak = self.streak + 1 if self.last == ok else 1
        threshold = settings.success_threshold if ok else settings.failure_threshold
        return ProbeState(ok if streak >= threshold else self.result, ok, streak)
