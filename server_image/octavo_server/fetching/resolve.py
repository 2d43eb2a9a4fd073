"""From a location to files on this machine whose headers show that they can be served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo_server.config import FetchConfig
from octavo_server.contract import CheckReason
from octavo_server.fetching.sources import LocalSource, parse_location
from octavo_server.termination import Refused
from octavo_server.weights import ModelError, ModelSpec, find_model, inspect


@dataclass(frozen=True)
class LocalModel:
    """A model that can be loaded."""

    path: Path
    """The GGUF file or the safetensors folder."""
    served_name: str
    spec: ModelSpec


def local_model(source: FetchConfig, *, served_name: str = "") -> LocalModel:
    """Finds the model, downloading it where the location says so. Raises Refused with a reason of the wire contract."""
    place = parse_location(source.model)
    if isinstance(place, LocalSource):
        path = local_path(place, source.model)
        name = path.resolve().name or str(path)
    else:
        from octavo_server.fetching.bring import bring, find

        origin = find(place, source)
        path, name = bring(origin, source), origin.name
    spec, path = describe(path, source.format)
    check_length(source.max_length_tokens, spec.max_length)
    return LocalModel(path, served_name or name, spec)


def local_path(place: LocalSource, location: str) -> Path:
    """The path, once something lies there that this process may read."""
    try:
        if not place.path.exists():
            raise Refused(
                CheckReason.MODEL_NOT_FOUND, f"model {location}: no such file or folder{_seen_at(place.path, location)}"
            )
        if place.path.is_dir():
            next(place.path.iterdir(), None)
        else:
            with place.path.open("rb"):
                pass
    except PermissionError:
        message = f"model {location}: this process may not read {place.path}"
        raise Refused(CheckReason.ACCESS_DENIED, message) from None
    except OSError as error:
        raise Refused(CheckReason.MODEL_UNREADABLE, f"model {location}: {error.strerror or error}") from error
    return place.path


def _seen_at(path: Path, location: str) -> str:
    """Where this process looked, unless the location says it, and what lies beside a mistyped name."""
    where = "" if location.endswith(str(path)) and "://" not in location else f" at {path}"
    try:
        beside = sorted(item.name for item in path.parent.iterdir())[:5] if path.parent != Path("/") else []
    except OSError:
        beside = []
    return where + (f"; beside it lie: {', '.join(beside)}" if beside else "")


def describe(path: Path, format: str) -> tuple[ModelSpec, Path]:
    """Spec and exact place of a local model. Raises Refused with the loader's reason."""
    try:
        found, kind = find_model(str(path), format)
        return inspect(str(found), kind), found
    except ModelError as error:
        raise Refused(error.reason, error.message) from error


def check_length(wanted: int, allowed: int) -> None:
    """Raises Refused when --max-length is more than the model was trained for."""
    if wanted > allowed:
        raise Refused(
            CheckReason.MAX_LENGTH_TOO_LONG,
            f"--max-length {wanted} is longer than the model allows, {allowed} tokens; use {allowed} or less",
        )
