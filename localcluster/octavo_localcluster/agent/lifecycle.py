"""Which container of a pod runs next: a pure decision from what each container did so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["new", "running", "ended"]


@dataclass(frozen=True)
class ContainerView:
    """What the decision needs to know of one container; times in seconds since the epoch."""

    name: str
    init: bool
    phase: Phase
    exit_code: int = 0
    ended_at: float = 0.0
    delay_seconds: float = 0.0
    retry_at: float = 0.0


@dataclass
class Plan:
    """What to do now.

    `backing_off` names containers whose restart waits; `wake_at` is when to decide again; `outcome` is set once nothing
    will run any more.
    """

    start: list[str] = field(default_factory=list)
    backing_off: list[str] = field(default_factory=list)
    wake_at: float | None = None
    outcome: Literal["Succeeded", "Failed"] | None = None


def restarts(policy: str, exit_code: int, *, init: bool) -> bool:
    """Whether a container that ended with this code is started again."""
    if init:
        return exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def decide(policy: str, containers: Sequence[ContainerView], now: float) -> Plan:
    """Init containers one after another, then all others together, each restarted as the policy says."""
    plan = Plan()
    for container in containers:
        if not container.init or (container.phase == "ended" and container.exit_code == 0):
            continue
        if container.phase == "ended" and not restarts(policy, container.exit_code, init=True):
            plan.outcome = "Failed"
        elif container.phase != "running":
            _start(plan, container, now)
        return plan
    mains = [container for container in containers if not container.init]
    for container in mains:
        wanted = container.phase == "new" or (
            container.phase == "ended" and restarts(policy, container.exit_code, init=False)
        )
        if wanted:
            _start(plan, container, now)
    over = all(c.phase == "ended" and not restarts(policy, c.exit_code, init=False) for c in mains)
    if over:
        plan.outcome = "Succeeded" if all(c.exit_code == 0 for c in mains) else "Failed"
    return plan


def _start(plan: Plan, container: ContainerView, now: float) -> None:
    due = container.retry_at
    if container.phase == "ended":
        due = max(due, container.ended_at + container.delay_seconds)
    if due <= now:
        plan.start.append(container.name)
        return
    if container.phase == "ended":
        plan.backing_off.append(container.name)
    plan.wake_at = due if plan.wake_at is None else min(plan.wake_at, due)
