"""Types of node: what a Deployment stands for.

A type is a kind of accelerator together with the image that serves there. Memory and driver are facts about its nodes
and no part of it, so that a node that comes, goes or gets another driver leaves running pods alone as long as they fit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache

from .accelerators import CPU_PRODUCT, AcceleratorFacts, version
from .facts import CatalogueImage, digest
from .image_choice import ImageChoice


@dataclass(frozen=True)
class TypeKey:
    """What a Deployment stands for; nothing else may reach its affinity."""

    product: str
    vendor: str = ""
    capability: str = ""
    sharing: str = ""
    resource: str = ""
    variant: str = ""
    """Name of the image in the catalogue."""
    fit: str = ""
    cuda: str = ""
    """CUDA version inside the image that nodes must support; empty where none counts."""

    @property
    def is_cpu(self) -> bool:
        """Whether this is a type without accelerators."""
        return self.product == CPU_PRODUCT and not self.vendor

    @property
    def hardware(self) -> tuple[str, ...]:
        """The part that comes from the node."""
        return (self.vendor, self.product, self.capability, self.sharing, self.resource)

    @cached_property
    def label(self) -> str:
        """8 hex digits of the key."""
        return digest(self.named(), 8)

    def named(self) -> dict[str, str]:
        """As it is stored beside a pod template; empty parts are left out, so that a new part changes no old key."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def parse(cls, stored: object) -> TypeKey | None:
        """From a stored template; None when it is none of ours."""
        if not isinstance(stored, dict) or not stored.get("product"):
            return None
        known = {item.name for item in fields(cls)}
        return cls(**{str(name): str(value) for name, value in stored.items() if name in known})

    def runs_on(self, facts: AcceleratorFacts) -> bool:
        """Whether pods of this type work on an accelerator, and its affinity admits the node."""
        if hardware_of(facts) != self.hardware:
            return False
        needed, has = version(self.cuda)[:2], version(facts.cuda)[:2]
        return has >= needed or (self.fit == "MinorVersion" and has[:1] == needed[:1])


def hardware_of(facts: AcceleratorFacts) -> tuple[str, ...]:
    """The part of a key that comes from the node."""
    return (facts.vendor.value, facts.product, facts.capability, facts.sharing, facts.resource)


@dataclass(frozen=True)
class KnownType:
    """A type that the service uses or used with the pod template that it wants now."""

    label: str
    """As on its Deployment: a later version of the operator may spell keys differently."""
    key: TypeKey
    image: str
    is_live: bool
    """Whether there is a Deployment of it."""
    may_stay: bool
    """Whether its stored template is what the spec wants; else a rollout takes it away."""


@dataclass(frozen=True)
class NodeType:
    """Nodes that one Deployment may use."""

    key: TypeKey
    choice: ImageChoice
    cost: int
    nodes: tuple[str, ...]
    driver: str = ""
    """Smallest among its nodes."""
    cuda: str = ""
    """Smallest among its nodes."""
    known: KnownType | None = None
    """Set where a stored template is kept."""
    newer: str = ""
    """Image that a new rollout would take; empty when it is the same."""

    @property
    def label(self) -> str:
        """8 hex digits."""
        return self.known.label if self.known else self.key.label


def kept_choice(known: KnownType, fresh: ImageChoice | None = None) -> ImageChoice:
    """The choice behind a stored template; a fallback of the node's driver counts for it, too."""
    key = known.key
    image = CatalogueImage(key.variant, known.image, key.cuda or None)
    message = f"image {key.variant} is kept as it runs"
    if fresh is not None and fresh.fallback:
        words = f"{message}; {fresh.fallback}; {fresh.upgrade}"
        return ImageChoice(image, key.fit, "KernelFallback", words, fresh.fallback, fresh.upgrade)
    return ImageChoice(image, key.fit, "Resolved", message)


@lru_cache(maxsize=1024)
def _key_of(hardware: tuple[str, ...], variant: str, fit: str, cuda: str) -> TypeKey:
    # Kept, so that the label of a type is computed once and not for each of its nodes.
    vendor, product, capability, sharing, resource = hardware
    return TypeKey(product, vendor, capability, sharing, resource, variant, fit, cuda)


def fresh_key(facts: AcceleratorFacts, choice: ImageChoice) -> TypeKey:
    return _key_of(hardware_of(facts), choice.image.name if choice.image else "", choice.fit, choice.need)
