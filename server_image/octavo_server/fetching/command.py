"""`octavo-server fetch`: bring a model here, or prove that it can be had and served (--check)."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from octavo_server.config import FetchConfig
from octavo_server.contract import CheckReason, ExitCode
from octavo_server.fetching.resolve import check_length, describe, local_path
from octavo_server.fetching.sources import LocalSource, parse_location
from octavo_server.logs import FORMAT_VARIABLE, configure
from octavo_server.termination import Refused, write_termination_message
from octavo_server.weights import ModelSpec

OWN_RUNTIME = "Octavo"


def fetch(wanted: FetchConfig) -> ExitCode:
    """Runs the command; its finding is one JSON object on standard output. Raises Refused when it has none to give."""
    configure("info", os.environ.get(FORMAT_VARIABLE, "Text"))
    for noisy in ("httpx", "httpx2", "huggingface_hub", "botocore", "boto3", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    if wanted.check:
        return _check(wanted)
    place = parse_location(wanted.model)
    if isinstance(place, LocalSource):
        path = local_path(place, wanted.model)
    else:
        from octavo_server.fetching.bring import bring, find

        path = bring(find(place, wanted), wanted)
    if wanted.runtime != OWN_RUNTIME:
        print(json.dumps({**_foreign(wanted, _files_below(path)), "path": str(path)}), flush=True)
        return ExitCode.ENDED
    spec, path = describe(path, wanted.format)
    check_length(wanted.max_length_tokens, spec.max_length)
    print(json.dumps({**finding(spec), "path": str(path)}), flush=True)
    return ExitCode.ENDED


def _check(wanted: FetchConfig) -> ExitCode:
    try:
        if wanted.runtime != OWN_RUNTIME:
            report = _foreign(wanted, _sizes(wanted))
        else:
            spec = _describe(wanted)
            report = finding(spec)
            check_length(wanted.max_length_tokens, spec.max_length)
    except Refused as refused:
        report = {**_EMPTY, "reason": str(refused.reason), "message": refused.message}
    print(json.dumps(report), flush=True)
    write_termination_message(report)
    return ExitCode.ENDED if report["ok"] else ExitCode.REFUSED


def _sizes(wanted: FetchConfig) -> list[int]:
    """Sizes of a model's files, wherever it lies. Raises Refused."""
    place = parse_location(wanted.model)
    if isinstance(place, LocalSource):
        return _files_below(local_path(place, wanted.model))
    from octavo_server.fetching.bring import find

    return [file.size_bytes for file in find(place, wanted).files]


def _files_below(path: Path) -> list[int]:
    files = [path] if path.is_file() else [item for item in sorted(path.iterdir()) if item.is_file()]
    return [file.stat().st_size for file in files]


def _foreign(wanted: FetchConfig, sizes: list[int]) -> dict[str, Any]:
    """What is found of a model that another program will serve: that it is there, and how large."""
    words = f"{len(sizes)} files, {sum(sizes) / 2**20:.0f} MiB; whether it can be served is for {wanted.runtime} to say"
    reason = str(CheckReason.MODEL_FOUND)
    return {**_EMPTY, "ok": True, "reason": reason, "message": words, "sizeBytes": sum(sizes)}


def _describe(wanted: FetchConfig) -> ModelSpec:
    place = parse_location(wanted.model)
    if isinstance(place, LocalSource):
        return describe(local_path(place, wanted.model), wanted.format)[0]
    from octavo_server.fetching.bring import find
    from octavo_server.fetching.remote import describe_remote

    return describe_remote(find(place, wanted), wanted.format)


_EMPTY: dict[str, Any] = {
    "ok": False,
    "reason": "",
    "message": "",
    "format": "",
    "architecture": "",
    "sizeBytes": 0,
    "maxLength": 0,
    "shape": {"layers": 0, "queryHeads": 0, "kvHeads": 0, "headSize": 0},
}


def finding(spec: ModelSpec) -> dict[str, Any]:
    """The JSON object of the wire contract for a model that can be served."""
    return {
        "ok": True,
        "reason": str(CheckReason.MODEL_FOUND),
        "message": f"{spec.format}, {spec.architecture}, {spec.size_bytes / 2**20:.0f} MiB, "
        f"up to {spec.max_length} tokens",
        "format": spec.format,
        "architecture": spec.architecture,
        "sizeBytes": spec.size_bytes,
        "maxLength": spec.max_length,
        "shape": {
            "layers": spec.layers,
            "queryHeads": spec.query_heads,
            "kvHeads": spec.kv_heads,
            "headSize": spec.head_size,
        },
    }
