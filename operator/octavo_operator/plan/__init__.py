"""Pure planning: facts in, manifests and status out. Imports nothing of kopf, aiohttp or kubernetes."""

from .drift import difference
from .facts import SAFE_ARGUMENTS, CatalogueImage, Egress, Event, Facts, Manifest, Plan, PlanSettings
from .planner import plan

__all__ = [
    "SAFE_ARGUMENTS",
    "CatalogueImage",
    "Egress",
    "Event",
    "Facts",
    "Manifest",
    "Plan",
    "PlanSettings",
    "difference",
    "plan",
]
