"""Models on a Hugging Face Hub or a mirror of one (HF_ENDPOINT): what there is, and its bytes by range."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from huggingface_hub import HfApi, constants, hf_hub_url
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
from octavo_server.fetching.origin import Interrupted, RemoteFile
from octavo_server.fetching.sources import HubSource
from octavo_server.termination import Refused

_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that may be gone when one asks again."""
_FIRST_WAIT_SECONDS = 0.5
_PATIENCE_SECONDS = 20.0
"""A check tells its finding within 30 s of its pod's start."""
_LOG = logging.getLogger("octavo.fetch")
_CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests")
"""The HTTP library below the client has changed its name between versions, and with it its exceptions."""


@dataclass(frozen=True)
class HubModel:
    """Files of a model at one commit of a repository."""

    place: HubSource
    wanted: FetchConfig
    commit: str
    files: tuple[RemoteFile, ...]
    """Chosen files only."""

    @property
    def location(self) -> str:
        """As the user wrote it."""
        return self.wanted.model

    @property
    def name(self) -> str:
        """The repository."""
        return self.place.repository

    @contextlib.contextmanager
    def open(self, file: RemoteFile, start: int, size: int) -> Iterator[Iterator[bytes]]:
        """Bytes of a file, following redirects; the token goes to the Hub alone. Raises Interrupted or Refused."""
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"}
        url = hf_hub_url(self.place.repository, file.path, revision=self.commit)
        try:
            with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=30) as response:
                if response.status_code in _PASSING:
                    raise Interrupted(f"HTTP {response.status_code}", _retry_after(response))
                if response.status_code >= 400:
                    raise _refusal(response.status_code, self.place, self.wanted, file.path)
                yield _from(response, start)
        except (Interrupted, Refused):
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in _CLIENTS:
                raise Interrupted(f"{type(error).__name__} from {constants.ENDPOINT}") from error
            raise


def _from(response: Any, start: int) -> Iterator[bytes]:
    """The body from byte `start` on; a server that knows no ranges sends all of it."""
    skip = start
    if response.status_code == 206:
        told = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
        if told is None or int(told[1]) != start:
            raise Interrupted(f"asked for byte {start} and got {response.headers.get('content-range', 'no range')}")
        skip = 0
    for piece in response.iter_raw():
        if skip < len(piece):
            yield piece[skip:] if skip else piece
        skip = max(0, skip - len(piece))


def _retry_after(response: Any) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() else 0.0


def find(place: HubSource, wanted: FetchConfig) -> HubModel:
    """Asks the Hub what there is. Raises Refused: ModelNotFound, AccessDenied, SourceUnreachable, FormatUnsupported."""
    info = _ask(place, wanted)
    known = {file.rfilename: file for file in info.siblings or []}
    sizes = {name: file.size or 0 for name, file in known.items()}
    commit = info.sha or wanted.revision or "main"
    chosen = choose_files(place.repository, sizes, place.inside, wanted.format, wanted.runtime)
    return HubModel(place, wanted, commit, tuple(_file(known[path], place, commit) for path in chosen))


def _ask(place: HubSource, wanted: FetchConfig) -> Any:
    """What the Hub tells of a repository; asked again for a while when it is overloaded or limits its askers."""
    begin, wait = time.monotonic(), _FIRST_WAIT_SECONDS
    while True:
        try:
            with _reasons(place, wanted):
                revision = wanted.revision or None
                return HfApi().model_info(place.repository, revision=revision, files_metadata=True, timeout=20)
        except Refused as refused:
            response = getattr(refused.__cause__, "response", None)
            if response is None or response.status_code not in _PASSING:
                raise
            pause = max(wait, _retry_after(response))
            if time.monotonic() + pause - begin > _PATIENCE_SECONDS:
                raise
            _LOG.warning("%s; asking again in %.0f s", refused.message, pause)
            time.sleep(pause)
            wait *= 2


def _file(told: Any, place: HubSource, commit: str) -> RemoteFile:
    """Large files are known by the SHA-256 of their content, the others by git's own name of it."""
    size = told.size or 0
    if told.lfs is not None and re.fullmatch("[0-9a-f]{64}", told.lfs.sha256 or ""):
        return RemoteFile(told.rfilename, size, f"sha256-{told.lfs.sha256}", f"sha256:{told.lfs.sha256}")
    if re.fullmatch("[0-9a-f]{40}", told.blob_id or ""):
        return RemoteFile(told.rfilename, size, f"git-{told.blob_id}", f"git-sha1:{told.blob_id}")
    # A mirror that tells no hashes: the commit stands for the content.
    mark = sha256(f"{constants.ENDPOINT} {place.repository} {commit} {told.rfilename} {size}".encode()).hexdigest()
    return RemoteFile(told.rfilename, size, f"at-{mark}")


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
        raise _refusal(status, place, wanted, asked_seconds=_retry_after(response) if response else 0.0) from error
    except HFValidationError as error:
        raise Refused(CheckReason.MODEL_NOT_FOUND, f"model {location}: {error}") from error
    except OfflineModeIsEnabled as error:
        raise _unreachable(location, error) from error
    except OSError as error:
        raise _unreachable(location, error) from error
    except Refused:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] in _CLIENTS:
            raise _unreachable(location, error) from error
        raise


def _refusal(
    status: int, place: HubSource, wanted: FetchConfig, file: str = "", *, asked_seconds: float = 0.0
) -> Refused:
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
    words = f"model {wanted.model}: {constants.ENDPOINT} answered HTTP {status}"
    if status == 429:
        words += ", too many requests"
        words += f"; it asks to wait {asked_seconds:.0f} s" if asked_seconds else ""
        words += "" if has_token else f"; with a token ({HUB_TOKEN_VARIABLE}, model.secretRef) it allows more"
    return Refused(CheckReason.SOURCE_UNREACHABLE, words)


def _unreachable(location: str, error: Exception) -> Refused:
    cause = error.__cause__ or error
    return Refused(
        CheckReason.SOURCE_UNREACHABLE,
        f"model {location}: {constants.ENDPOINT} can't be reached ({type(cause).__name__}); "
        "check the network policy and HF_ENDPOINT",
    )
