"""Where the time of a decode step goes: what was measured beside what memory and arithmetic of the GPU would take.

Made from the rows of engine-h200 alone. Bytes and products follow from the model's shape (Llama-3-8B, bfloat16); the
ceilings are those that the same run measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

LAYERS, HIDDEN, INNER, VOCABULARY = 32, 4096, 14336, 128256
KV_HEADS, HEAD_SIZE, ELEMENT_BYTES = 8, 128, 2
PRODUCTS = LAYERS * ((HIDDEN + 2 * KV_HEADS * HEAD_SIZE + HIDDEN) * HIDDEN + 3 * HIDDEN * INNER) + VOCABULARY * HIDDEN
"""Weights that a step multiplies with; the embedding is looked up."""
KV_TOKEN_BYTES = LAYERS * 2 * KV_HEADS * HEAD_SIZE * ELEMENT_BYTES
CASES = (
    ("1", 1, 150, 0),
    ("64", 64, 150, 0),
    ("256 with 384 cached tokens", 256, 400, 0),
    ("64 that share an 8k prefix", 64, 150, 8192),
)
"""Name of the row, requests, cached tokens of each (about: they grow while it is measured), and shared tokens."""
PARTS = ("products", "attention")


def section(result: Mapping[str, Any]) -> str:
    """The section of docs/performance.md; empty where the rows that it needs are missing."""
    rows = {row["name"]: row for row in result["rows"]}
    ceilings = _ceilings(rows.values())
    lines = []
    for name, requests, cached, shared in CASES:
        row = rows.get(f"kernels of a step of {name}")
        if row is None or ceilings is None:
            continue
        lines.append(_line(name, row, ceilings, requests=requests, cached=requests * cached + shared))
    if not lines or ceilings is None:
        return ""
    copy, product = ceilings
    host = [
        f"{count} at once: device {rows[f'decode step of {count}: device']['value']:.2f} ms, host "
        f"{rows[f'decode step of {count}: host']['value']:.2f} ms ({rows[f'decode step of {count}: device']['note']})"
        for count in (1, 64, 256)
        if f"decode step of {count}: host" in rows and f"decode step of {count}: device" in rows
    ]
    return "\n".join([
        "## Where the time of a decode step goes\n",
        f"From the rows of the engine on an H200 ({result['date'][:10]}, commit {result['commit']}). Each step reads "
        f"{ELEMENT_BYTES * PRODUCTS / 1e9:.1f} GB of weights and {KV_TOKEN_BYTES:,} bytes per cached token, and "
        f"multiplies each of {PRODUCTS / 1e9:.2f} G weights with each row. Limits are these over the run's own "
        f"ceilings, {copy:.2f} TB/s (copy) and {product:.0f} TFLOP/s (bfloat16, 8192³): products take the longer of "
        "reading weights and multiplying, attention the reading of keys and values. Cached tokens are those in the "
        "middle of the measurement, so limits of attention are about right. Times are the profiler's, of kernels "
        "alone.\n",
        "| step of | weights, ms | multiplying, ms | products measured, ms | KV, ms | attention measured, ms | other "
        "kernels, ms | all kernels, ms | share of the limit |",
        "|---|---|---|---|---|---|---|---|---|",
        *lines,
        "",
        "The host works while the device does: of a step it adds only what does not fit beside it. "
        "Its parts include the driver's calls (copies, events, launching a graph); what Octavo's own code takes is "
        "measured apart, on a device that computes nothing (below).\n",
        *(f"- {text}" for text in host),
        "",
    ])  # fmt: skip


def _line(name: str, row: Mapping[str, Any], ceilings: tuple[float, float], *, requests: int, cached: int) -> str:
    copy, product = ceilings
    measured = {
        part: float(found.group(1)) for part in PARTS if (found := re.search(rf"{part} ([\d.]+) ms", row["note"]))
    }
    weights = 1e3 * ELEMENT_BYTES * PRODUCTS / (copy * 1e12)
    multiplying = 1e3 * 2 * PRODUCTS * requests / (product * 1e12)
    reading = 1e3 * KV_TOKEN_BYTES * cached / (copy * 1e12)
    whole = float(row["value"])
    limit = max(weights, multiplying) + reading
    other = whole - sum(measured.values())
    cells = (weights, multiplying, measured.get("products", 0.0), reading, measured.get("attention", 0.0), other, whole)
    return f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + f" | {100 * limit / whole:.0f} % |"


def _ceilings(rows: Iterable[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Copy in TB/s and product in TFLOP/s, from the note that tells them."""
    for row in rows:
        if found := re.search(r"this run: copy ([\d.]+) TB/s, bf16 8192³ (\d+) TFLOP/s", str(row.get("note") or "")):
            return float(found.group(1)), float(found.group(2))
    return None
