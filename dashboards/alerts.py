"""Recording and alert rules as data. Each alert has a runbook of its name in docs/runbooks."""

from __future__ import annotations

from dataclasses import dataclass

BY = "by (namespace, service)"
ON = "on (namespace, service)"
FIRST_TOKEN_SECONDS = "2.0"
"""The service level's time to the first token: an upper bound of one of the histogram's buckets, as it is printed."""
BUDGET = 0.01
"""Share of requests that may miss it: 99 % in 30 days."""
FAST, SLOW = 14.4, 6.0
"""Rates at which an hour eats 2 %, and six hours 5 %, of 30 days' budget."""
WINDOWS = ("5m", "30m", "1h", "6h")


@dataclass(frozen=True)
class Recording:
    """A query whose result is kept under a name of its own."""

    record: str
    expression: str


@dataclass(frozen=True)
class Alert:
    """One alert; `summary` and `description` may use {{ $labels.… }} and {{ $value }}."""

    name: str
    severity: str
    """critical: wake somebody. warning: in working hours. info: for the record."""
    wait: str
    """How long the expression must hold."""
    expression: str
    summary: str
    description: str


def _slow(window: str) -> str:
    metric = "octavo_time_to_first_token_seconds"
    return (
        f'1 - sum {BY} (rate({metric}_bucket{{le="{FIRST_TOKEN_SECONDS}"}}[{window}]))'
        f" / (sum {BY} (rate({metric}_count[{window}])) > 0)"
    )


def _failed(window: str) -> str:
    metric = "octavo_requests_finished_total"
    return f'sum {BY} (rate({metric}{{reason="error"}}[{window}])) / (sum {BY} (rate({metric}[{window}])) > 0)'


def _burn(rule: str, short: str, long: str, factor: float) -> str:
    limit = f"{factor} * {BUDGET}"
    return f"{rule}{short} > {limit} and {rule}{long} > {limit}"


_CAUSES = "ModelReady|NodeTypesResolved|ImageResolved"
"""Conditions with alerts of their own, from which others follow."""
_EXPLAINED = f'octavo_service_condition{{type=~"Progressing|{_CAUSES}",status="False"}}'
_FAILURES = "octavo_operator_reconcile_errors_total"


def _condition(selector: str) -> str:
    return f"max by (namespace, service, reason) (octavo_service_condition{{{selector}}}) == 1"


RECORDINGS = (
    Recording("octavo:replicas_ready:count", f"count {BY} (octavo_build_info)"),
    Recording(
        "octavo:kv_cache_usage:ratio",
        f'sum {BY} (octavo_kv_cache_blocks{{state="active"}} * ignoring (state) octavo_kv_cache_block_size_tokens)'
        f" / sum {BY} (octavo_kv_cache_capacity_tokens)",
    ),
    Recording("octavo:requests_waiting:sum", f"sum {BY} (octavo_requests_waiting)"),
    Recording("octavo:generation_tokens:rate5m", f"sum {BY} (rate(octavo_generation_tokens_total[5m]))"),
    *(Recording(f"octavo:first_token_slow:ratio_rate{window}", _slow(window)) for window in WINDOWS),
    *(Recording(f"octavo:requests_failed:ratio_rate{window}", _failed(window)) for window in WINDOWS),
)
WHO = "{{ $labels.namespace }}/{{ $labels.service }}"
PERCENT = "{{ $value | humanizePercentage }}"
ALERTS = (
    Alert(
        "OctavoKVCacheFull",
        "warning",
        "10m",
        "octavo:kv_cache_usage:ratio > 0.9 and octavo:requests_waiting:sum > 0",
        f"{WHO}: the KV cache is full and requests wait",
        f"{PERCENT} of all blocks are in use for 10 minutes while requests have no place in the batch.",
    ),
    Alert(
        "OctavoPreemptions",
        "warning",
        "10m",
        f"sum {BY} (rate(octavo_preemptions_total[5m])) > 0.1",
        f"{WHO}: requests lose their blocks",
        "{{ $value | humanize }} requests per second are preempted and computed again: work is done twice.",
    ),
    Alert(
        "OctavoTimeToFirstTokenBurnFast",
        "critical",
        "2m",
        _burn("octavo:first_token_slow:ratio_rate", "5m", "1h", FAST),
        f"{WHO}: first tokens come late; the month's budget is gone in two days",
        f"{PERCENT} of requests waited longer than {FIRST_TOKEN_SECONDS} s for the first token.",
    ),
    Alert(
        "OctavoTimeToFirstTokenBurnSlow",
        "warning",
        "15m",
        _burn("octavo:first_token_slow:ratio_rate", "30m", "6h", SLOW),
        f"{WHO}: first tokens come late; the month's budget is gone in five days",
        f"{PERCENT} of requests waited longer than {FIRST_TOKEN_SECONDS} s for the first token.",
    ),
    Alert(
        "OctavoRequestErrors",
        "critical",
        "2m",
        _burn("octavo:requests_failed:ratio_rate", "5m", "1h", FAST),
        f"{WHO}: requests fail",
        f"{PERCENT} of choices ended with an error.",
    ),
    Alert(
        "OctavoRequestErrorsSlow",
        "warning",
        "15m",
        _burn("octavo:requests_failed:ratio_rate", "30m", "6h", SLOW),
        f"{WHO}: some requests fail, for hours",
        f"{PERCENT} of choices ended with an error.",
    ),
    Alert(
        "OctavoRequestsWaitLong",
        "warning",
        "10m",
        "histogram_quantile(0.95, sum by (le, namespace, service) (rate(octavo_queue_seconds_bucket[5m]))) > 10",
        f"{WHO}: requests wait long in the queue",
        "One request in twenty waits longer than {{ $value | humanizeDuration }} for its first step.",
    ),
    Alert(
        "OctavoNoReadyReplica",
        "critical",
        "10m",
        f"count {BY} (octavo_requests_received_total) unless {ON} octavo:replicas_ready:count",
        f"{WHO}: no replica is ready",
        "{{ $value }} pods answer a scrape, and none of them was ready yet.",
    ),
    Alert(
        "OctavoServiceSilent",
        "critical",
        "10m",
        f"max {BY} (octavo_desired_replicas) > 0 unless {ON} count {BY} (octavo_requests_received_total)",
        f"{WHO}: no pod answers a scrape",
        "{{ $value }} replicas are wanted; either none runs, or Prometheus can't reach them.",
    ),
    Alert(
        "OctavoReplicasMissing",
        "warning",
        "20m",
        f"max {BY} (octavo_desired_replicas) - {ON} octavo:replicas_ready:count > 0"
        # What a condition explains is left to that condition's alert.
        f" unless {ON} ({_EXPLAINED} == 1)",
        f"{WHO}: fewer replicas than wanted",
        "{{ $value }} wanted replicas are not ready for 20 minutes, and no condition of the service says why.",
    ),
    Alert(
        "OctavoScalingHeld",
        "warning",
        "10m",
        f"max {BY} (octavo_scaling_unknown_pods) > 0",
        f"{WHO}: scaling is held",
        "The operator has no fresh metrics of {{ $value }} serving pods, and neither adds nor removes on a guess.",
    ),
    Alert(
        "OctavoFetchFailing",
        "warning",
        "10m",
        _condition('type="ModelReady",status="False",reason!~"Fetching|CheckPending"'),
        f"{WHO}: the model can't be had: {{{{ $labels.reason }}}}",
        "The check or the download of the model fails for 10 minutes. Replicas that run go on; new ones can't start.",
    ),
    Alert(
        "OctavoRolloutStuck",
        "warning",
        "15m",
        # What other alerts speak of is left to them.
        _condition('type="Progressing",status="False",reason!="WaitingForAccelerator"')
        + f' unless {ON} (octavo_service_condition{{type=~"{_CAUSES}",status="False"}} == 1)',
        f"{WHO}: the rollout is stuck: {{{{ $labels.reason }}}}",
        "Replicas of the present spec do not become ready for 15 minutes. What served before serves on.",
    ),
    Alert(
        "OctavoWaitingForAccelerator",
        "warning",
        "15m",
        _condition('type=~"Progressing|ScalingActive",reason="WaitingForAccelerator"'),
        f"{WHO}: no accelerator is free",
        "A replica waits for an accelerator for 15 minutes; the condition's message names the kind.",
    ),
    Alert(
        "OctavoCalibrationFailing",
        "info",
        "1h",
        "max(octavo_operator_calibrations_failing) > 0",
        "Block sizes can't be measured",
        "{{ $value }} TuningProfiles have no result, and their last calibration failed. The default block size serves.",
    ),
    Alert(
        "OctavoNodeTypesUnresolved",
        "warning",
        "10m",
        _condition('type="NodeTypesResolved",status="False",reason!="NoImage"'),
        f"{WHO}: no node fits: {{{{ $labels.reason }}}}",
        "For 10 minutes no node is what the service asks for, or the nodes of its replicas are no longer what they"
        " were. What runs goes on; nothing new is planned.",
    ),
    Alert(
        "OctavoImageUnresolved",
        "warning",
        "10m",
        # Without a node there is no image to choose: that is the alert above.
        _condition('type="ImageResolved",status="False",reason!~"NoNodeFits|NodesNotReadable"'),
        f"{WHO}: no image runs on its nodes: {{{{ $labels.reason }}}}",
        "For 10 minutes no image of the catalogue runs on the nodes that fit. The condition names both versions and the"
        " smallest upgrade that would help.",
    ),
    Alert(
        "OctavoKernelFallback",
        "info",
        "15m",
        "count by (namespace, service, reason) (octavo_kernel_fallback == 1)",
        f"{WHO}: slower kernels are in use",
        "{{ $value }} replicas, because: {{ $labels.reason }}",
    ),
    Alert(
        "OctavoNodesUnread",
        "info",
        "30m",
        "max(octavo_operator_nodes_unread) > 0",
        "Labels of nodes can't be read",
        "{{ $value }} nodes have accelerator labels that are missing or odd: no replica is planned for them."
        " `octavo explain nodes` names them.",
    ),
    Alert(
        "OctavoReconcileErrors",
        "warning",
        "5m",
        # A reason's series is born with its first failure, which increase() alone would not count.
        f"sum by (reason) (({_FAILURES} unless {_FAILURES} offset 10m) or increase({_FAILURES}[10m])) > 3",
        "The operator's reconciliations fail: {{ $labels.reason }}",
        "{{ $value | humanize }} failures in 10 minutes.",
    ),
    Alert(
        "OctavoQueueOld",
        "warning",
        "5m",
        "max(octavo_operator_queue_oldest_seconds) > 60",
        "The operator lags behind",
        "A service has waited {{ $value | humanizeDuration }} for a worker.",
    ),
    Alert(
        "OctavoNoLeader",
        "critical",
        "5m",
        "sum(octavo_operator_leader) < 1",
        "No operator works",
        "Operator pods answer, and none of them holds the Lease. What runs goes on; nothing is repaired or scaled.",
    ),
    Alert(
        "OctavoOperatorAbsent",
        "critical",
        "5m",
        "absent(octavo_operator_leader)",
        "The operator's metrics are absent",
        "No operator pod answers a scrape. What runs goes on; nothing is repaired or scaled.",
    ),
)
