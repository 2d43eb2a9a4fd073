"""The five boards. Queries name only metrics of docs/reference/metrics.md and of the operator's page beside it."""

from __future__ import annotations

from dataclasses import replace

from .panels import SERIES, Board, Panel

BY = "by (namespace, service)"
WINDOW = "$__rate_interval"
RATE = f"[{WINDOW}]"
NAME = "{{namespace}}/{{service}}"


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, sum by (le, namespace, service) (rate({metric}_bucket{SERIES}{RATE})))"


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple((_quantile(share, metric), f"p{share * 100:.0f} {NAME}") for share in (0.5, 0.95, 0.99))


def _sum(metric: str) -> str:
    return f"sum {BY} ({metric}{SERIES})"


def _rate(metric: str) -> str:
    return f"sum {BY} (rate({metric}{SERIES}{RATE}))"


def _counted(metric: str, labels: str, selector: str = "") -> str:
    """What a counter grew by, for series that are born with their first value: rate() and increase() see growth alone,
    and would miss that a thing happened for the first time. All of a series that is younger than the window is new.
    """
    series = f"{metric}{selector}"
    return f"sum by ({labels}) (({series} unless {series} offset {WINDOW}) or increase({series}[{WINDOW}]))"


def _blocks(state: str) -> str:
    selector = SERIES[:-1] + f',state="{state}"}}'
    return (
        f"sum {BY} (octavo_kv_cache_blocks{selector} * ignoring (state) octavo_kv_cache_block_size_tokens{SERIES})"
        f" / sum {BY} (octavo_kv_cache_capacity_tokens{SERIES})"
    )


USAGE = Panel(
    "KV cache in use",
    "Tokens of active blocks ÷ tokens that all pools hold. Cached blocks count as free.",
    "percentunit",
    ((_blocks("active"), NAME),),
    high=1,
    runbook="OctavoKVCacheFull",
)
WAITING = Panel(
    "Requests that wait",
    "Requests without a place in the batch. A queue that stays means: too little cache or too few replicas.",
    "short",
    ((_sum("octavo_requests_waiting"), NAME),),
    runbook="OctavoRequestsWaitLong",
)
READY = Panel(
    "Ready replicas",
    "Pods that were ready and answer a scrape.",
    "short",
    ((f"count {BY} (octavo_build_info{SERIES})", NAME),),
    runbook="OctavoNoReadyReplica",
)


def _ratio(record: str, *windows: str) -> tuple[tuple[str, str], ...]:
    """A recording rule's shares over several windows."""
    return tuple((f"octavo:{record}:ratio_rate{window}{SERIES}", f"{window} {NAME}") for window in windows)


