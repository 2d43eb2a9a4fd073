"""What an administrator gives to services whose spec leaves it open."""

from __future__ import annotations

from octavo_operator.api.inference_service import InferenceServiceSpec

from .facts import PlanSettings
from .model_source import is_fetched


def with_defaults(spec: InferenceServiceSpec, settings: PlanSettings) -> InferenceServiceSpec:
    """The spec with the administrator's defaults where it says nothing; what it says itself always stands."""
    model, placement = {}, {}
    if settings.cache_claim and spec.model.cache_claim is None and is_fetched(spec.model):
        model["cache_claim"] = settings.cache_claim
    if settings.hub_endpoint and spec.model.endpoint is None and spec.model.uri.startswith("hf://"):
        model["endpoint"] = settings.hub_endpoint
    if settings.priority_class and spec.placement.priority_class_name is None:
        placement["priority_class_name"] = settings.priority_class
    if not model and not placement:
        return spec
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update=model),
            "placement": spec.placement.model_copy(update=placement),
        }
    )
