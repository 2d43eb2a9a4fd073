"""Draws the decode sweep as an SVG image: bandwidth by batch size, one line a length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 110, 30, 50
COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#edae49", "#6a4c93", "#444444")


def draw_sweep(batches: Sequence[int], lines: Mapping[int, Sequence[float]]) -> str:
    """The image's text. lines: for each length in tokens, percent of copy bandwidth for the first of the batches."""
    widest = WIDTH - LEFT - RIGHT
    highest = max(100.0, *(rate for rates in lines.values() for rate in rates))

    def across(batch: int) -> float:
        return LEFT + widest * math.log2(batch) / math.log2(batches[-1])

    def up(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / highest

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">Decode bandwidth, % of a device copy, by sequences in the batch</text>',
    ]
    parts += [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(rate):.1f}" y2="{up(rate):.1f}" stroke="#dddddd"/>'
        f'<text x="{LEFT - 8}" y="{up(rate) + 4:.1f}" text-anchor="end">{rate}</text>'
        for rate in range(0, 101, 20)
    ]
    parts += [
        f'<text x="{across(batch):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{batch}</text>'
        for batch in batches
        if batch & (batch - 1) == 0
    ]
    for colour, (length, rates) in zip(COLOURS, lines.items(), strict=False):
        places = list(zip(batches, rates, strict=False))
        path = " ".join(f"{across(batch):.1f},{up(rate):.1f}" for batch, rate in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across(b):.1f}" cy="{up(r):.1f}" r="2.5" fill="{colour}"/>' for b, r in places]
        if places:
            x, y = across(places[-1][0]) + 6, up(places[-1][1]) + 4
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{length} tokens</text>')
    return "\n".join([*parts, "</svg>", ""])
