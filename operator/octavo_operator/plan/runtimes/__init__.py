"""The programs that serve: Octavo's own, vLLM, SGLang and MLC, under the same resource."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_operator.api.engine_section import Runtime

from .base import RuntimeProgram, Serving
from .mlc import MLC
from .octavo import OCTAVO
from .sglang import SGLANG
from .vllm import VLLM

__all__ = ["PROGRAMS", "RuntimeProgram", "Serving"]

PROGRAMS: Mapping[Runtime, RuntimeProgram] = {
    Runtime.OCTAVO: OCTAVO,
    Runtime.VLLM: VLLM,
    Runtime.SGLANG: SGLANG,
    Runtime.MLC: MLC,
}
