"""Scaling at work: reads the pods of every service that scales by load, decides each 15 s, and asks for a reconcile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import aiohttp
from prometheus_client import Counter, Gauge
from pydantic import ValidationError

from octavo_operator.api.inference_service import InferenceService, InferenceServiceSpec
from octavo_operator.api.operation_section import ScalingMode
from octavo_operator.control.indexes import Indexes, Key
from octavo_operator.metrics import REGISTRY
from octavo_operator.plan import Facts, Plan, plan

from .observe import engaged, observe, policy_settings, servers, target
from .overlay import Decision, count_in_force, for_planning, published, state_from, with_capacities, with_decision
from .policy import Reason, State, recommend
from .policy.state import KEPT_CHANGES
from .sample import Reading
from .scraper import Scraper, ScrapeSettings, Target
from .wake import AnnotationWake, WakeSource
from .window import Signals, Windows

log = logging.getLogger("octavo.scaling")
_NEVER = datetime.fromtimestamp(0, UTC)
"""Time of facts that are only read for what is owned."""
DECIDE_SECONDS = 15.0
PUBLISH_SECONDS = 60.0
"""Learned capacities reach status at most this often."""
_SERVICE = ["namespace", "service"]
DESIRED = Gauge("octavo_desired_replicas", "Replicas that the load asks for", _SERVICE, registry=REGISTRY)
DEMAND = Gauge("octavo_scaling_demand_tokens", "KV tokens that the load asks for", _SERVICE, registry=REGISTRY)
NEEDED = Gauge("octavo_scaling_needed_replicas", "Demand in replicas, before rounding", _SERVICE, registry=REGISTRY)
CAPACITY = Gauge("octavo_scaling_capacity_tokens", "KV tokens a replica sustains", _SERVICE, registry=REGISTRY)
UNKNOWN = Gauge("octavo_scaling_unknown_pods", "Serving pods without fresh metrics", _SERVICE, registry=REGISTRY)
DECISIONS = Counter(
    "octavo_scaling_decisions", "Decisions about the count, by reason", [*_SERVICE, "reason"], registry=REGISTRY
)
_GAUGES = (DESIRED, DEMAND, NEEDED, CAPACITY, UNKNOWN)


@dataclass
class _Service:
    state: State
    windows: Windows = field(default_factory=Windows)
    decision: Decision | None = None
    mode: ScalingMode | None = None
    """The mode in which the decision was made."""
    published_at: float = float("-inf")


def _clock() -> Callable[[], float]:
    """The time of day, that never jumps."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


