"""How a command ends with a reason: one line on standard error, and the container's termination message."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from octavo_server.contract import PROGRAM, TERMINATION_LOG_LIMIT_BYTES, TERMINATION_LOG_VARIABLE, ExitCode


class Refused(Exception):
    """The command can't do what it was asked to; `reason` is CamelCase, the message one line."""

    def __init__(self, reason: str, message: str, exit_code: ExitCode = ExitCode.REFUSED) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = " ".join(message.split())
        self.exit_code = exit_code


def report(refused: Refused) -> int:
    """Writes the line and the termination message; returns the exit code."""
    print(f"{PROGRAM}: {refused.message}", file=sys.stderr, flush=True)
    write_termination_message({"reason": refused.reason, "message": refused.message})
    return int(refused.exit_code)


def write_termination_message(content: Mapping[str, Any]) -> None:
    """Writes one JSON object where the kubelet reads it; nothing when OCTAVO_TERMINATION_LOG is unset."""
    path = os.environ.get(TERMINATION_LOG_VARIABLE)
    if not path:
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(fit(content))
    except OSError as error:
        print(f"{PROGRAM}: {TERMINATION_LOG_VARIABLE}={path} can't be written: {error.strerror}", file=sys.stderr)


def fit(content: Mapping[str, Any]) -> str:
    """The object as JSON of at most 4,096 bytes, the kubelet's limit: the message is what gets shorter."""
    fitted = dict(content)
    text = json.dumps(fitted, ensure_ascii=False)
    while (excess := len(text.encode()) - TERMINATION_LOG_LIMIT_BYTES) > 0:
        message = str(fitted.get("message", ""))
        if not message:
            return text.encode()[:TERMINATION_LOG_LIMIT_BYTES].decode("utf-8", "ignore")
        fitted["message"] = message[: max(0, len(message) - max(1, excess // 4) - 1)].rstrip("…") + "…"
        if len(message) <= 1:
            fitted["message"] = ""
        text = json.dumps(fitted, ensure_ascii=False)
    return text
