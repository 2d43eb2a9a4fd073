"""Angles of the rotary position embedding (Su et al. 2021, RoFormer) for every kind of scaling that models ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

KINDS = ("None", "Linear", "Dynamic", "Yarn", "LongRope", "Llama3", "Divided")


@dataclass(frozen=True)
class RotaryScaling:
    """How a model's frequencies `theta^(−2i / rope_size)` are changed so that it reads longer texts.

    kind: `None`;
        `Linear`: all divided by factor (Chen et al. 2023, position interpolation);
        `Dynamic`: theta grows with the length beyond original_length (NTK-aware; here with the length of the table, not
        of each text, since keys in the pool keep the angles that they were written with);
        `Yarn`: long waves divided by factor, short ones kept, a ramp between (Peng et al. 2023);
        `LongRope`: each divided by its own of short_factors or, when the table is longer than original_length, of
        long_factors (Ding et al. 2024);
        `Llama3`: as Yarn, with another ramp (release notes of Llama 3.1);
        `Divided`: each divided by its own of short_factors (how GGUF files carry Llama 3.1's).
    factor: how many times longer than original_length; 1 or more.
    original_length: tokens that the model was first trained with.
    attention_factor: by which cosines and sines are multiplied (Yarn, LongRope); None for the paper's.
    beta_fast, beta_slow: Yarn's ramp, in turns within original_length. truncate: whether its ends are whole numbers.
    mscale, mscale_all_dim: Yarn's attention factor as DeepSeek's models give it; 0 for the paper's.
    low_frequency_factor, high_frequency_factor: Llama3's ramp.
    short_factors, long_factors: rope_size / 2 numbers.
    Raises ValueError with the field, the value and the limit.
    """

    kind: str = "None"
    factor: float = 1.0
    original_length: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if not (math.isfinite(self.factor) and self.factor >= 1.0):
            raise ValueError(f"factor is {self.factor}; it must be a number of at least 1")
        if self.kind in ("Dynamic", "Yarn", "LongRope", "Llama3") and self.original_length < 1:
            raise ValueError(f"original_length is {self.original_length}; {self.kind} needs at least 1 token")
        if self.kind == "Llama3" and self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor is {self.high_frequency_factor}; it must be larger than low_frequency_factor"
                f" ({self.low_frequency_factor})"
            )
        if self.kind == "Yarn" and not 0.0 < self.beta_slow <= self.beta_fast:
            raise ValueError(
                f"beta_slow is {self.beta_slow}; it must be above 0 and at most beta_fast ({self.beta_fast})"
            )
        if any(not (math.isfinite(number) and number > 0) for number in self.short_factors + self.long_factors):
            raise ValueError("short_factors and long_factors must be numbers above 0")


def rotary_table(
    rope_size: int,
    length: int,
    theta: float = 10000.0,
    scaling: RotaryScaling | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """float32 `[length, rope_size]`: cosines of rope_size / 2 frequencies, then their sines, for rope_append_kv.

    rope_size: rotated elements of a head, even.
    length: positions that the table serves, the longest text that will be read.
    theta: base of the frequencies.
    Raises ValueError with the argument, the value and the limit.
    """
    if rope_size < 2 or rope_size % 2:
        raise ValueError(f"rope_size is {rope_size}; it must be even and at least 2")
    if length < 1:
        raise ValueError(f"length is {length}; it must be at least 1")
    if not (math.isfinite(theta) and theta > 1.0):
        raise ValueError(f"theta is {theta}; it must be a number above 1")
    frequencies, attention_factor = _scaled(rope_size, length, theta, scaling or RotaryScaling())
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return (torch.cat((angles.cos(), angles.sin()), dim=1) * attention_factor).to(device)


def _frequencies(rope_size: int, theta: float) -> torch.Tensor:
    return 1.0 / (theta ** (torch.arange(0, rope_size, 2, dtype=torch.float32) / rope_size))


def _scaled(rope_size: int, length: int, theta: float, scaling: RotaryScaling) -> tuple[torch.Tensor, float]:
    """Frequencies, float32 `[rope_size / 2]`, and the factor of cosines and sines."""
    plain = _frequencies(rope_size, theta)
    match scaling.kind:
        case "Linear":
            return plain / scaling.factor, 1.0
        case "Dynamic":
            return _frequencies(rope_size, _dynamic_theta(rope_size, length, theta, scaling)), 1.0
        case "Yarn":
            return _yarn(plain, theta, scaling), _yarn_attention(scaling)
        case "LongRope":
            longer = length > scaling.original_length
            return plain / _factors(scaling, rope_size, "long_factors" if longer else "short_factors"), _long(scaling)
        case "Llama3":
            return _llama3(plain, scaling), 1.0
        case "Divided":
            return plain / _factors(scaling, rope_size, "short_factors"), 1.0
    return plain, 1.0


def _dynamic_theta(rope_size: int, length: int, theta: float, scaling: RotaryScaling) -> float:
    if rope_size == 2:
        raise ValueError("rope_size is 2; Dynamic needs at least 4")
    stretch = max(length, scaling.original_length) / scaling.original_length
    return float(theta * (scaling.factor * stretch - (scaling.factor - 1)) ** (rope_size / (rope_size - 2)))


def _yarn(plain: torch.Tensor, theta: float, scaling: RotaryScaling) -> torch.Tensor:
    rope_size = 2 * plain.shape[0]

    def place(turns: float) -> float:
        """Which element's wave turns so many times within the original length."""
        return rope_size * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope_size - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    ramp = ((torch.arange(rope_size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)


def _yarn_attention(scaling: RotaryScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return grown(scaling.mscale) / grown(scaling.mscale_all_dim)
    return grown(1.0)


def _long(scaling: RotaryScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.factor == 1.0:
        return 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_length))


def _factors(scaling: RotaryScaling, rope_size: int, name: str) -> torch.Tensor:
    numbers: tuple[float, ...] = getattr(scaling, name)
    if len(numbers) != rope_size // 2:
        raise ValueError(f"{name} has {len(numbers)} numbers; {scaling.kind} needs rope_size / 2 = {rope_size // 2}")
    return torch.tensor(numbers, dtype=torch.float32)


def _llama3(plain: torch.Tensor, scaling: RotaryScaling) -> torch.Tensor:
    """Long waves are divided by `factor`, short ones kept, those between blended linearly in original length / wave."""
    ratio = scaling.original_length / (2 * math.pi / plain)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    blend = ((ratio - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * plain / scaling.factor + blend * plain
