"""Models on a Hugging Face Hub, through its own client (HF_ENDPOINT, HF_TOKEN, resume and locks are the client's)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import get_session

from octavo_server.config import FetchConfig
from octavo_server.contract import HUB_TOKEN_VARIABLE, CheckReason
from octavo_server.fetching.choose import choose_files
from octavo_server.fetching.sources import HubSource
from octavo_server.termination import Refused

_LOG = logging.getLogger("octavo.fetch")
_PROGRESS_SECONDS = 5.0
_GIB = 1024**3


@dataclass(frozen=True)
class HubModel:
    """Files of a model at one commit of a repository."""

    repository: str
    commit: str
    sizes: Mapping[str, int]
    """Path → bytes, chosen files only."""

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(self.sizes.values())


def find(place: HubSource, wanted: FetchConfig) -> HubModel:
    """Asks the Hub what there is. Raises Refused: ModelNotFound, AccessDenied, SourceUnreachable, FormatUnsupported."""
    with _reasons(place, wanted):
        info = HfApi().model_info(place.repository, revision=wanted.revision or None, files_metadata=True, timeout=20)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    files = choose_files(place.repository, sizes, place.inside, wanted.format)
    return HubModel(place.repository, info.sha or wanted.revision or "main", {file: sizes[file] for file in files})


def download(place: HubSource, wanted: FetchConfig) -> Path:
    """Brings the files here and returns their folder, or the GGUF file. Raises Refused as `find`, and NoSpaceLeft."""
    model = find(place, wanted)
    folder = Path(wanted.to) if wanted.to else Path(constants.HF_HUB_CACHE)
    _check_space(folder, model, wanted.model)
    paths: list[Path] = []
    done = 0
    for number, (file, size) in enumerate(model.sizes.items(), 1):
        with _reasons(place, wanted), _Progress(folder, file, size, done, model.size_bytes):
            path = hf_hub_download(
                model.repository, file, revision=model.commit, local_dir=str(folder) if wanted.to else None
            )
        paths.append(Path(path))
        done += size
        _LOG.info(
            "fetched %s (%d of %d files, %.2f of %.2f GiB)",
            file, number, len(model.sizes), done / _GIB, model.size_bytes / _GIB,
        )  # fmt: skip
    return paths[0] if paths[0].suffix == ".gguf" else paths[0].parent


def read_range(place: HubSource, wanted: FetchConfig, model: HubModel, file: str, start: int, size: int) -> bytes:
    """Bytes of a remote file. Raises Refused."""
    with _reasons(place, wanted):
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{start + size - 1}"}
        url = hf_hub_url(model.repository, file, revision=model.commit)
        response = get_session().get(url, headers=headers, follow_redirects=True, timeout=30)
        if response.status_code >= 400:
            raise _refusal(response.status_code, place, wanted, file)
        data: bytes = response.content
    return data[:size] if response.status_code == 206 else data[start : start + size]


def _check_space(folder: Path, model: HubModel, location: str) -> None:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    here = sum(path.stat().st_size for file in model.sizes if (path := folder / file).is_file())
    free = shutil.disk_usage(existing).free
    if model.size_bytes - here > free:
        raise Refused(
            CheckReason.NO_SPACE_LEFT,
            f"model {location}: needs {(model.size_bytes - here) / _GIB:.2f} GiB, {existing} has {free / _GIB:.2f} GiB "
            "free; make room or use a larger volume",
        )


@contextlib.contextmanager
def _reasons(place: HubSource, wanted: FetchConfig) -> Generator[None, None, None]:
    """Turns the client's exceptions into the wire contract's reasons."""
    location = wanted.model
    try:
        yield
    except GatedRepoError as error:
        raise Refused(
            CheckReason.ACCESS_DENIED,
            f"model {location}: access must be asked for on the Hub, by the owner of {HUB_TOKEN_VARIABLE}",
        ) from error
    except RevisionNotFoundError as error:
        message = f"model {location}: there is no revision {wanted.revision!r}"
        raise Refused(CheckReason.MODEL_NOT_FOUND, message) from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(location, error) from error
    except (RepositoryNotFoundError, EntryNotFoundError, HfHubHTTPError) as error:
        response = getattr(error, "response", None)
        status = 404 if response is None else response.status_code
        raise _refusal(status, place, wanted) from error
    except HFValidationError as error:
        raise Refused(CheckReason.MODEL_NOT_FOUND, f"model {location}: {error}") from error
    except OfflineModeIsEnabled as error:
        raise _unreachable(location, error) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refused(CheckReason.NO_SPACE_LEFT, f"model {location}: no space left while fetching") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            message = f"model {location}: {error.filename or wanted.to} can't be written: {error.strerror}"
            raise Refused(CheckReason.MODEL_UNREADABLE, message) from error
        raise _unreachable(location, error) from error
    except Refused:
        raise
    except Exception as error:
        # The HTTP library below the client has changed its name between versions, and with it its exceptions.
        if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "requests"):
            raise _unreachable(location, error) from error
        raise


def _refusal(status: int, place: HubSource, wanted: FetchConfig, file: str = "") -> Refused:
    has_token = bool(os.environ.get(HUB_TOKEN_VARIABLE))
    if status in (401, 403):
        why = f"the token in {HUB_TOKEN_VARIABLE} is refused" if has_token else f"{HUB_TOKEN_VARIABLE} is not set"
        return Refused(
            CheckReason.ACCESS_DENIED,
            f"model {wanted.model}: {place.repository} is private, gated or missing, and {why} (HTTP {status})",
        )
    if status == 404:
        what = f"{file} in {place.repository}" if file else place.repository
        return Refused(CheckReason.MODEL_NOT_FOUND, f"model {wanted.model}: the Hub has no {what} (HTTP 404)")
    return Refused(CheckReason.SOURCE_UNREACHABLE, f"model {wanted.model}: {constants.ENDPOINT} answered HTTP {status}")


def _unreachable(location: str, error: Exception) -> Refused:
    cause = error.__cause__ or error
    return Refused(
        CheckReason.SOURCE_UNREACHABLE,
        f"model {location}: {constants.ENDPOINT} can't be reached ({type(cause).__name__}); "
        "check the network policy and HF_ENDPOINT",
    )


class _Progress:
    """Logs how far a long download is, from the size of its unfinished file."""

    def __init__(self, folder: Path, file: str, size: int, done: int, total: int) -> None:
        self._folder = folder
        self._what = (file, size, done, total)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        file, size, done, total = self._what
        while not self._stop.wait(_PROGRESS_SECONDS):
            sizes = [path.stat().st_size for path in self._folder.rglob("*.incomplete") if path.exists()]
            now = done + min(size, max(sizes, default=0))
            percent = 100 * now // max(total, 1)
            _LOG.info("fetching %s: %.2f of %.2f GiB (%d %%)", file, now / _GIB, total / _GIB, percent)
