"""spec.model: which weights are served, and from where."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .base import Model, ObjectName, SecretRef, in_words, keyed_by, rule, rules

MAX_LENGTH_TOKENS = 16_777_216

_PATH = "[A-Za-z0-9._+=@~:,/-]+"
URI_SCHEME = "^(hf|s3|pvc|file)://"
HF_URI = "^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
S3_URI = f"^s3://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9]/{_PATH}$"
PVC_URI = f"^pvc://[a-z0-9]([-.a-z0-9]{{0,251}}[a-z0-9])?/{_PATH}$"
FILE_URI = f"^file:///{_PATH}$"
PARENT_STEP = "/[.][.](/|$)"

_URI_RULES = rules(
    rule(
        f"self.matches('{URI_SCHEME}')",
        "model.uri must start with hf://, s3://, pvc:// or file:///; for a file on a claim write pvc://<claim>/<path>",
    ),
    rule(
        f"!self.startsWith('hf://') || self.matches('{HF_URI}')",
        "model.uri with hf:// must be hf://<organisation>/<name>; give a branch or commit in model.revision",
    ),
    rule(
        f"!self.startsWith('s3://') || self.matches('{S3_URI}')",
        "model.uri with s3:// must be s3://<bucket>/<key>: a bucket's name of 3 to 63 small letters, digits, . and - "
        "that begins and ends with a letter or digit, and a key of letters, digits and ._+=@~:,/- alone",
    ),
    rule(
        f"!self.startsWith('pvc://') || self.matches('{PVC_URI}')",
        "model.uri with pvc:// must be pvc://<claim>/<path inside the claim>: a claim's name (253 characters at most, "
        "small letters, digits, . and - alone), and a path of letters, digits and ._+=@~:,/- alone",
    ),
    rule(
        f"!self.startsWith('file://') || self.matches('{FILE_URI}')",
        "model.uri with file:// must be file:///<absolute path inside the image>; a host path cannot be served, use pvc://",
    ),
    rule(
        f"!self.matches('{PARENT_STEP}')",
        "model.uri must not contain '..' as a step of its path; write the path without it",
    ),
)


_REVISION_WORDS = "must be a branch, tag or commit: a letter or digit, then letters, digits and ._/-"
Revision = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
        json_schema_extra=in_words(_REVISION_WORDS),
    ),
]
_SERVED_WORDS = "must begin with a letter or digit and go on with letters, digits and ._/:- such as org/model-1b"
ServedName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$",
        json_schema_extra=in_words(_SERVED_WORDS),
    ),
]


_ENDPOINT_WORDS = "must be http:// or https://, a host, and perhaps a port and a path"
Endpoint = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        pattern=r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$",
        json_schema_extra=in_words(_ENDPOINT_WORDS),
    ),
]


class ModelFormat(StrEnum):
    """How the weights are stored."""

    AUTO = "Auto"
    SAFETENSORS = "Safetensors"
    GGUF = "GGUF"


class Adapter(Model):
    """A LoRA adapter that is served under a name of its own."""

    name: ServedName
    """Name of the adapter in the HTTP interface."""
    uri: Annotated[str, Field(min_length=1, max_length=512, json_schema_extra=_URI_RULES)]
    """Where the adapter lies; same forms as model.uri."""


class ModelSection(Model):
    """Which weights are served, and from where."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.revision) || self.uri.startsWith('hf://')",
                "model.revision applies to hf:// alone; remove it, or put the version into the path of model.uri",
            ),
            rule(
                "!has(self.secretRef) || self.uri.startsWith('hf://') || self.uri.startsWith('s3://')",
                "model.secretRef applies to hf:// and s3:// alone; remove it",
            ),
            rule(
                "!has(self.endpoint) || self.uri.startsWith('hf://') || self.uri.startsWith('s3://')",
                "model.endpoint applies to hf:// and s3:// alone; remove it",
            ),
            rule(
                "!has(self.cacheClaim) || self.uri.startsWith('hf://') || self.uri.startsWith('s3://')",
                "model.cacheClaim applies to hf:// and s3:// alone; a model with pvc:// or file:// is not fetched",
            ),
        )
    )

    uri: Annotated[str, Field(min_length=1, max_length=512, json_schema_extra=_URI_RULES)]
    """hf://organisation/name, s3://bucket/key, pvc://claim/path, or file:///path in the image (never a host path)."""
    revision: Revision | None = None
    """Branch, tag or commit on the hub; the default branch when absent."""
    served_name: ServedName | None = None
    """Name of the model in the HTTP interface; the name of the service when absent."""
    secret_ref: SecretRef | None = None
    """Secret that opens the source: key `token` for hf://, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://."""
    endpoint: Endpoint | None = None
    """Address of a mirror of the hub, or of a store that speaks S3, such as https://minio.example:9000."""
    cache_claim: ObjectName | None = None
    """Claim on which fetched files are kept and shared; without one each pod fetches into its own scratch folder."""
    max_length: Annotated[int, Field(ge=0, le=MAX_LENGTH_TOKENS)] = 0
    """Longest prompt plus answer in tokens; 0 = what the model allows, cut to what fits."""
    format: ModelFormat = ModelFormat.AUTO
    """How the weights are stored; Auto looks at the files."""
    adapters: Annotated[tuple[Adapter, ...], Field(max_length=32, json_schema_extra=keyed_by("name"))] = ()
    """LoRA adapters served beside the model."""


class ClaimPath(Model):
    """A location on a PersistentVolumeClaim, parsed from pvc://claim/path."""

    claim: ObjectName
    """Name of the claim."""
    path: str
    """Path inside the claim, without a leading slash."""


def claim_path(uri: str) -> ClaimPath | None:
    """The claim and path of a pvc:// URI; None for another scheme or a malformed one."""
    scheme, _, rest = uri.partition("://")
    claim, _, path = rest.partition("/")
    if scheme != "pvc" or not claim or not path.strip("/"):
        return None
    return ClaimPath(claim=claim, path=path.strip("/"))
