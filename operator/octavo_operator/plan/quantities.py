"""Kubernetes quantities: exact values and the spelling that the API server would choose."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_BINARY = {f"{unit}i": 1024 ** (power + 1) for power, unit in enumerate("KMGTPE")}
_DECIMAL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_DECIMAL |= {unit: Fraction(1000 ** (power + 1)) for power, unit in enumerate("kMGTPE")}
_FORM = re.compile(r"^([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(?:([EPTGMK]i|[numkMGTPE])|[eE]([+-]?[0-9]+))?$")


def quantity(value: int | float | str) -> Fraction | None:
    """The exact value; None when this is no quantity."""
    found = _FORM.match(str(value).strip())
    if not found:
        return None
    number, unit, exponent = Fraction(found[1].rstrip(".")), found[2] or "", found[3]
    if exponent:
        return number * Fraction(10) ** int(exponent)
    return number * (_BINARY[unit] if unit in _BINARY else _DECIMAL[unit])


def canonical(value: int | str) -> str:
    """The API server's spelling (1000m → 1, 1024Mi → 1Gi); the value as it is when it is no quantity."""
    exact = quantity(value)
    if exact is None:
        return str(value)
    if exact == 0:
        return "0"
    if str(value).endswith("i"):
        for unit, size in reversed(_BINARY.items()):
            if (exact / size).denominator == 1:
                return f"{exact // size}{unit}"
    for unit in ("E", "P", "T", "G", "M", "k", "", "m", "u"):
        if (exact / _DECIMAL[unit]).denominator == 1:
            return f"{exact // _DECIMAL[unit]}{unit}"
    return str(value)


@lru_cache(maxsize=4096)
def micro(value: int | float | str) -> int | None:
    """Millionths of the unit, rounded down; None when this is no quantity. Cluster objects repeat few amounts."""
    exact = quantity(value)
    return None if exact is None else int(exact * 1_000_000)
