"""What the operator and the server agree on; described in docs/reference/wire-contract.md, held by tests/contract."""

from __future__ import annotations

from importlib.metadata import version

PREFIX = "serving.octavo.dev/"
SERVICE_LABEL = PREFIX + "service"
ROLE_LABEL = PREFIX + "role"
NODE_TYPE_LABEL = PREFIX + "node-type"
TEMPLATE_LABEL = PREFIX + "template"
MANIFEST_HASH = PREFIX + "manifest-hash"
CHECK_LABEL = PREFIX + "check"
"""On check Jobs: 8 hex digits of what is checked."""
ATTEMPT_ANNOTATION = PREFIX + "attempt"
PRODUCT_OVERRIDE_LABEL = PREFIX + "product"
"""On Nodes, by an administrator: the product's name in place of the vendor's label."""
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
FIELD_MANAGER = "octavo-operator"

ROLE_SERVER = "server"
ROLE_CHECK = "check"
ROLE_CALIBRATION = "calibration"
CALIBRATING = PREFIX + "calibrating"
"""On a TuningProfile without a result: the service that has it measured."""
CALIBRATING_SINCE = PREFIX + "calibrating-since"
LAUNCH_TABLE_ANNOTATION = PREFIX + "launch-table"
"""On server pods: the measured launch configurations, which a file shows to the server."""
LAUNCH_TABLE_FOLDER = "/etc/octavo/launches"
LAUNCH_TABLE_FILE = "table.json"
KERNELS_VERSION = version("octavo-operator")
"""Kernels and operator are released together, under one version."""

PROGRAM = "octavo-server"
SERVER_CONTAINER = "server"
CHECK_CONTAINER = "check"
CALIBRATION_CONTAINER = "calibrate"
FETCH_CONTAINER = "fetch"
PORT_NAME = "http"
PORT = 8000
HEALTH_PATH = "/health"
READY_PATH = "/ready"
METRICS_PATH = "/metrics"
TERMINATION_PATH = "/dev/termination-log"
TERMINATION_ENV = "OCTAVO_TERMINATION_LOG"
API_KEY_ENV = "OCTAVO_API_KEY"
HUB_TOKEN_ENV = "HF_TOKEN"
HUB_TOKEN_KEY = "token"
HUB_ENDPOINT_ENV = "HF_ENDPOINT"
S3_ENDPOINT_ENV = "AWS_ENDPOINT_URL"
PROGRESS_PATH = "/progress"
STORE_FOLDER = "/var/cache/models"
"""Where the claim that keeps fetched files is mounted."""
MODELS_FOLDER = "/models"
CACHE_FOLDER = "/var/cache/octavo"
DRAIN_MARGIN_SECONDS = 15
EXIT_REFUSED = 2

SERVE_FLAGS = (
    "--model",
    "--format",
    "--served-name",
    "--max-length",
    "--host",
    "--port",
    "--device",
    "--dtype",
    "--quantization",
    "--kv-dtype",
    "--block-size",
    "--launch-table",
    "--memory-percent",
    "--prefix-caching",
    "--tensor-parallel",
    "--drain-seconds",
)
FETCH_FLAGS = (
    "--check", "--model", "--revision", "--format", "--max-length", "--to", "--cache", "--runtime",
    "--progress-address",
)  # fmt: skip
CALIBRATE_FLAGS = ("--shape", "--device", "--dtype", "--kv-dtype", "--budget-seconds")
CHECK_REASONS = (
    "ModelFound",
    "ModelNotFound",
    "ModelUnreadable",
    "ArchitectureUnsupported",
    "FormatUnsupported",
    "AccessDenied",
    "SourceUnreachable",
    "MaxLengthTooLong",
    "NoSpaceLeft",
    "SchemeUnsupported",
)
