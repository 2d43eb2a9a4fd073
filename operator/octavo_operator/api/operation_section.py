"""spec.scaling, spec.rollout and spec.access: how many replicas, how they are replaced, and who reaches them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .base import Model, SecretKeyRef, Switch, rule, rules

MAX_REPLICAS = 10_000


class ScalingMode(StrEnum):
    """Who decides how many replicas run."""

    OPERATOR = "Operator"
    EXTERNAL = "External"
    FIXED = "Fixed"


class ScalingSection(Model):
    """How many replicas run."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "scaling.minReplicas must not exceed scaling.maxReplicas; raise maxReplicas or lower minReplicas",
            )
        )
    )

    mode: ScalingMode = ScalingMode.OPERATOR
    """Operator: Octavo decides between minReplicas and maxReplicas. External: an HPA, KEDA or `kubectl scale` sets
    replicas. Fixed: replicas as written."""
    min_replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Fewest replicas in mode Operator; 0 acts as 1 until something can wake a service."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Most replicas in mode Operator; minReplicas (at least 1) when absent."""
    target_utilization_percent: Annotated[int, Field(ge=10, le=95)] = 80
    """Share of the sustained KV capacity that demand should fill."""
    scale_down_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = None
    """How long a smaller demand must last before a replica goes; when absent, twice the time that a replica takes to
    start, between 60 and 600 seconds."""
    idle_seconds: Annotated[int, Field(ge=0, le=604_800)] = 600
    """How long a service with minReplicas 0 must be idle before its last replica goes."""


class RolloutStrategy(StrEnum):
    """How replicas are replaced."""

    AUTO = "Auto"
    SURGE = "Surge"
    REPLACE = "Replace"


class Adoption(StrEnum):
    """When a better image or block size is taken up."""

    NEXT_ROLLOUT = "NextRollout"
    IMMEDIATELY = "Immediately"


class RolloutSection(Model):
    """How replicas are replaced."""

    strategy: RolloutStrategy = RolloutStrategy.AUTO
    """Surge starts the new replica first, Replace ends the old one first, Auto surges where there is room."""
    wait_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    """How long Auto waits for room when a replacement would leave no replica."""
    drain_seconds: Annotated[int, Field(ge=0, le=3_600)] = 30
    """How long running requests may take to finish when a replica ends."""
    adopt: Adoption = Adoption.NEXT_ROLLOUT
    """Whether a new image of the catalogue or a new tuning result is taken up at the next rollout or at once."""


class AccessSection(Model):
    """Who reaches the replicas."""

    api_key_secret_ref: SecretKeyRef | None = None
    """Key of a Secret that holds the API key; no key is asked for when absent."""
    network_policy: Switch = Switch.ENABLED
    """Whether a NetworkPolicy limits traffic of the replicas."""
