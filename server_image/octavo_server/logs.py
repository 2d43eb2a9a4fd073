"""Log lines: text for people, or one JSON object per line for collectors."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from octavo_server.contract import ENVIRONMENT_PREFIX

FORMATS = ("Text", "JSON")
FORMAT_VARIABLE = f"{ENVIRONMENT_PREFIX}LOG_FORMAT"
"""Also how the processes that a server starts learn the form."""


class JsonFormatter(logging.Formatter):
    """One object per record: time (UTC), level, logger, process, message, the record's `fields`, and the traceback."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line break inside."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
        }
        entry.update(getattr(record, "fields", None) or {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """A line for people; `fields` follow the message as name=value."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s {process}%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        line = super().formatMessage(record)
        fields = getattr(record, "fields", None) or {}
        return " ".join([line, *(f"{name}={value}" for name, value in fields.items())])


def configure(level: str, form: str, process: str = "") -> None:
    """Sends all records to standard error in this form. Replaces what was configured before."""
    formatter: logging.Formatter
    if form.lower() == "json":
        formatter = JsonFormatter(process or "api")
    else:
        formatter = TextFormatter(f"{process} " if process else "")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":
        for library in ("uvicorn.error", "httpx", "httpx2"):
            logging.getLogger(library).setLevel(logging.WARNING)
