"""What the operator tells of itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
RECONCILE_SECONDS = Histogram("octavo_operator_reconcile_seconds", "Duration of one reconciliation", registry=REGISTRY)
RECONCILE_ERRORS = Counter(
    "octavo_operator_reconcile_errors", "Reconciliations that failed, by reason", ["reason"], registry=REGISTRY
)
QUEUE_DEPTH = Gauge("octavo_operator_queue_depth", "Services that wait for a worker", registry=REGISTRY)
QUEUE_AGE_SECONDS = Gauge(
    "octavo_operator_queue_oldest_seconds", "How long the oldest waiting service has waited", registry=REGISTRY
)
API_WRITES = Counter("octavo_operator_api_writes", "Writes to the API server", ["kind", "verb"], registry=REGISTRY)
SERVICES_BY_STATE = Gauge(
    "octavo_operator_services",
    "InferenceServices by whether their node types are resolved",
    ["resolved"],
    registry=REGISTRY,
)
NODES_UNREAD = Gauge("octavo_operator_nodes_unread", "Nodes with labels that could not be read", registry=REGISTRY)
SERVICES_WITH_FALLBACK = Gauge(
    "octavo_operator_kernel_fallback_services", "InferenceServices with slower kernels", registry=REGISTRY
)
SERVICE_CONDITION = Gauge(
    "octavo_service_condition",
    "1 for each condition of an InferenceService as it is now",
    ["namespace", "service", "type", "status", "reason"],
    registry=REGISTRY,
)
NODE_TYPE_REPLICAS = Gauge(
    "octavo_node_type_replicas",
    "Replicas wanted on a type of node, with the image that is used there and how the driver runs it",
    ["namespace", "service", "node_type", "product", "image", "mode", "block_size"],
    registry=REGISTRY,
)
CALIBRATIONS_FAILING = Gauge(
    "octavo_operator_calibrations_failing",
    "TuningProfiles without a result whose last calibration failed",
    registry=REGISTRY,
)
LEADER = Gauge("octavo_operator_leader", "1 while this process holds the Lease", registry=REGISTRY)
