"""How many replicas each node type gets: keep what runs, add to the cheapest with room, remove from the dearest."""

from __future__ import annotations

from collections.abc import Mapping


def spread(total: int, current: Mapping[str, int], free: Mapping[str, int], cost: Mapping[str, int]) -> dict[str, int]:
    """Replicas by type, adding up to `total` (unless no type can take any: `cost` is empty).

    current: replicas by type now, also of types that can take no more; free: replicas that could start at once;
    cost: price of each type that may take replicas. A type of `current` without a price goes first when removing.
    """
    shares = {name: count for name, count in current.items() if count > 0}
    room = {name: max(0, free.get(name, 0)) for name in cost}
    cheapest_first = sorted(cost, key=lambda name: (cost[name], name))
    missing = max(0, total) - sum(shares.values())
    for name in cheapest_first:
        taken = min(max(0, missing), room[name])
        if taken:
            shares[name] = shares.get(name, 0) + taken
            missing -= taken
    if missing > 0 and cheapest_first:
        shares[cheapest_first[0]] = shares.get(cheapest_first[0], 0) + missing
    dearest_first = sorted(shares, key=lambda name: (name in cost, -cost.get(name, 0), name))
    for name in dearest_first:
        removed = min(max(0, -missing), shares[name])
        shares[name] -= removed
        missing += removed
    return {name: count for name, count in sorted(shares.items()) if count > 0}
