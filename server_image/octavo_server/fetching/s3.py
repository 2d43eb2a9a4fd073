"""Models in an S3 bucket, or in a store that speaks S3 such as MinIO (AWS_ENDPOINT_URL).

Credentials and region come from the usual variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_REGION); without any the requests are not signed, as public buckets want it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from octavo_server.config import FetchConfig
from octavo_server.contract import CheckReason
from octavo_server.fetching.choose import choose_files
from octavo_server.fetching.origin import Interrupted, RemoteFile
from octavo_server.fetching.sources import S3Source
from octavo_server.termination import Refused

_KEY_VARIABLE = "AWS_ACCESS_KEY_ID"
_DENIED = ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "401")
_MISSING = ("404", "NoSuchBucket", "NoSuchKey", "NotFound")
_CHANGED = ("412", "PreconditionFailed")


@dataclass(frozen=True)
class S3Model:
    """Files of a model below one prefix of a bucket."""

    place: S3Source
    wanted: FetchConfig
    files: tuple[RemoteFile, ...]
    etags: dict[str, str] = field(repr=False)
    client: Any = field(repr=False)

    @property
    def location(self) -> str:
        """As the user wrote it."""
        return self.wanted.model

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.place.key.rstrip("/").rsplit("/", 1)[-1] or self.place.bucket

    @contextlib.contextmanager
    def open(self, file: RemoteFile, start: int, size: int) -> Iterator[Iterator[bytes]]:
        """Bytes of an object as it was when it was listed. Raises Interrupted or Refused."""
        with _reasons(self.wanted, passing=True):
            answer = self.client.get_object(
                Bucket=self.place.bucket,
                Key=file.path,
                Range=f"bytes={start}-{start + size - 1}",
                IfMatch=self.etags[file.path],
            )
            with contextlib.closing(answer["Body"]) as body:
                yield body.iter_chunks(128 * 1024)


def find(place: S3Source, wanted: FetchConfig) -> S3Model:
    """Asks the store what there is. Raises Refused with a reason of the wire contract."""
    client = _client()
    with _reasons(wanted, passing=False):
        sizes: dict[str, int] = {}
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.key):
            if not page.keys() & {"Name", "KeyCount", "Contents"}:
                message = f"model {wanted.model}: {_endpoint()} answers, but not as a store; check model.endpoint"
                raise Refused(CheckReason.SOURCE_UNREACHABLE, message)
            sizes |= {item["Key"]: item["Size"] for item in page.get("Contents") or ()}
        inside = place.key.rstrip("/")
        # A prefix is any text: model-7b must not bring model-7b-chat.
        below = {
            key: size for key, size in sizes.items() if not inside or key == inside or key.startswith(f"{inside}/")
        }
        if not below:
            message = f"model {wanted.model}: the bucket has nothing of this key (asked {_endpoint()})"
            raise Refused(CheckReason.MODEL_NOT_FOUND, message)
        chosen = choose_files(wanted.model, below, inside, wanted.format, wanted.runtime)
        heads = {key: client.head_object(Bucket=place.bucket, Key=key, ChecksumMode="ENABLED") for key in chosen}
    files = tuple(_file(place, key, head) for key, head in heads.items())
    return S3Model(place, wanted, files, {key: head["ETag"] for key, head in heads.items()}, client)


def _file(place: S3Source, key: str, head: dict[str, Any]) -> RemoteFile:
    etag, size = head["ETag"].strip('"'), int(head["ContentLength"])
    # An ETag is the MD5 of objects that were sent in one part and are not encrypted under a key of their own.
    plain = re.fullmatch("[0-9a-f]{32}", etag) and head.get("ServerSideEncryption", "AES256") == "AES256"
    checksum = f"md5:{etag}" if plain and "SSECustomerAlgorithm" not in head else ""
    mark = sha256(f"{os.environ.get('AWS_ENDPOINT_URL', '')} {place.bucket} {key} {etag} {size}".encode()).hexdigest()
    return RemoteFile(key, size, f"s3-{mark}", checksum)


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL") or "Amazon S3"


def _client() -> Any:
    signed = bool(os.environ.get(_KEY_VARIABLE) or os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"))
    config = Config(
        connect_timeout=10,
        read_timeout=30,
        retries={"total_max_attempts": 3, "mode": "standard"},
        response_checksum_validation="when_required",
        **({} if signed else {"signature_version": UNSIGNED}),
    )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return boto3.client("s3", region_name=region, config=config)


@contextlib.contextmanager
def _reasons(wanted: FetchConfig, *, passing: bool) -> Iterator[None]:
    """The client's exceptions as the wire contract's reasons; `passing`: trouble that may pass is Interrupted."""
    location, endpoint = wanted.model, _endpoint()
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in _DENIED or status in (401, 403):
            why = "the key is refused" if os.environ.get(_KEY_VARIABLE) else f"{_KEY_VARIABLE} is not set"
            message = f"model {location}: {why} by {endpoint} ({code})"
            raise Refused(CheckReason.ACCESS_DENIED, message) from error
        if code in _MISSING or status == 404:
            message = f"model {location}: {endpoint} has no such bucket or key ({code})"
            raise Refused(CheckReason.MODEL_NOT_FOUND, message) from error
        if code in _CHANGED or status == 412:
            message = f"model {location}: an object changed while it was fetched; fetch again"
            raise Refused(CheckReason.MODEL_UNREADABLE, message) from error
        if passing:
            raise Interrupted(f"{code or status} from {endpoint}") from error
        message = f"model {location}: {endpoint} answered {code or status}"
        raise Refused(CheckReason.SOURCE_UNREACHABLE, message) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Refused(CheckReason.ACCESS_DENIED, f"model {location}: {error}") from error
    except (BotoCoreError, OSError) as error:
        if passing and not isinstance(error, OSError):
            raise Interrupted(f"{type(error).__name__} from {endpoint}") from error
        if isinstance(error, OSError) and error.errno is not None and passing:
            # The volume's fault, not the source's.
            raise
        raise Refused(
            CheckReason.SOURCE_UNREACHABLE,
            f"model {location}: {endpoint} can't be reached ({type(error).__name__}); check the network policy and the "
            "endpoint",
        ) from error
