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
_AHEAD = 16


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


class NumbersAhead:
    """The numbers of each slot's next positions, drawn for many at once: one by one they cost a step four times more.

    seeds, choices: uint64 `[slots]`, read when numbers run out; `restart` a slot when they change.
    """

    def __init__(self, seeds: npt.NDArray[np.uint64], choices: npt.NDArray[np.uint64]) -> None:
        self._seeds, self._choices = seeds, choices
        self._first = np.full(len(seeds), -_AHEAD, np.int64)
        self._numbers = np.zeros((len(seeds), _AHEAD))

    def restart(self, slot: int) -> None:
        """Forgets what was drawn for a slot's last owner."""
        self._first[slot] = -_AHEAD

    def at(self, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """`uniforms` of these slots at these positions (0 or more), `[n]` each."""
        offsets = positions - self._first[slots]
        if ((offsets < 0) | (offsets >= _AHEAD)).any():
            # All of them, so that they run out together and not one in each step.
            wanted = positions[:, None] + np.arange(_AHEAD)
            seeds, choices = (np.repeat(words[slots], _AHEAD) for words in (self._seeds, self._choices))
            drawn = uniforms(seeds, choices, wanted.astype(np.uint64).ravel())
            self._numbers[slots] = drawn.reshape(-1, _AHEAD)
            self._first[slots] = positions
            offsets = np.zeros_like(positions)
        found: npt.NDArray[np.float64] = self._numbers[slots, offsets]
        return found