SERVICE = Board(
    "octavo-service",
    "Octavo / Service",
    "What users of a service see: latency, throughput, errors and the queue.",
    (
        (
            "Service level",
            (
                Panel(
                    "First tokens that come late",
                    "Share of requests that waited longer for the first token than the target of the alert rules (2 s"
                    " as shipped). 1 % over a month is the budget; it burns fast above 14.4 %, for days above 6 %.",
                    "percentunit",
                    _ratio("first_token_slow", "5m", "1h", "6h"),
                    high=1,
                    runbook="OctavoTimeToFirstTokenBurnFast",
                ),
                Panel(
                    "Requests that fail",
                    "Share of choices that ended with an error. 1 % over a month is the budget.",
                    "percentunit",
                    _ratio("requests_failed", "5m", "1h", "6h"),
                    high=1,
                    runbook="OctavoRequestErrors",
                ),
                READY,
            ),
        ),
        (
            "Latency",
            (
                Panel(
                    "Time to the first token",
                    "From a request's arrival to its first token, queue included.",
                    "s",
                    _quantiles("octavo_time_to_first_token_seconds"),
                    runbook="OctavoTimeToFirstTokenBurnFast",
                ),
                Panel(
                    "Time between tokens",
                    "Between two steps of a choice, per token: how fast a stream reads.",
                    "s",
                    _quantiles("octavo_inter_token_latency_seconds"),
                ),
                Panel(
                    "Duration of requests",
                    "From arrival to the end; grows with the length of answers.",
                    "s",
                    _quantiles("octavo_request_duration_seconds"),
                ),
            ),
        ),
        (
            "Load",
            (
                Panel(
                    "Tokens per second",
                    "Prompt tokens of started requests and generated tokens.",
                    "short",
                    (
                        (_rate("octavo_generation_tokens_total"), f"generated {NAME}"),
                        (_rate("octavo_prompt_tokens_total"), f"prompt {NAME}"),
                    ),
                ),
                Panel(
                    "Requests by how they end",
                    "Choices that ended, per second. abort: the client went away.",
                    "reqps",
                    (
                        (
                            f"sum by (namespace, service, reason) (rate(octavo_requests_finished_total{SERIES}{RATE}))",
                            f"{{{{reason}}}} {NAME}",
                        ),
                    ),
                    stacked=True,
                    runbook="OctavoRequestErrors",
                ),
                Panel(
                    "Requests received",
                    "Choices that were accepted, per second.",
                    "reqps",
                    ((_rate("octavo_requests_received_total"), NAME),),
                ),
            ),
        ),
        (
            "Queue and room",
            (
                WAITING,
                Panel(
                    "Time in the queue",
                    "From arrival in the engine to the first step.",
                    "s",
                    _quantiles("octavo_queue_seconds"),
                    runbook="OctavoRequestsWaitLong",
                ),
                Panel(
                    "Requests in the batch",
                    "Requests that the engine computes at once.",
                    "short",
                    ((_sum("octavo_requests_running"), NAME),),
                ),
                replace(USAGE, width=24),
            ),
        ),
        (
            "HTTP processes",
            (
                Panel(
                    "Lateness of the event loop",
                    "How late an API process came to a timer, 100 looks a second. Above 50 ms, streams stutter.",
                    "s",
                    _quantiles("octavo_event_loop_delay_seconds"),
                ),
                Panel(
                    "Work of the event loop",
                    "What of that its own work caused, at most. Small beside a large lateness: the machine is crowded.",
                    "s",
                    _quantiles("octavo_event_loop_work_seconds"),
                ),
                Panel(
                    "API processes",
                    "Processes that serve HTTP (--api-processes), over all replicas.",
                    "short",
                    ((_sum("octavo_api_processes"), NAME),),
                ),
            ),
        ),
    ),
)
CACHE = Board(
    "octavo-kv-cache",
    "Octavo / KV cache",
    "What the pools of key/value blocks hold, and what is lost when they are too small.",
    (
        (
            "Pool",
            (
                USAGE,
                Panel(
                    "Fullest replica",
                    "Highest use of any one pool: far above the mean means that load is spread unevenly.",
                    "percentunit",
                    ((f"max {BY} (octavo_kv_cache_usage_ratio{SERIES})", NAME),),
                    high=1,
                ),
                Panel(
                    "Blocks by state",
                    "Share of all tokens' room: active blocks belong to requests, cached ones hold prefixes that may"
                    " come again, free ones nothing.",
                    "percentunit",
                    tuple((_blocks(state), f"{state} {NAME}") for state in ("active", "cached", "free")),
                    high=1,
                    stacked=True,
                ),
                Panel(
                    "Unused slots of active blocks",
                    "Slots without a token ÷ slots of active blocks: what a smaller block size would save.",
                    "percentunit",
                    ((f"avg {BY} (octavo_kv_cache_fragmentation_ratio{SERIES})", NAME),),
                    high=1,
                ),
                Panel(
                    "Capacity",
                    "Tokens that all replicas' pools hold together.",
                    "short",
                    ((_sum("octavo_kv_cache_capacity_tokens"), NAME),),
                ),
                Panel(
                    "Block size",
                    "Tokens of a block; two lines of a service are two node types or a rollout.",
                    "short",
                    (
                        (
                            f"max by (namespace, service, pod) (octavo_kv_cache_block_size_tokens{SERIES})",
                            f"{NAME} {{{{pod}}}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Reuse and loss",
            (
                Panel(
                    "Prefix cache hits",
                    "Prompt tokens found in the cache ÷ looked up.",
                    "percentunit",
                    (
                        (
                            f"{_rate('octavo_prefix_cache_hit_tokens_total')}"
                            f" / ({_rate('octavo_prefix_cache_queried_tokens_total')} > 0)",
                            NAME,
                        ),
                    ),
                    high=1,
                ),
                Panel(
                    "Prompt tokens computed, reads saved",
                    "Prompt tokens not found in the cache, and reads of cached tokens that requests of a step shared.",
                    "short",
                    (
                        (_rate("octavo_prefix_cache_missed_tokens_total"), f"computed {NAME}"),
                        (_rate("octavo_prefix_cache_shared_read_tokens_total"), f"saved {NAME}"),
                    ),
                ),
                Panel(
                    "Evictions",
                    "Cached blocks whose room went to other tokens, per second; beside few hits, the cache is small.",
                    "ops",
                    ((_rate("octavo_prefix_cache_evicted_blocks_total"), NAME),),
                    runbook="OctavoKVCacheFull",
                ),
                Panel(
                    "Preemptions",
                    "Requests that lost their blocks and were computed again, per second.",
                    "ops",
                    ((_rate("octavo_preemptions_total"), NAME),),
                    runbook="OctavoPreemptions",
                ),
                WAITING,
            ),
        ),
    ),
)
SCALING = Board(
    "octavo-scaling",
    "Octavo / Scaling",
    "What the load asks for, what a replica sustains, and how many replicas there are.",
    (
        (
            "Count",
            (
                Panel(
                    "Replicas: wanted and ready",
                    "Wanted by the load, and those that answer. A gap stays: rollout, model files, accelerators.",
                    "short",
                    (
                        (f"max {BY} (octavo_desired_replicas{SERIES})", f"wanted {NAME}"),
                        (f"count {BY} (octavo_build_info{SERIES})", f"ready {NAME}"),
                    ),
                    runbook="OctavoReplicasMissing",
                ),
                Panel(
                    "Replicas that are pending",
                    "Wanted, and not ready yet.",
                    "short",
                    (
                        (
                            f"clamp_min(max {BY} (octavo_desired_replicas{SERIES})"
                            f" - (count {BY} (octavo_build_info{SERIES}) or max {BY} (octavo_desired_replicas{SERIES})"
                            " * 0), 0)",
                            NAME,
                        ),
                    ),
                    runbook="OctavoReplicasMissing",
                ),
                Panel(
                    "Changes of the count",
                    "How often the wanted count changed in an hour; many changes are flapping.",
                    "short",
                    ((f"max {BY} (changes(octavo_desired_replicas{SERIES}[1h]))", NAME),),
                ),
                Panel(
                    "Decisions by reason",
                    "How many in a step of the graph; each service is decided four times a minute. The reason says what"
                    " kept or moved its count.",
                    "short",
                    (
                        (
                            _counted("octavo_scaling_decisions_total", "namespace, service, reason", SERIES),
                            f"{{{{reason}}}} {NAME}",
                        ),
                    ),
                    stacked=True,
                    width=24,
                    runbook="OctavoScalingHeld",
                ),
            ),
        ),
        (
            "Why",
            (
                Panel(
                    "Demand",
                    "KV tokens that the load asks for.",
                    "short",
                    ((f"max {BY} (octavo_scaling_demand_tokens{SERIES})", NAME),),
                ),
                Panel(
                    "Demand in replicas",
                    "Demand ÷ what a replica sustains, before rounding.",
                    "short",
                    ((f"max {BY} (octavo_scaling_needed_replicas{SERIES})", NAME),),
                ),
                Panel(
                    "Learned capacity of a replica",
                    "KV tokens that a replica really sustains; learned from what happened while requests queued.",
                    "short",
                    ((f"max {BY} (octavo_scaling_capacity_tokens{SERIES})", NAME),),
                ),
                Panel(
                    "Services by readiness",
                    "How many are Ready, and for which reason the others are not.",
                    "short",
                    (
                        (
                            f'count by (status, reason) (octavo_service_condition{SERIES[:-1]},type="Ready"}})',
                            "{{status}} {{reason}}",
                        ),
                    ),
                    stacked=True,
                    runbook="OctavoRolloutStuck",
                ),
                Panel(
                    "Pods without fresh metrics",
                    "Serving pods that the operator can't read. Their load is unknown, and scaling is held.",
                    "short",
                    ((f"max {BY} (octavo_scaling_unknown_pods{SERIES})", NAME),),
                    runbook="OctavoScalingHeld",
                ),
            ),
        ),
    ),
    service_metric="octavo_desired_replicas",
)
NODE_TYPES = Board(
    "octavo-node-types",
    "Octavo / Node types",
    "Which versions and kernels run on which type of node, and where slower ones are in use.",
    (
        (
            "What runs",
            (
                Panel(
                    "Replicas by image and CUDA mode",
                    "Wanted on each type of node. Native: the driver knows the image's CUDA; MinorVersion: an older"
                    " driver of the same major version runs it.",
                    "short",
                    (
                        (
                            f"sum by (product, image, mode) (octavo_node_type_replicas{SERIES})",
                            "{{product}} {{mode}} {{image}}",
                        ),
                    ),
                    stacked=True,
                    width=16,
                    runbook="OctavoImageUnresolved",
                ),
                Panel(
                    "Replicas by attention kernel and CUDA",
                    "attention_backend and CUDA version of the replicas (none: CPU).",
                    "short",
                    (
                        (
                            f"count by (namespace, service, node_type, attention_backend, cuda)"
                            f" (octavo_build_info{SERIES})",
                            "{{attention_backend}} CUDA {{cuda}} {{node_type}}",
                        ),
                    ),
                ),
                Panel(
                    "Replicas by version",
                    "Two versions at once are a rollout.",
                    "short",
                    (
                        (
                            f"count by (version, driver, triton, torch) (octavo_build_info{SERIES})",
                            "{{version}} driver {{driver}} torch {{torch}} triton {{triton}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Block size by node type",
                    "Tokens of a block, as tuned or set, per type of node.",
                    "short",
                    ((f"max by (node_type) (octavo_kv_cache_block_size_tokens{SERIES})", "{{node_type}}"),),
                ),
                Panel(
                    "Replicas by source of launch configurations",
                    "LaunchTable: measured by a calibration here; Shipped: for this accelerator, with the package;"
                    " SafeDefaults: neither, as on a CPU.",
                    "short",
                    ((f"count by (node_type, source) (octavo_launch_info{SERIES})", "{{source}} {{node_type}}"),),
                    runbook="OctavoCalibrationFailing",
                ),
                Panel(
                    "Capacity of a replica by node type",
                    "Tokens that one pool holds.",
                    "short",
                    ((f"avg by (node_type) (octavo_kv_cache_capacity_tokens{SERIES})", "{{node_type}}"),),
                ),
            ),
        ),
        (
            "What is slower than it could be",
            (
                Panel(
                    "Replicas with slower kernels",
                    "By reason; nothing is shown when the fast kernels are in use.",
                    "short",
                    (
                        (
                            f"count by (namespace, service, reason) (octavo_kernel_fallback{SERIES} == 1)",
                            f"{{{{reason}}}} {NAME}",
                        ),
                    ),
                    runbook="OctavoKernelFallback",
                ),
                Panel(
                    "Services with slower kernels",
                    "As the operator foresees it from driver and image.",
                    "short",
                    (("max(octavo_operator_kernel_fallback_services)", "services"),),
                    runbook="OctavoKernelFallback",
                ),
                Panel(
                    "Services by whether node types are resolved",
                    "False: no node fits, or no image runs on those that fit.",
                    "short",
                    (("max by (resolved) (octavo_operator_services)", "{{resolved}}"),),
                    runbook="OctavoNodeTypesUnresolved",
                ),
                Panel(
                    "Calibrations that fail",
                    "TuningProfiles without a result whose last calibration failed; the default block size serves.",
                    "short",
                    (("max(octavo_operator_calibrations_failing)", "profiles"),),
                    runbook="OctavoCalibrationFailing",
                ),
                Panel(
                    "Nodes whose labels can't be read",
                    "Labels of accelerators that are missing or odd.",
                    "short",
                    (("max(octavo_operator_nodes_unread)", "nodes"),),
                    runbook="OctavoNodesUnread",
                ),
            ),
        ),
    ),
)
OPERATOR = Board(
    "octavo-operator",
    "Octavo / Operator",
    "Whether the operator works: its leader, its queue, its errors and its writes.",
    (
        (
            "State",
            (
                Panel(
                    "Leaders",
                    "Operator pods that hold the Lease; exactly one.",
                    "short",
                    (("sum(octavo_operator_leader)", "leaders"),),
                    kind="stat",
                    runbook="OctavoNoLeader",
                ),
                Panel(
                    "Services",
                    "InferenceServices that the operator knows.",
                    "short",
                    (("sum(max by (resolved) (octavo_operator_services))", "services"),),
                    kind="stat",
                ),
                Panel(
                    "Oldest entry of the queue",
                    "How long the service that waits longest has waited.",
                    "s",
                    (("max(octavo_operator_queue_oldest_seconds)", "oldest"),),
                    kind="stat",
                    runbook="OctavoQueueOld",
                ),
            ),
        ),
        (
            "Work",
            (
                Panel(
                    "Reconciliations per second",
                    "Each looks at one service as a whole.",
                    "ops",
                    ((f"sum(rate(octavo_operator_reconcile_seconds_count{RATE}))", "reconciliations"),),
                ),
                Panel(
                    "Duration of a reconciliation",
                    "Planning and writing, without the time in the queue.",
                    "s",
                    tuple(
                        (
                            f"histogram_quantile({share}, sum by (le)"
                            f" (rate(octavo_operator_reconcile_seconds_bucket{RATE})))",
                            f"p{share * 100:.0f}",
                        )
                        for share in (0.5, 0.95, 0.99)
                    ),
                ),
                Panel(
                    "Errors by reason",
                    "Reconciliations that failed and will be tried again: how many in a step of the graph.",
                    "short",
                    ((_counted("octavo_operator_reconcile_errors_total", "reason"), "{{reason}}"),),
                    runbook="OctavoReconcileErrors",
                ),
                Panel(
                    "Queue",
                    "Services that wait for a worker.",
                    "short",
                    (("max(octavo_operator_queue_depth)", "waiting"),),
                    runbook="OctavoQueueOld",
                ),
                Panel(
                    "Writes to the API server",
                    "By kind and verb, how many in a step of the graph. At rest the operator writes nothing but its"
                    " Lease.",
                    "short",
                    ((_counted("octavo_operator_api_writes_total", "kind, verb"), "{{verb}} {{kind}}"),),
                ),
            ),
        ),
    ),
    per_service=False,
)
BOARDS = (SERVICE, CACHE, SCALING, NODE_TYPES, OPERATOR)
