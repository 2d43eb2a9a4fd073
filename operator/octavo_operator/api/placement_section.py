"""spec.placement and spec.image: where replicas may run, and with which image."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .base import ATOMIC, SET, Capability, CudaVersion, Model, Quantity, in_words, rule, rules

LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]


ProductName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=63,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        json_schema_extra=in_words("must be a product as the node's label spells it, such as NVIDIA-H200"),
    ),
]


class Vendor(StrEnum):
    """Maker of an accelerator."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"


class CPUPolicy(StrEnum):
    """Whether replicas may run without an accelerator."""

    ALLOWED = "Allowed"
    REQUIRED = "Required"
    FORBIDDEN = "Forbidden"


class Accelerator(Model):
    """One kind of accelerator that fits; all conditions given must hold."""

    vendor: Vendor = Vendor.NVIDIA
    """Maker of the accelerator."""
    products: Annotated[
        tuple[ProductName, ...],
        Field(max_length=32, json_schema_extra=SET),
    ] = ()
    """Product names as the node label spells them (NVIDIA-H200); any product when empty."""
    min_memory_gib: Annotated[int, Field(ge=1, le=4096)] | None = Field(default=None, alias="minMemoryGiB")
    """Smallest memory per accelerator in GiB."""
    min_compute_capability: Capability | None = None
    """Smallest compute capability, such as 8.0."""
    cost_weight: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Relative price of one accelerator; replicas go to the cheapest type first."""


class TolerationOperator(StrEnum):
    """How a toleration compares."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    """What a taint does."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model):
    """A toleration as in a pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.operator != 'Exists' || !has(self.value)",
                "placement.tolerations[].value must be absent when operator is Exists; remove it or use operator Equal",
            ),
            rule(
                "self.operator == 'Exists' || has(self.key)",
                "placement.tolerations[].key is required when operator is Equal; give it or use operator Exists",
            ),
            rule(
                "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
                "placement.tolerations[].tolerationSeconds applies to effect NoExecute alone; remove it or set effect",
            ),
        )
    )

    key: LabelKey | None = None
    """Key of the taint; every key when absent."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """Equal compares the value, Exists only the key."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: TaintEffect | None = None
    """Effect of the taint; every effect when absent."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """How long a NoExecute taint is tolerated."""


class Resources(Model):
    """Requests and limits of the server's container, accelerators left out."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *(
                rule(
                    f"!has(self.{part}) || self.{part}.all(k, !k.matches('^(nvidia|amd)[.]com/'))",
                    f"placement.resources.{part} must not name accelerators; their number is engine.parallelism.tensor",
                )
                for part in ("requests", "limits")
            )
        )
    )

    requests: Annotated[dict[LabelKey, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Requested amounts by resource name; sensible amounts when empty."""
    limits: Annotated[dict[LabelKey, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Limits by resource name; none when empty."""


class PlacementSection(Model):
    """Where replicas may run."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.cpu != 'Required' || !has(self.accelerators) || size(self.accelerators) == 0",
                "placement.accelerators must be empty when placement.cpu is Required; remove them, or set Allowed",
            )
        )
    )

    accelerators: Annotated[tuple[Accelerator, ...], Field(max_length=16, json_schema_extra=ATOMIC)] = ()
    """Kinds of accelerators that fit, any one of them; every kind when empty."""
    cpu: CPUPolicy = CPUPolicy.ALLOWED
    """Allowed: CPU nodes serve where no accelerator fits and accelerators is empty. Required: CPU nodes alone.
    Forbidden: never."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels that a node must carry."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32, json_schema_extra=ATOMIC)] = ()
    """Taints that replicas accept."""
    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """PriorityClass of the pods."""
    resources: Resources = Field(default_factory=Resources)
    """Requests and limits of the server's container."""


ImageReference = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$",
        json_schema_extra=in_words("must be an image such as registry.example/team/name:tag or …@sha256:…, no spaces"),
    ),
]


class ImagePolicy(StrEnum):
    """Who chooses the image."""

    AUTO = "Auto"
    PINNED = "Pinned"


class ImageSection(Model):
    """Which image serves."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(self.policy == 'Pinned') == has(self.reference)",
                "image.reference must be given exactly when image.policy is Pinned; set both or neither",
            ),
            rule(
                "self.policy == 'Pinned' || !has(self.cudaVersion)",
                "image.cudaVersion applies to image.policy Pinned alone; remove it",
            ),
        )
    )

    policy: ImagePolicy = ImagePolicy.AUTO
    """Auto: the newest image of the catalogue that the node's driver can run. Pinned: the reference below."""
    reference: ImageReference | None = None
    """Image of a Pinned service."""
    cuda_version: CudaVersion | None = None
    """CUDA version inside the pinned image, such as 12.8, so that it can be compared with the driver."""
