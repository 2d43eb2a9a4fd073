"""`octavo-server calibrate`: measures, chooses, and tells the winner in the termination message."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from octavo_server.calibration.choose import BlockResult, choose, explain
from octavo_server.contract import CALIBRATION_LIMIT_BYTES, ExitCode
from octavo_server.termination import Refused, write_termination_message

_SHAPE = {"layers": (1, 1000), "queryHeads": (1, 1024), "kvHeads": (1, 1024), "headSize": (16, 256)}
"""Its numbers with the least and the most of each; head sizes are those of the attention kernels."""


@dataclass(frozen=True)
class CalibrateConfig:
    """What is calibrated, and for how long."""

    shape: str
    """layers,queryHeads,kvHeads,headSize"""
    dtype: str = "Auto"
    kv_dtype: str = "Auto"
    device: str = "Auto"
    budget_seconds: float = 300.0
    cpu_threads: int = 0


def calibrate(wanted: CalibrateConfig) -> ExitCode:
    """Prints and reports one JSON object. Raises Refused when nothing can be measured."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sizes = parse_shape(wanted.shape)
    import torch

    from octavo_server.calibration.measure import measure
    from octavo_server.calibration.timing import Shape

    device = _device(wanted.device)
    # Threads that wait for each other on a busy machine measure the machine: one unless more are asked for.
    torch.set_num_threads(wanted.cpu_threads or 1)
    dtype = _dtype(wanted.dtype, torch.float32 if device.type == "cpu" else torch.bfloat16)
    kv_dtype = _dtype(wanted.kv_dtype, dtype)
    begin = time.monotonic()
    try:
        shape = Shape(*sizes)
        results = measure(shape, dtype, kv_dtype, device, wanted.budget_seconds)
    except (RuntimeError, ValueError) as error:
        raise Refused("CalibrationFailed", f"no block size could be measured: {error}") from error
    found = report(results, seconds=time.monotonic() - begin, device=device)
    print(json.dumps(found), flush=True)
    write_termination_message(found)
    return ExitCode.ENDED


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """The four numbers of --shape. Raises Refused with the number, its limit and the form."""

    def refused(what: str) -> Refused:
        return Refused("InvalidFlag", f"--shape {text!r}: {what}; write {','.join(_SHAPE)}, as in 30,9,3,64")

    words = [word.strip() for word in text.split(",")] if text else []
    if len(words) != len(_SHAPE):
        raise refused(f"it holds {len(words)} numbers in the place of {len(_SHAPE)}")
    for (name, (least, most)), word in zip(_SHAPE.items(), words, strict=True):
        # int() takes more than digits, and a long row of them for a long time.
        if not re.fullmatch(r"[0-9]{1,9}", word) or not least <= int(word) <= most:
            raise refused(f"{name} is {word[:20]!r}, and must be a whole number from {least} to {most}")
    layers, query_heads, kv_heads, head_size = (int(word) for word in words)
    if query_heads % kv_heads:
        raise refused(f"queryHeads is {query_heads}, and must be a multiple of kvHeads, {kv_heads}")
    if head_size % 8:
        raise refused(f"headSize is {head_size}, and must be a multiple of 8")
    return layers, query_heads, kv_heads, head_size


def report(results: list[BlockResult], *, seconds: float, device: Any = "cpu") -> dict[str, Any]:
    """The JSON object of the wire contract, short enough for a termination message."""
    chosen = choose(results)
    found = {
        "ok": True,
        "reason": "Calibrated",
        "message": explain(chosen, results),
        "blockSize": chosen.block_size_tokens,
        "seconds": round(seconds),
        "kernels": _version("octavo-kernels"),
        "triton": _version("triton"),
        "launchTable": _launch_table(chosen, device),
        "results": [_told(item) for item in results],
    }
    if len(json.dumps(found).encode()) > CALIBRATION_LIMIT_BYTES:
        # The chosen size's launches are in the table; those of the others are in the log.
        found["results"] = [{**_told(item), "launch": ""} for item in results]
    if len(json.dumps(found).encode()) > CALIBRATION_LIMIT_BYTES:
        raise Refused("CalibrationFailed", f"the result is longer than {CALIBRATION_LIMIT_BYTES} bytes")
    return found


def _told(item: BlockResult) -> dict[str, Any]:
    launches = [
        f"{row.kernel} " + " ".join(f"{name}={value}" for name, value in row.launch.items()) for row in item.launches
    ]
    return {
        "blockSize": item.block_size_tokens,
        "decodeMicroseconds": round(item.decode_microseconds),
        "prefillMicroseconds": round(item.prefill_microseconds),
        "prefixHitPercent": round(100 * item.hit_share),
        "launch": "; ".join(launches),
    }


def _launch_table(chosen: BlockResult, device: Any) -> str:
    """The chosen size's launches as `--launch-table` reads them; empty without any."""
    if not chosen.launches:
        return ""
    import torch
    from octavo_kernels.launch_table import LaunchTable, capability_of, compact, name_of

    place = torch.device(device)
    versions = {name: _version(name) for name in ("octavo-kernels", "torch", "triton")}
    return compact(LaunchTable(name_of(place), capability_of(place), chosen.launches, versions))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _device(wanted: str) -> Any:
    import torch

    if wanted == "CUDA" and not torch.cuda.is_available():
        raise Refused("DeviceMissing", "--device CUDA: torch finds no GPU; `octavo-server check` tells why")
    return torch.device("cuda" if wanted != "CPU" and torch.cuda.is_available() else "cpu")


def _dtype(wanted: str, otherwise: Any) -> Any:
    import torch

    names = {"Float32": torch.float32, "BFloat16": torch.bfloat16, "Float16": torch.float16, "FP8": torch.float8_e4m3fn}
    return names.get(wanted, otherwise)
