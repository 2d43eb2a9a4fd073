"""Angles of the rotary position embedding, computed once per model (Su et al. 2021, RoFormer)."""

from __future__ import annotations

import math

import torch

from octavo_server.weights import RopeSpec


def cos_sin_table(rope: RopeSpec, head_size: int, positions: int, factors: torch.Tensor | None = None) -> torch.Tensor:
    """float32 `[positions, head_size]`: cosines of head_size / 2 frequencies, then their sines.

    `factors`, `[head_size / 2]`, divides the frequencies (scaling `factors`, as GGUF files of Llama 3.1 carry it).
    """
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size))
    if rope.scaling == "linear":
        frequencies = frequencies / rope.factor
    elif rope.scaling == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif rope.scaling == "factors" and factors is not None:
        frequencies = frequencies / factors.float().reshape(-1)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def _llama3(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long waves are divided by `factor`, short ones kept, those between are blended linearly in original / length."""
    waves = 2 * math.pi / frequencies
    ratio = rope.original_length / waves
    blend = (ratio - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies
