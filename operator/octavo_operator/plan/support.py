"""Fields that this version cannot act on: none is ignored in silence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo_operator.api.engine_section import CacheDType, Quantization, Runtime
from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.operation_section import ScalingMode, ScalingSection

from .runtimes import PROGRAMS, RuntimeProgram


@dataclass(frozen=True)
class Unsupported:
    """A field set to a value that has no effect yet, or that keeps the service from running."""

    field: str
    value: str
    essential: bool
    """Whether the service must not run because of it."""


def repeated_flags(arguments: Iterable[str], program: RuntimeProgram) -> list[str]:
    """Flags among extra arguments that fields of the resource set already."""
    return [text for text in arguments if text.partition("=")[0] in program.flags]


def unsupported_fields(spec: InferenceServiceSpec) -> tuple[Unsupported, ...]:
    """Every field set to a non-default value that this version cannot act on, in the order of the resource."""
    found: list[Unsupported] = []

    def note(field: str, value: object, essential: bool = False) -> None:
        found.append(Unsupported(field, str(value), essential))

    engine, scaling = spec.engine, spec.scaling
    if spec.model.adapters:
        note("model.adapters", ", ".join(adapter.name for adapter in spec.model.adapters))
    own = engine.runtime == Runtime.OCTAVO
    if own and engine.quantization == Quantization.FP8:
        note("engine.quantization", engine.quantization.value, essential=True)
    if own and engine.kv_cache.dtype == CacheDType.FP8:
        note("engine.kvCache.dtype", engine.kv_cache.dtype.value, essential=True)
    if own and engine.parallelism.tensor > 1:
        note("engine.parallelism.tensor", engine.parallelism.tensor, essential=True)
    program = PROGRAMS[engine.runtime]
    for field, value in program.refused(spec):
        note(field, f"{value}, with runtime {program.name}", essential=True)
    if not own:
        for flag in repeated_flags(engine.extra_args, program):
            note("engine.extraArgs", f"{flag}, which a field of this resource sets", essential=True)
    plain = ScalingSection()
    if scaling.mode == ScalingMode.OPERATOR and scaling.min_replicas == 0:
        note("scaling.minReplicas", "0 acts as 1")
    if scaling.mode == ScalingMode.OPERATOR:
        if scaling.max_replicas is not None and scaling.max_replicas > max(1, scaling.min_replicas):
            note("scaling.maxReplicas", scaling.max_replicas)
        for field in ("target_utilization_percent", "scale_down_seconds", "idle_seconds"):
            if getattr(scaling, field) != getattr(plain, field):
                note(f"scaling.{ScalingSection.model_fields[field].alias}", getattr(scaling, field))
    return tuple(found)
