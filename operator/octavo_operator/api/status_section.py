"""status of an InferenceService."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ATOMIC, Model, ShortText, keyed_by


class ConditionStatus(StrEnum):
    """State of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """One aspect of the state."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Aspect: Available, Ready, SpecHonoured, NodeTypesResolved, ImageResolved, Tuned, ModelReady, Progressing or
    ScalingActive."""
    status: ConditionStatus
    """True, False or Unknown."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that this condition speaks of."""
    last_transition_time: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
    """When status changed last."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """CamelCase word for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """Sentence for people: what, why, and the way out."""


class NodeTypeStatus(Model):
    """One type of node in use."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """Label of the type: 8 hex digits."""
    product: ShortText = ""
    """Product of the accelerator, or CPU."""
    driver: ShortText = ""
    """Smallest driver version among the nodes."""
    cuda: ShortText = ""
    """Highest CUDA version that all drivers among the nodes support."""
    image: Annotated[str, Field(max_length=512)] = ""
    """Image in use."""
    image_mode: Annotated[str, Field(max_length=32)] = ""
    """How the driver runs the image: Native, MinorVersion, CPU or Pinned."""
    kernel_fallback: Annotated[str, Field(max_length=512)] = ""
    """Why slower kernels may run; absent when the fast ones do."""
    block_size: Annotated[int, Field(ge=0)] = 0
    """Tokens per KV block in use."""
    block_size_reason: ShortText = ""
    """Why this block size."""
    replicas: Annotated[int, Field(ge=0)] = 0
    """Replicas wanted on this type."""
    ready_replicas: Annotated[int, Field(ge=0)] = 0
    """Replicas that serve on this type."""
    kv_capacity_tokens: Annotated[int, Field(ge=0)] | None = None
    """KV capacity of one replica, once it was measured."""


class ScalingChange(Model):
    """One change of the number of replicas."""

    time: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
    """When."""
    from_: Annotated[int, Field(ge=0, alias="from")]
    """Replicas before."""
    to: Annotated[int, Field(ge=0)]
    """Replicas after."""
    reason: ShortText
    """CamelCase word for programs."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """The numbers that led to it."""


class LearnedCapacity(Model):
    """What one replica was seen to sustain."""

    node_type: Annotated[str, Field(min_length=1, max_length=128)]
    """Label of the node type."""
    template: Annotated[str, Field(min_length=1, max_length=64)]
    """Label of the stored pod template."""
    tokens: Annotated[int, Field(ge=0)]
    """KV tokens in use while requests queued."""


class ScalingStatus(Model):
    """The scaling decision in force."""

    desired: Annotated[int, Field(ge=0)] = 0
    """Replicas wanted."""
    changes: Annotated[tuple[ScalingChange, ...], Field(max_length=10, json_schema_extra=ATOMIC)] = ()
    """The last ten changes, oldest first."""
    capacities: Annotated[
        tuple[LearnedCapacity, ...], Field(max_length=64, json_schema_extra=keyed_by("nodeType", "template"))
    ] = ()
    """Learned capacity by node type and template."""


class InferenceServiceStatus(Model):
    """What is, as the operator saw it."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=32, json_schema_extra=keyed_by("type"))] = ()
    """Aspects of the state; Ready first for people, Available for alerts."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that this status speaks of."""
    replicas: Annotated[int, Field(ge=0)] = 0
    """Server pods that exist."""
    ready_replicas: Annotated[int, Field(ge=0)] = 0
    """Server pods that serve."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the server pods, for the scale subresource."""
    address: Annotated[str, Field(max_length=512)] = ""
    """Address of the service inside the cluster."""
    node_types: Annotated[tuple[NodeTypeStatus, ...], Field(max_length=64, json_schema_extra=keyed_by("name"))] = ()
    """Types of node in use."""
    scaling: ScalingStatus | None = None
    """The scaling decision in force."""
