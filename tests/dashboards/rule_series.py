"""For each alert: series that must fire it and near misses that must not, in promtool's notation, a point a minute.

Hours are long enough for the longest window of the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

WHO = 'namespace="team",service="chat"'
LABELS = {"namespace": "team", "service": "chat"}


@dataclass(frozen=True)
class Case:
    """Series of one test of an alert."""

    series: dict[str, str]
    minutes: int
    """When the alert is asked for."""
    labels: dict[str, str] | None
    """Labels of the alert that must fire then, without severity; None = it must be quiet."""


def pool(active: int, waiting: int) -> dict[str, str]:
    """A pool of 1,000 blocks of 16 tokens."""
    return {
        f'octavo_kv_cache_blocks{{{WHO},pod="a",state="active"}}': f"{active}x60",
        f'octavo_kv_cache_block_size_tokens{{{WHO},pod="a"}}': "16x60",
        f'octavo_kv_cache_capacity_tokens{{{WHO},pod="a"}}': "16000x60",
        f'octavo_requests_waiting{{{WHO},pod="a"}}': f"{waiting}x60",
    }


Phase = tuple[int, int, int]
"""(good requests a minute, bad ones a minute, minutes)."""


def counter(*phases: tuple[int, int]) -> str:
    """A counter that grows by (so much a minute, so many minutes), phase after phase."""
    values, level = ["0"], 0
    for per_minute, minutes in phases:
        values.append(f"{level + per_minute}+{per_minute}x{minutes - 1}")
        level += per_minute * minutes
    return " ".join(values)


def first_tokens(*phases: Phase) -> dict[str, str]:
    """Requests whose first token was in time, and those where it was late."""
    name = "octavo_time_to_first_token_seconds"
    return {
        f'{name}_bucket{{{WHO},le="2.0"}}': counter(*((good, minutes) for good, _, minutes in phases)),
        f"{name}_count{{{WHO}}}": counter(*((good + bad, minutes) for good, bad, minutes in phases)),
    }


def ends(*phases: Phase) -> dict[str, str]:
    """Requests that ended well, and those that ended with an error."""
    name = "octavo_requests_finished_total"
    return {
        f'{name}{{{WHO},reason="stop"}}': counter(*((good, minutes) for good, _, minutes in phases)),
        f'{name}{{{WHO},reason="error"}}': counter(*((bad, minutes) for _, bad, minutes in phases)),
    }


def queue(below_ten: int, below_thirty: int) -> dict[str, str]:
    name = f"octavo_queue_seconds_bucket{{{WHO},le="
    return {
        f'{name}"10.0"}}': f"0+{below_ten}x60",
        f'{name}"30.0"}}': f"0+{below_thirty}x60",
        f'{name}"+Inf"}}': f"0+{below_thirty}x60",
    }


def replicas(desired: int | None, answering: int, ready: int) -> dict[str, str]:
    found = {f'octavo_requests_received_total{{{WHO},pod="{pod}"}}': "0x60" for pod in range(answering)}
    found |= {f'octavo_build_info{{{WHO},pod="{pod}",cuda="12.8"}}': "1x60" for pod in range(ready)}
    return found | ({} if desired is None else {f"octavo_desired_replicas{{{WHO}}}": f"{desired}x60"})


def one(series: str, values: str) -> dict[str, str]:
    return {series: values}


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {f'octavo_service_condition{{{WHO},type="{kind}",status="{status}",reason="{reason}"}}': "1x90"}


FALLBACK = f'octavo_kernel_fallback{{{WHO},pod="a",reason="driver below CUDA 12.6"}}'
CASES: dict[str, tuple[Case, ...]] = {
    "OctavoKVCacheFull": (
        Case(pool(950, 3), 15, LABELS),
        Case(pool(950, 3), 8, None),
        Case(pool(950, 0), 15, None),
        Case(pool(850, 3), 15, None),
    ),
    "OctavoPreemptions": (
        Case(one(f"octavo_preemptions_total{{{WHO}}}", "0+12x60"), 20, LABELS),
        Case(one(f"octavo_preemptions_total{{{WHO}}}", "0+3x60"), 20, None),
    ),
    "OctavoTimeToFirstTokenBurnFast": (
        Case(first_tokens((80, 20, 120)), 70, LABELS),
        Case(first_tokens((90, 10, 120)), 70, None),
        # Five bad minutes after good ones: the long window is still calm.
        Case(first_tokens((100, 0, 110), (20, 80, 5)), 115, None),
        # A bad hour that is over: the short window is calm again.
        Case(first_tokens((80, 20, 60), (100, 0, 20)), 72, None),
    ),
    "OctavoTimeToFirstTokenBurnSlow": (
        Case(first_tokens((92, 8, 500)), 400, LABELS),
        Case(first_tokens((96, 4, 500)), 400, None),
        # Half a bad hour in a good day, and a bad morning that is over.
        Case(first_tokens((100, 0, 400), (92, 8, 45)), 440, None),
        Case(first_tokens((90, 10, 360), (100, 0, 60)), 410, None),
    ),
    "OctavoRequestErrors": (
        Case(ends((80, 20, 120)), 70, LABELS),
        Case(ends((90, 10, 120)), 70, None),
        Case(ends((0, 0, 120)), 70, None),
        Case(ends((100, 0, 110), (20, 80, 5)), 115, None),
        Case(ends((80, 20, 60), (100, 0, 20)), 72, None),
    ),
    "OctavoRequestErrorsSlow": (
        Case(ends((92, 8, 500)), 400, LABELS),
        Case(ends((96, 4, 500)), 400, None),
        Case(ends((100, 0, 400), (92, 8, 45)), 440, None),
        Case(ends((90, 10, 360), (100, 0, 60)), 410, None),
    ),
    "OctavoRequestsWaitLong": (
        Case(queue(50, 100), 20, LABELS),
        Case(queue(99, 100), 20, None),
    ),
    "OctavoNoReadyReplica": (
        Case(replicas(None, 2, 0), 15, LABELS),
        Case(replicas(None, 2, 1), 15, None),
        Case(replicas(2, 2, 0), 5, None),
    ),
    "OctavoServiceSilent": (
        Case(replicas(2, 0, 0), 15, LABELS),
        Case(replicas(2, 1, 0), 15, None),
        Case(replicas(0, 0, 0), 15, None),
    ),
    "OctavoReplicasMissing": (
        Case(replicas(3, 2, 1), 25, LABELS),
        Case(replicas(3, 3, 3), 25, None),
        Case(replicas(1, 2, 2), 25, None),
        Case(replicas(3, 2, 1) | condition("Progressing", "False", "CrashLoopBackOff"), 25, None),
        Case(replicas(3, 2, 1) | condition("Progressing", "True", "RollingOut"), 25, LABELS),
    ),
    "OctavoScalingHeld": (
        Case(one(f"octavo_scaling_unknown_pods{{{WHO}}}", "1x60"), 15, LABELS),
        Case(one(f"octavo_scaling_unknown_pods{{{WHO}}}", "1 1 1 0x60"), 15, None),
    ),
    "OctavoFetchFailing": (
        Case(condition("ModelReady", "False", "AccessDenied"), 15, LABELS | {"reason": "AccessDenied"}),
        Case(condition("ModelReady", "False", "AccessDenied"), 8, None),
        Case(condition("ModelReady", "False", "Fetching"), 30, None),
        Case(condition("ModelReady", "Unknown", "NotChecked"), 30, None),
    ),
    "OctavoRolloutStuck": (
        Case(condition("Progressing", "False", "CrashLoopBackOff"), 20, LABELS | {"reason": "CrashLoopBackOff"}),
        Case(condition("Progressing", "False", "CrashLoopBackOff"), 10, None),
        Case(condition("Progressing", "True", "RollingOut"), 60, None),
        Case(condition("Progressing", "False", "WaitingForAccelerator"), 60, None),
        Case(
            condition("Progressing", "False", "AccessDenied") | condition("ModelReady", "False", "AccessDenied"),
            60,
            None,
        ),
        Case(
            condition("Progressing", "False", "DriverTooOld") | condition("ImageResolved", "False", "DriverTooOld"),
            60,
            None,
        ),
    ),
    "OctavoWaitingForAccelerator": (
        Case(
            condition("Progressing", "False", "WaitingForAccelerator"), 20, LABELS | {"reason": "WaitingForAccelerator"}
        ),
        Case(
            condition("ScalingActive", "True", "WaitingForAccelerator"),
            20,
            LABELS | {"reason": "WaitingForAccelerator"},
        ),
        Case(condition("Progressing", "False", "Unschedulable"), 20, None),
        Case(condition("Progressing", "False", "WaitingForAccelerator"), 10, None),
    ),
    "OctavoCalibrationFailing": (
        Case(one("octavo_operator_calibrations_failing", "1x90"), 70, {}),
        Case(one("octavo_operator_calibrations_failing", "1x30 0x60"), 70, None),
    ),
    "OctavoNodeTypesUnresolved": (
        Case(condition("NodeTypesResolved", "False", "NoNodeFits"), 15, LABELS | {"reason": "NoNodeFits"}),
        Case(condition("NodeTypesResolved", "False", "TypeHeld"), 15, LABELS | {"reason": "TypeHeld"}),
        Case(condition("NodeTypesResolved", "False", "NoNodeFits"), 8, None),
        Case(condition("NodeTypesResolved", "Unknown", "NoNodeListed"), 15, None),
        Case(condition("NodeTypesResolved", "False", "NoImage"), 15, None),
    ),
    "OctavoImageUnresolved": (
        Case(condition("ImageResolved", "False", "DriverTooOld"), 15, LABELS | {"reason": "DriverTooOld"}),
        Case(condition("ImageResolved", "False", "DriverTooOld"), 8, None),
        Case(condition("ImageResolved", "False", "NoNodeFits"), 15, None),
        Case(condition("ImageResolved", "True", "KernelFallback"), 15, None),
    ),
    "OctavoKernelFallback": (
        Case(one(FALLBACK, "1x60"), 20, LABELS | {"reason": "driver below CUDA 12.6"}),
        Case(one(FALLBACK, "0x60"), 20, None),
    ),
    "OctavoNodesUnread": (
        Case(one("octavo_operator_nodes_unread", "1x60"), 40, {}),
        Case(one("octavo_operator_nodes_unread", "0x60"), 40, None),
    ),
    "OctavoReconcileErrors": (
        Case(one('octavo_operator_reconcile_errors_total{reason="Conflict"}', "0+1x60"), 20, {"reason": "Conflict"}),
        # Four failures in a reason's first minute: its series is born with them, and grows no more.
        Case(
            one('octavo_operator_reconcile_errors_total{reason="Forbidden"}', "_x10 4x60"), 18, {"reason": "Forbidden"}
        ),
        Case(one('octavo_operator_reconcile_errors_total{reason="Forbidden"}', "_x10 2x60"), 18, None),
        Case(one('octavo_operator_reconcile_errors_total{reason="Conflict"}', "0x10 2x60"), 20, None),
    ),
    "OctavoQueueOld": (
        Case(one("octavo_operator_queue_oldest_seconds", "90x60"), 10, {}),
        Case(one("octavo_operator_queue_oldest_seconds", "30x60"), 10, None),
    ),
    "OctavoNoLeader": (
        Case(one('octavo_operator_leader{pod="a"}', "0x60"), 10, {}),
        Case(one('octavo_operator_leader{pod="a"}', "0x60") | one('octavo_operator_leader{pod="b"}', "1x60"), 10, None),
    ),
    "OctavoOperatorAbsent": (
        Case(one("up", "1x60"), 10, {}),
        Case(one('octavo_operator_leader{pod="a"}', "0x60"), 10, None),
    ),
}
