"""From a location elsewhere to a folder here."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from octavo_server.config import FetchConfig
from octavo_server.fetching.origin import Origin
from octavo_server.fetching.progress import Progress, ProgressServer
from octavo_server.fetching.sources import HubSource, S3Source
from octavo_server.fetching.store import Store
from octavo_server.fetching.transfer import TransferSettings, fetch_files


def find(place: HubSource | S3Source, wanted: FetchConfig) -> Origin:
    """Asks the source what there is. Raises Refused with a reason of the wire contract."""
    if isinstance(place, HubSource):
        from octavo_server.fetching import hub

        return hub.find(place, wanted)
    from octavo_server.fetching import s3

    return s3.find(place, wanted)


def bring(origin: Origin, wanted: FetchConfig) -> Path:
    """Fetches what is missing; the folder with the model, or its GGUF file. Raises Refused."""
    store, folder = places(wanted)
    progress = Progress()
    with ProgressServer(progress, wanted.progress_address):
        settings = TransferSettings(workers=wanted.connections)
        return fetch_files(origin, Store(store), folder, progress, settings)


def places(wanted: FetchConfig) -> tuple[Path, Path]:
    """(store, model's folder): --cache and --to; without --cache the store lies in the model's folder."""
    cache = Path(wanted.cache) if wanted.cache else None
    if wanted.to:
        return cache or Path(wanted.to) / ".store", Path(wanted.to)
    cache = cache or _default_cache()
    mark = sha256(f"{wanted.model} {wanted.revision} {wanted.format}".encode()).hexdigest()[:16]
    return cache, cache / "models" / mark


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "octavo"
