"""Objects of the API server as plain data."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Manifest = dict[str, Any]


def digest(value: Any, length: int) -> str:
    """The first hex digits of a SHA-256 over the value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
