"""What a runtime is to the operator: a program, its arguments, its probes and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from octavo_operator.api.engine_section import CacheDType, DType, EngineSection, Quantization
from octavo_operator.api.inference_service import InferenceServiceSpec

from ..manifest import Manifest


@dataclass(frozen=True)
class Serving:
    """What a runtime's arguments are made from."""

    spec: InferenceServiceSpec
    served_name: str
    location: str
    """The model as the container sees it."""
    is_cpu: bool
    block_size_tokens: int
    """0 = the runtime's own choice."""
    launch_table: str = ""
    """File of launch configurations as the container sees it; empty = none were measured."""

    @property
    def engine(self) -> EngineSection:
        return self.spec.engine


@dataclass(frozen=True)
class RuntimeProgram:
    """One runtime. All of them listen on the port of the wire contract."""

    name: str
    command: tuple[str, ...]
    arguments: Callable[[Serving], list[str]]
    """Without engine.extraArgs, which come last; `$` in values is not yet escaped."""
    flags: tuple[str, ...]
    """All flags that `arguments` may set: extraArgs must not repeat them."""
    health_path: str = "/health"
    ready_path: str = "/health"
    probe_seconds: int = 10
    """Between two readiness probes: a probe of some runtimes computes a token."""
    notice_seconds: int = 5
    """Before SIGTERM, time in which the endpoint is taken out of Services; 0 for a program that does it itself."""
    environment: tuple[tuple[str, str], ...] = ()
    key_variable: str = ""
    """Variable of the API key; empty = the program knows none."""
    key_arguments: tuple[str, ...] = ()
    """Arguments that pass the key on from its variable."""
    refused: Callable[[InferenceServiceSpec], list[tuple[str, str]]] = field(default=lambda _spec: [])
    """(field, value) that the program can't honour, and without which the service would be another."""

    def notice(self) -> Manifest | None:
        """The container's lifecycle."""
        return {"preStop": {"sleep": {"seconds": self.notice_seconds}}} if self.notice_seconds else None


HOMELESS = (
    # The pods' user has no entry in /etc/passwd; torch's compiler caches ask for its name.
    ("USER", "octavo"),
    ("LOGNAME", "octavo"),
    ("HF_HUB_OFFLINE", "1"),
)
"""Environment of other runtimes: the model is here, nothing is fetched while serving."""

TORCH_DTYPES = {
    DType.AUTO: "auto",
    DType.FLOAT32: "float32",
    DType.BFLOAT16: "bfloat16",
    DType.FLOAT16: "float16",
}
"""engine.dtype as programs on torch name it."""


def refused_formats(spec: InferenceServiceSpec, cache_dtypes: Container[CacheDType]) -> list[tuple[str, str]]:
    """(field, value) of number formats that a program without 8-bit integers and with these cache formats lacks."""
    found = []
    if spec.engine.quantization == Quantization.INT8:
        found.append(("engine.quantization", spec.engine.quantization.value))
    if spec.engine.kv_cache.dtype not in cache_dtypes:
        found.append(("engine.kvCache.dtype", spec.engine.kv_cache.dtype.value))
    return found
