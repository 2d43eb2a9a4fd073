"""Which node types a placement admits now, and which live ones are held although no node of theirs can be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_operator.api.engine_section import Runtime
from octavo_operator.api.placement_section import CPUPolicy, PlacementSection, Vendor

from .accelerators import CPU_PRODUCT, AcceleratorFacts, version
from .admission import described, fits, names, selected, tolerated, wanted_accelerators
from .facts import CatalogueImage
from .image_choice import ImageChoice, choose, choose_cpu
from .inventory import NodeClass, NodeView, alone, classes
from .node_types import KnownType, NodeType, TypeKey, fresh_key, hardware_of, kept_choice

_MEMORY_UNKNOWN_NOTE = (
    "memory of {} is not told by its labels; placement.accelerators[].minMemoryGiB is not checked there"
)


@dataclass(frozen=True)
class Resolution:
    """Types that fit a placement, and what is to be said."""

    types: tuple[NodeType, ...]
    """Cheapest first."""
    reason: str
    message: str
    image_reason: str
    image_message: str
    notes: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    """Labels of live types that keep their pods although no node of theirs can be seen."""
    held_products: tuple[str, ...] = ()
    """What these are."""


@dataclass
class _Group:
    choice: ImageChoice
    cost: int
    known: KnownType | None = None
    members: list[AcceleratorFacts] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    newer: str = ""

    def add(self, nodes: Sequence[str], facts: AcceleratorFacts, fresh: ImageChoice) -> None:
        self.nodes += nodes
        self.members.append(facts)
        if self.known and fresh.image and fresh.image.image != self.known.image:
            self.newer = fresh.image.image
        if fresh.fallback and not self.choice.fallback and fresh.image:
            self.choice = fresh if not self.known else kept_choice(self.known, fresh)


def _memory_of(choose_one: Callable[[AcceleratorFacts], ImageChoice]) -> Callable[[AcceleratorFacts], ImageChoice]:
    """Thousands of nodes hold few kinds: each kind is decided once."""
    decided: dict[tuple[str, ...], ImageChoice] = {}

    def decide(facts: AcceleratorFacts) -> ImageChoice:
        kind = (facts.vendor.value, facts.product, facts.capability, facts.cuda, facts.driver)
        if kind not in decided:
            decided[kind] = choose_one(facts)
        return decided[kind]

    return decide


def _preference(item: NodeType) -> tuple[int, bool, bool, str, str]:
    """At one price fast kernels come before slower ones, and whole accelerators before slices of them."""
    return (item.cost, bool(item.choice.fallback), item.key.sharing != "", item.key.product, item.label)


class _Resolver:
    def __init__(
        self,
        placement: PlacementSection,
        nodes: Sequence[NodeClass],
        images: Sequence[CatalogueImage],
        pinned: CatalogueImage | None,
        known: Sequence[KnownType],
        runtime: Runtime,
    ) -> None:
        self._runtime = runtime
        self._placement, self._nodes, self._images, self._pinned = placement, nodes, images, pinned
        self._known = sorted(known, key=lambda item: not item.is_live)
        self._by_hardware: dict[tuple[str, ...], list[KnownType]] = {}
        for item in self._known:
            self._by_hardware.setdefault(item.key.hardware, []).append(item)
        self.groups: dict[str, _Group] = {}
        self.keys: dict[str, TypeKey] = {}
        self.refused: list[ImageChoice] = []
        self.notes: list[str] = []
        self.matching = 0

    def _group(self, key: TypeKey, choice: ImageChoice, cost: int, known: KnownType | None) -> _Group:
        label = known.label if known else key.label
        found = self.groups.get(label)
        if found is None:
            found = self.groups[label] = _Group(kept_choice(known) if known else choice, cost, known)
            self.keys[label] = known.key if known else key
        found.cost = min(found.cost, cost)
        return found

    def _place(self, nodes: Sequence[str], facts: AcceleratorFacts, cost: int, fresh: ImageChoice) -> None:
        staying = [k for k in self._by_hardware.get(hardware_of(facts), ()) if k.may_stay and k.key.runs_on(facts)]
        live = [known for known in staying if known.is_live]
        for known in live:
            # Pods of each of these still fit here, whichever of them new pods go to.
            self._group(known.key, fresh, cost, known)
        key = fresh_key(facts, fresh) if fresh.image else None
        match = next((known for known in staying if key and known.label == key.label), None)
        chosen = match if match and match.is_live else next(iter(live or staying), None)
        if chosen is not None:
            self._group(chosen.key, fresh, cost, chosen).add(nodes, facts, fresh)
        elif key is not None:
            self._group(key, fresh, cost, None).add(nodes, facts, fresh)
        else:
            self.refused.append(fresh)

    def accelerators(self) -> None:
        wanted = wanted_accelerators(self._placement)
        choose_one = _memory_of(lambda facts: choose(self._images, self._pinned, facts, self._runtime))
        unknown_memory: set[str] = set()
        for kind in self._nodes:
            view = kind.view
            if view.is_plain or not selected(view.node, self._placement):
                continue
            self.notes += view.notes
            for facts in view.accelerators:
                if not tolerated(view.node, self._placement, facts.vendor):
                    continue
                self.matching += len(kind.names)
                fitting = [item for item in wanted if fits(item, facts)]
                if not fitting:
                    continue
                if not facts.memory_mib and any(item.min_memory_gib for item in fitting):
                    unknown_memory.add(view.name)
                self._place(kind.names, facts, min(item.cost_weight for item in fitting), choose_one(facts))
        if unknown_memory:
            self.notes.append(_MEMORY_UNKNOWN_NOTE.format(", ".join(sorted(unknown_memory)[:3])))

    def cpus(self) -> None:
        here: list[str] = []
        for kind in self._nodes:
            node = kind.view.node
            if kind.view.is_plain and selected(node, self._placement) and tolerated(node, self._placement, None):
                here += kind.names
        self.matching += len(here)
        placement = self._placement
        staying = [item for item in self._known if item.key.is_cpu and item.may_stay]
        may = placement.cpu == CPUPolicy.ALLOWED and not placement.accelerators
        runs = any(item.is_live for item in staying)
        if not (placement.cpu == CPUPolicy.REQUIRED or (may and (runs or not (self.groups or self.refused)))):
            return
        if not here:
            return
        fresh = (
            ImageChoice(self._pinned, "CPU", "Resolved", f"pinned image {self._pinned.image}")
            if self._pinned
            else choose_cpu(self._images, self._runtime)
        )
        known = next(iter(staying), None)
        if fresh.image is None and known is None:
            self.refused.append(fresh)
            return
        key = TypeKey(CPU_PRODUCT, variant=fresh.image.name if fresh.image else "", fit="CPU")
        group = self._group(known.key if known else key, fresh, 100, known)
        group.nodes += here
        if known and fresh.image and fresh.image.image != known.image:
            group.newer = fresh.image.image

    def types(self) -> tuple[NodeType, ...]:
        found = [
            NodeType(
                self.keys[label],
                group.choice,
                group.cost,
                tuple(sorted(group.nodes)),
                min((facts.driver for facts in group.members), default="", key=version),
                min((facts.cuda for facts in group.members), default="", key=version),
                group.known,
                group.newer,
            )
            for label, group in self.groups.items()
        ]
        return tuple(sorted(found, key=_preference))

    def held(self) -> list[KnownType]:
        """Live types that the spec still admits, and whose nodes are gone, unreadable or changed."""
        gone = (item for item in self._known if item.is_live and item.label not in self.groups)
        return sorted((item for item in gone if self._spec_admits(item)), key=lambda item: item.label)

    def _spec_admits(self, known: KnownType) -> bool:
        key, placement = known.key, self._placement
        if not known.may_stay:
            return False
        if key.is_cpu:
            return placement.cpu != CPUPolicy.FORBIDDEN and not placement.accelerators
        if placement.cpu == CPUPolicy.REQUIRED:
            return False
        every = (facts for kind in self._nodes for facts in kind.view.accelerators)
        seen = [facts for facts in every if hardware_of(facts) == key.hardware]
        if seen:
            # Its accelerators are there: what they lack is said by the spec, or by what pods of the type need.
            return any(fits(item, facts) for item in wanted_accelerators(placement) for facts in seen)
        return any(
            item.vendor.value == key.vendor
            and names(item, key.product)
            and (not item.min_compute_capability or version(key.capability) >= version(item.min_compute_capability))
            for item in wanted_accelerators(placement)
        )


def images_told(types: Sequence[NodeType]) -> tuple[str, str]:
    """(reason, message) about the images of these types, slower kernels first; products are named where they differ."""
    ordered = sorted(types, key=lambda item: not item.choice.fallback)
    several = len({item.choice.message for item in ordered}) > 1
    told: dict[str, list[str]] = {}
    for item in ordered:
        told.setdefault(item.choice.message, []).append(item.key.product)
    words = [f"{', '.join(dict.fromkeys(names))}: {text}" if several else text for text, names in told.items()]
    return ordered[0].choice.reason, "; ".join(words)


def resolve(
    placement: PlacementSection,
    nodes: Sequence[NodeView],
    images: Sequence[CatalogueImage],
    pinned: CatalogueImage | None,
    known: Sequence[KnownType] = (),
    grouped: Sequence[NodeClass] | None = None,
    runtime: Runtime = Runtime.OCTAVO,
) -> Resolution:
    """Node types that a placement admits, cheapest first, each with its image.

    images: those of the runtime; nodes: in the order of their names; grouped: the same nodes by class, where that was
    done before.
    """
    if placement.node_selector:
        grouped = alone(nodes)
    resolver = _Resolver(placement, classes(nodes) if grouped is None else grouped, images, pinned, known, runtime)
    if placement.cpu != CPUPolicy.REQUIRED:
        resolver.accelerators()
    resolver.cpus()
    types, notes, kept = resolver.types(), tuple(dict.fromkeys(resolver.notes)), resolver.held()
    held = tuple(item.label for item in kept)
    products_held = tuple(dict.fromkeys(item.key.product for item in kept))
    note = "".join(f"; {text}" for text in notes[:5]) + (f"; and {len(notes) - 5} more" if len(notes) > 5 else "")
    if types:
        said, images_used = images_told(types)
        products = ", ".join(sorted({item.key.product for item in types}))
        # Nodes that can't be read are told where they matter; `explain nodes` and a metric always tell them.
        return Resolution(types, "Resolved", f"fits: {products}", said, images_used, notes, held, products_held)
    if resolver.refused:
        worst = resolver.refused[0]
        message = f"nodes fit, but no image does: {worst.message}{note}"
        return Resolution((), "NoImage", message, worst.reason, worst.message, notes, held, products_held)
    exist = sorted({facts.product for view in nodes for facts in view.accelerators} | _plain(nodes))
    message = (
        f"no node fits {described(placement)}; {len(nodes)} nodes exist ({', '.join(exist) or 'none'}), "
        f"{resolver.matching} match nodeSelector and taints; change placement or add a node{note}"
    )
    return Resolution(
        (), "NoNodeFits", message, "NoNodeFits", "no node fits, so no image was chosen", notes, held, products_held
    )


def _plain(nodes: Sequence[NodeView]) -> set[str]:
    return {CPU_PRODUCT} if any(view.is_plain for view in nodes) else set()


def resolve_blindly(
    placement: PlacementSection,
    images: Sequence[CatalogueImage],
    pinned: CatalogueImage | None,
    runtime: Runtime = Runtime.OCTAVO,
) -> Resolution:
    """Types from the spec alone, for an operator that may not read Nodes: products and image must be named."""
    if placement.cpu == CPUPolicy.REQUIRED:
        choice = ImageChoice(pinned, "CPU", "Resolved", "pinned image") if pinned else choose_cpu(images, runtime)
        if choice.image is None:
            return Resolution((), "NoImage", choice.message, choice.reason, choice.message)
        key = TypeKey(CPU_PRODUCT, variant=choice.image.name, fit="CPU")
        said = "nodes are not read: CPU nodes are taken"
        return Resolution((NodeType(key, choice, 100, ()),), "Resolved", said, choice.reason, choice.message)
    named = [(item, product) for item in placement.accelerators for product in item.products]
    if not named or pinned is None or any(not item.products for item in placement.accelerators):
        message = (
            "the operator may not read Nodes (nodes.access); name every product in placement.accelerators[].products "
            "and pin the image (image.policy Pinned with cudaVersion), or set placement.cpu to Required"
        )
        return Resolution((), "NodesNotReadable", message, "NodesNotReadable", message)
    types = []
    for item, product in named:
        is_nvidia = item.vendor == Vendor.NVIDIA
        fit, cuda = ("Native", pinned.cuda or "") if is_nvidia else ("Pinned", "")
        resource = "nvidia.com/gpu" if is_nvidia else "amd.com/gpu"
        choice = ImageChoice(pinned, fit, "Resolved", f"pinned image {pinned.image}; no driver was compared")
        key = TypeKey(product, item.vendor.value, "", "", resource, pinned.name, fit, cuda)
        types.append(NodeType(key, choice, item.cost_weight, ()))
    types.sort(key=lambda item: (item.cost, item.label))
    said = f"nodes are not read: the spec names {', '.join(product for _, product in named)}"
    return Resolution(tuple(types), "Resolved", said, "Resolved", types[0].choice.message)
