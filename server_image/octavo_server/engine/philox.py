"""Random numbers that depend on (seed, choice index, position) alone: Philox4x32-10.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.3. A counter-based
generator has no state, so a request draws the same numbers alone, in a batch, after preemption and on another replica.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10


def philox(
    counter: tuple[npt.NDArray[np.uint64], ...], key: tuple[npt.NDArray[np.uint64], ...]
) -> tuple[npt.NDArray[np.uint64], ...]:
    """Four 32-bit words (in uint64 arrays `[n]`) for four counter words and two key words of the same form."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (high >> _SHIFT) ^ c1 ^ k0, high & _LOW, (low >> _SHIFT) ^ c3 ^ k1, low & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(
    seeds: npt.NDArray[np.uint64], choices: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits per row; all arrays `[n]`."""
    zero = np.zeros_like(seeds)
    words = philox((positions & _LOW, positions >> _SHIFT, choices, zero), (seeds & _LOW, seeds >> _SHIFT))
    bits = (words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53