class Autoscaler:
    """`run` beside the workers; `plan` in the place of the planner's."""

    def __init__(
        self,
        indexes: Indexes,
        ask: Callable[[Key], None],
        wake: WakeSource | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`ask` queues a service whose count or reason changed."""
        self._indexes, self._ask = indexes, ask
        self._wake = wake or AnnotationWake()
        self._clock = clock or _clock()
        self.facts: Callable[[Key], Facts | None] | None = None
        """What the indexes hold of a service with the nodes' room; asked while replicas lack an accelerator."""
        self._services: dict[Key, _Service] = {}
        self._owner: dict[str, Key] = {}

    def plan(self, facts: Facts) -> Plan:
        """The plan with the count that load asks for, where load has a say."""
        meta = facts.service["metadata"]
        key = (meta["namespace"], meta["name"])
        spec = self._spec(key)
        if spec is None or not engaged(spec, self._wake.wake(facts.service)):
            return plan(facts)
        if spec.scaling.mode != ScalingMode.OPERATOR:
            return with_capacities(plan(facts), self._service(key, facts, spec.scaling.mode).decision)
        decision = self._service(key, facts, spec.scaling.mode).decision or self._first(facts, spec)
        return with_decision(plan(replace(facts, service=for_planning(facts.service, decision))), facts, decision)

    def _first(self, facts: Facts, spec: InferenceServiceSpec) -> Decision:
        """Before the first decision, and after a restart: what is."""
        settings = policy_settings(spec)
        running = sum(int(item["spec"].get("replicas", 0)) for item in facts.owned_of("Deployment").values())
        status = facts.service.get("status") or {}
        count = count_in_force(status, running, settings.min_replicas, settings.max_replicas)
        state = state_from(status)
        return Decision(count, Reason.SETTLED, settings.min_replicas, settings.max_replicas, published(state, ()))

    def _service(self, key: Key, facts: Facts, mode: ScalingMode) -> _Service:
        if key not in self._services:
            self._services[key] = _Service(state_from(facts.service.get("status") or {}))
        own = self._services[key]
        if own.mode != mode:
            # Another owner set the count meanwhile: begin with the one in force, not with what was recommended.
            own.mode, own.decision = mode, None
        return own

    def _spec(self, key: Key) -> InferenceServiceSpec | None:
        service = self._indexes.service(key)
        try:
            return InferenceService.parse(service).spec if service is not None else None
        except ValidationError:
            # The planner says so in the service's conditions.
            return None

    async def run(self) -> None:
        """For ever."""
        settings = ScrapeSettings()
        connector = aiohttp.TCPConnector(limit=settings.concurrency)
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
            scraper = Scraper(session, self.targets, self.heard, self._clock, settings)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(scraper.run(), name="scrape")
                tasks.create_task(self._decide_often(), name="decide")

    def targets(self) -> Iterable[Target]:
        """Every serving pod of every service that load has a say in."""
        found: list[Target] = []
        self._owner = {}
        for key in self._indexes.services():
            spec, service = self._spec(key), self._indexes.service(key)
            if spec is None or service is None or not engaged(spec, self._wake.wake(service)):
                continue
            for pod in servers(self._indexes.pods(key)):
                one = target(pod, spec.engine.runtime.value)
                if one is not None:
                    found.append(one)
                    self._owner[one.uid] = key
        return found

    def heard(self, one: Target, reading: Reading) -> None:
        """A reading came."""
        key = self._owner.get(one.uid)
        if key is not None and key in self._services:
            self._services[key].windows.add(one.uid, reading)

    async def _decide_often(self) -> None:
        while True:
            await asyncio.sleep(DECIDE_SECONDS)
            self.decide_all()

    def decide_all(self) -> None:
        """One decision for every service; forgets those that went."""
        present = set(self._indexes.services())
        for key in [key for key in self._services if key not in present]:
            self._forget(key)
        for key in present:
            try:
                self._decide(key)
            except Exception:
                # A fault of ours in one service must not keep the others from scaling.
                log.exception("%s/%s: no scaling decision", *key)

    def load(self, key: Key, uid: str) -> float | None:
        """Requests that a pod has, running and waiting; None where that is not known."""
        own = self._services.get(key)
        seen = own.windows.seen(uid, self._clock()) if own is not None else None
        return seen.running + seen.waiting if isinstance(seen, Signals) else None

    def _spare(self, key: Key) -> int | None:
        """Replicas that would find a node at once: plans know the room of the nodes that they may use."""
        facts = self.facts(key) if self.facts is not None else None
        return plan(facts).spare if facts is not None else None

    def _forget(self, key: Key) -> None:
        del self._services[key]
        for gauge in _GAUGES:
            # A service that never had a decision has no series.
            with contextlib.suppress(KeyError):
                gauge.remove(*key)
        for reason in Reason:
            with contextlib.suppress(KeyError):
                DECISIONS.remove(*key, reason)

    def _decide(self, key: Key) -> None:
        service, spec = self._indexes.service(key), self._spec(key)
        if service is None or spec is None:
            return
        wake = self._wake.wake(service)
        if not engaged(spec, wake):
            if key in self._services:
                self._forget(key)
            return
        facts = Facts(service, _NEVER, owned=self._indexes.owned(key, service["metadata"]["uid"]))
        own, now, settings = self._service(key, facts, spec.scaling.mode), self._clock(), policy_settings(spec)
        before = own.decision or self._first(facts, spec)
        external = spec.scaling.mode == ScalingMode.EXTERNAL
        replicas = spec.replicas if external and spec.replicas is not None else before.desired
        pods = self._indexes.pods(key)
        own.windows.keep([pod["metadata"]["uid"] for pod in servers(pods)])
        fleet = observe(replicas, pods, lambda uid: own.windows.seen(uid, now), wake)
        if fleet.homeless or own.state.blocked_until > now:
            fleet = replace(fleet, spare=self._spare(key))
        answer = recommend(fleet, own.state, settings, now)
        fresh = tuple(item for item in answer.state.changes if item.time == now)
        own.state = answer.state
        capacities = before.capacities
        if now - own.published_at >= PUBLISH_SECONDS:
            capacities = published(own.state, before.capacities)
            own.published_at = now if capacities != before.capacities else own.published_at
        own.decision = Decision(
            answer.desired,
            answer.reason,
            settings.min_replicas,
            settings.max_replicas,
            capacities,
            (*before.changes, *fresh)[-KEPT_CHANGES:],
        )
        numbers = answer.numbers
        DECISIONS.labels(*key, answer.reason).inc()
        DESIRED.labels(*key).set(answer.desired)
        DEMAND.labels(*key).set(numbers.demand_tokens)
        NEEDED.labels(*key).set(numbers.needed or 0.0)
        CAPACITY.labels(*key).set(numbers.capacity_tokens or 0.0)
        UNKNOWN.labels(*key).set(numbers.unknown)
        if own.decision.capacities != before.capacities or (own.decision != before and not external):
            if fresh and not external:
                log.info(
                    "%s/%s: %d → %d replicas, %s: %s", *key, replicas, answer.desired, answer.reason, answer.message
                )
            self._ask(key)
