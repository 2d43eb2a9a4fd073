"""Locations of models, as text and as what they mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from octavo_server.contract import CheckReason
from octavo_server.termination import Refused

MOUNT_ROOT = Path("/models")
"""Claims of pvc:// locations are mounted below."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)\Z", re.S)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")


@dataclass(frozen=True)
class LocalSource:
    """A file or folder that this process can read."""

    path: Path


@dataclass(frozen=True)
class HubSource:
    """A repository on a Hugging Face Hub, or one file or folder of it."""

    repository: str
    inside: str = ""
    """Path inside the repository; empty = all of it."""

    @property
    def default_name(self) -> str:
        """What the model is served as when no name is given."""
        return self.repository


@dataclass(frozen=True)
class S3Source:
    """An object or a prefix of a bucket."""

    bucket: str
    key: str
    """Without a leading slash; may be empty."""

    @property
    def default_name(self) -> str:
        """What the model is served as when no name is given: the last part of the location."""
        return self.key.strip("/").rpartition("/")[2] or self.bucket


Source = LocalSource | HubSource | S3Source


def parse_location(location: str) -> Source:
    """What a location means. Raises Refused with SchemeUnsupported or ModelNotFound."""
    match = _SCHEME.match(location)
    if match is None:
        return LocalSource(Path(location))
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "file":
        return LocalSource(_absolute(rest, location))
    if scheme == "pvc":
        claim, _, inside = rest.partition("/")
        if not claim or ".." in Path(inside).parts:
            what = "a path with '..' leaves the claim" if claim else "the claim's name is missing"
            raise Refused(CheckReason.MODEL_NOT_FOUND, f"model {location}: {what}; write pvc://claim/path")
        return LocalSource(MOUNT_ROOT / claim / inside)
    if scheme == "hf":
        parts = rest.strip("/").split("/")
        repository, inside = "/".join(parts[:2]), "/".join(parts[2:])
        if not _REPOSITORY.match(repository) or ".." in parts:
            what = f"{repository!r} is no repository: names of letters, digits and ._-, parted by one /"
            what = "'..' is no step inside a repository" if ".." in parts else what
            words = f"model {location}: {what}; write hf://organisation/name, or hf://organisation/name/file.gguf"
            raise Refused(CheckReason.MODEL_NOT_FOUND, words)
        return HubSource(repository, inside)
    if scheme == "s3":
        bucket, _, key = rest.partition("/")
        if not _BUCKET.match(bucket) or ".." in key.split("/"):
            what = f"{bucket!r} is no bucket's name, which has 3 to 63 small letters, digits, . and - and begins and "
            what += "ends with a letter or digit"
            what = "'..' is no step inside a bucket" if _BUCKET.match(bucket) else what
            raise Refused(CheckReason.MODEL_NOT_FOUND, f"model {location}: {what}; write s3://bucket/key")
        return S3Source(bucket, key)
    raise Refused(
        CheckReason.SCHEME_UNSUPPORTED,
        f"model {location}: the scheme {scheme}:// is not supported; use hf://, s3://, pvc://, file:// or a path",
    )


def _absolute(rest: str, location: str) -> Path:
    path = Path(rest)
    if not path.is_absolute():
        raise Refused(CheckReason.MODEL_NOT_FOUND, f"model {location}: write file:///absolute/path, with three slashes")
    return path
