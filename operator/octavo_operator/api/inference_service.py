"""InferenceService: one model, served."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field

from .base import Model, rule, rules
from .engine_section import EngineSection
from .model_section import ModelSection
from .operation_section import MAX_REPLICAS, AccessSection, RolloutSection, ScalingSection
from .placement_section import ImageSection, PlacementSection
from .status_section import InferenceServiceStatus

KIND = "InferenceService"
PLURAL = "inferenceservices"
MAX_NAME_LENGTH = 48
"""Names of Deployments and Jobs are derived from a service's name and must stay within 63 characters."""


class InferenceServiceSpec(Model):
    """What is wanted."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.scaling.mode != 'Operator' || !has(self.replicas)",
                "replicas is decided by the operator in scaling.mode Operator; set scaling.mode to External (HPA, "
                "KEDA, kubectl scale) or Fixed to set it, or bound it with scaling.minReplicas and scaling.maxReplicas",
                # `kubectl scale` is refused with this message too.
                fieldPath=".replicas",
            ),
            rule(
                "self.image.policy != 'Pinned' || has(self.image.cudaVersion) || self.placement.cpu == 'Required'",
                "image.cudaVersion is required when image.policy is Pinned and accelerators may be used; give the CUDA "
                "version inside the image, or set placement.cpu to Required",
            ),
        )
    )

    model: ModelSection
    """Which weights are served, and from where."""
    engine: EngineSection = Field(default_factory=EngineSection)
    """The runtime and how it computes."""
    placement: PlacementSection = Field(default_factory=PlacementSection)
    """Where replicas may run."""
    image: ImageSection = Field(default_factory=ImageSection)
    """Which image serves."""
    scaling: ScalingSection = Field(default_factory=ScalingSection)
    """How many replicas run."""
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    """How replicas are replaced."""
    access: AccessSection = Field(default_factory=AccessSection)
    """Who reaches the replicas."""
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] | None = None
    """Number of replicas in scaling.mode External and Fixed; absent in mode Operator."""


class InferenceService(Model):
    """A language model served on Kubernetes: weights, engine, placement, scaling."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && "
                "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                f"metadata.name must be a DNS label of at most {MAX_NAME_LENGTH} characters that begins with a letter "
                "(a Service takes this name); choose another name",
            )
        )
    )

    spec: InferenceServiceSpec
    """What is wanted."""
    status: InferenceServiceStatus | None = None
    """What is, as the operator saw it."""

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Self:
        """The typed view of an object from the API server; raises pydantic.ValidationError on a malformed one."""
        return cls.model_validate({"spec": body.get("spec") or {}, "status": None})
