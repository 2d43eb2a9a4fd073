"""EngineConfig as JSON, the form in which the engine process receives it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any, get_type_hints

from octavo_server.config import EngineConfig


def to_json(config: EngineConfig) -> str:
    """One JSON object with an object per component."""
    return json.dumps(asdict(config))


def from_json(text: str) -> EngineConfig:
    """The config of `to_json`; missing fields take their defaults. Raises ValueError naming an unknown field."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"engine configuration is no JSON: {error}") from error
    config = _build(EngineConfig, value, "configuration")
    assert isinstance(config, EngineConfig)
    return config


def _build(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"engine {where} must be a JSON object, not {value!r}")
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(value) - known)
    if unknown:
        raise ValueError(f"engine {where} has an unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}")
    values = {
        name: _build(hints[name], item, name) if is_dataclass(hints[name]) else item for name, item in value.items()
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"engine {where}: {error}") from error
