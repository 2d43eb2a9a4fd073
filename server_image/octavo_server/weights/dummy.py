"""Random weights of a model's shape, made on the device: measurements of speed need no real ones."""

from __future__ import annotations

from pathlib import Path

import torch

from octavo_server.weights.four_bit import FourBitWeight
from octavo_server.weights.safetensors_model import spec_of_folder
from octavo_server.weights.spec import ModelSpec

_DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16, "Float16": torch.float16}
_SPREAD = 0.03
"""Weights are uniform between − and + this, norms are 1: activations keep a usual size."""


class DummyModel:
    """The model that `config.json` of a folder describes, with weights from a fixed seed."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.spec: ModelSpec = spec_of_folder(folder)
        self._generator = torch.Generator(device).manual_seed(0)
        self._device = device

    def has(self, name: str) -> bool:
        """No biases; a head of its own unless the embedding serves as one."""
        return not name.endswith("_bias")

    def four_bit(self, name: str) -> FourBitWeight | None:
        """None: dummy weights are floats."""
        return None

    def tensor(self, name: str) -> torch.Tensor:
        """Random, `[out, in]`, or ones for norms, in the dtype that config.json names."""
        spec = self.spec
        queries, keys = spec.query_heads * spec.head_size, spec.kv_heads * spec.head_size
        shapes = {
            "embed": (spec.vocabulary_size, spec.hidden_size),
            "head": (spec.vocabulary_size, spec.hidden_size),
            "q": (queries, spec.hidden_size),
            "k": (keys, spec.hidden_size),
            "v": (keys, spec.hidden_size),
            "o": (spec.hidden_size, queries),
            "gate": (spec.intermediate_size, spec.hidden_size),
            "up": (spec.intermediate_size, spec.hidden_size),
            "down": (spec.hidden_size, spec.intermediate_size),
        }
        dtype, kind = _DTYPES[spec.stored_dtype], name.rsplit(".", 1)[-1]
        if kind not in shapes:
            return torch.ones(spec.hidden_size, dtype=dtype, device=self._device)
        weight = torch.empty(shapes[kind], dtype=dtype, device=self._device)
        return weight.uniform_(-_SPREAD, _SPREAD, generator=self._generator)
