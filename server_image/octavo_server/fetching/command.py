"""`octavo-server fetch`: bring a model here, or prove that it can be had and served (--check)."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from octavo_server.config import FetchConfig
from octavo_server.contract import CheckReason, ExitCode
from octavo_server.fetching.resolve import check_length, describe, local_path
from octavo_server.fetching.sources import HubSource, parse_location
from octavo_server.logs import FORMAT_VARIABLE, configure
from octavo_server.termination import Refused, write_termination_message
from octavo_server.weights import ModelSpec


def fetch(wanted: FetchConfig) -> ExitCode:
    """Runs the command; its finding is one JSON object on standard output. Raises Refused when it has none to give."""
    configure("info", os.environ.get(FORMAT_VARIABLE, "Text"))
    for noisy in ("httpx", "httpx2", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    if wanted.check:
        return _check(wanted)
    place = parse_location(wanted.model)
    if isinstance(place, HubSource):
        from octavo_server.fetching.hub import download

        path = download(place, wanted)
    else:
        path = local_path(place, wanted.model)
    spec, path = describe(path, wanted.format)
    check_length(wanted.max_length_tokens, spec.max_length)
    print(json.dumps({**finding(spec), "path": str(path)}), flush=True)
    return ExitCode.ENDED


def _check(wanted: FetchConfig) -> ExitCode:
    try:
        spec = _describe(wanted)
        report = finding(spec)
        check_length(wanted.max_length_tokens, spec.max_length)
    except Refused as refused:
        report = {**_EMPTY, "reason": str(refused.reason), "message": refused.message}
    print(json.dumps(report), flush=True)
    write_termination_message(report)
    return ExitCode.ENDED if report["ok"] else ExitCode.REFUSED


def _describe(wanted: FetchConfig) -> ModelSpec:
    place = parse_location(wanted.model)
    if isinstance(place, HubSource):
        from octavo_server.fetching.remote import describe_remote

        return describe_remote(place, wanted)
    spec, _ = describe(local_path(place, wanted.model), wanted.format)
    return spec


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
