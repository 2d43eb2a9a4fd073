"""Models in a bucket: against moto's server, which speaks S3 as MinIO does behind an endpoint."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from moto.server import ThreadedMotoServer

from tests.server.breaking_proxy import BreakingProxy
from tests.server.hub_server import CONFIG, safetensors

KEY = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture(scope="module")
def endpoint(model_path: Path) -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret"
    )
    client.create_bucket(Bucket="models")
    for folder in ("tiny", "tiny-chat"):
        for name, data in {
            "config.json": json.dumps(CONFIG).encode(),
            "model.safetensors": safetensors(CONFIG),
        }.items():
            client.put_object(Bucket="models", Key=f"org/{folder}/{name}", Body=data)
    upload = client.create_multipart_upload(Bucket="models", Key="smol.gguf")["UploadId"]
    parts, data = [], model_path.read_bytes()
    for number, start in enumerate(range(0, len(data), 50_000_000), 1):
        body = data[start : start + 50_000_000]
        part = client.upload_part(Bucket="models", Key="smol.gguf", UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    client.complete_multipart_upload(
        Bucket="models", Key="smol.gguf", UploadId=upload, MultipartUpload={"Parts": parts}
    )
    yield url
    server.stop()


def run(cli: Any, endpoint: str, tmp_path: Path, *arguments: str) -> Any:
    variables = {"AWS_ENDPOINT_URL": endpoint, "HOME": str(tmp_path), "OCTAVO_TERMINATION_LOG": str(tmp_path / "told")}
    return cli("fetch", *arguments, **{**KEY, **variables})


def test_a_prefix_is_checked_by_headers_and_fetched_with_its_checksums(cli: Any, endpoint: str, tmp_path: Path) -> None:
    checked = run(cli, endpoint, tmp_path, "--check", "--model", "s3://models/org/tiny")
    found = json.loads(checked.stdout)
    assert (found["ok"], found["format"], found["maxLength"]) == (True, "Safetensors", 512), found
    target = tmp_path / "model"
    done = run(cli, endpoint, tmp_path, "--model", "s3://models/org/tiny", "--to", str(target))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in target.iterdir() if path.is_file()) == ["config.json", "model.safetensors"]
    assert (target / "model.safetensors").read_bytes() == safetensors(CONFIG)
    assert "without a checksum" not in done.stderr


def test_a_file_sent_in_parts_is_fetched_and_said_to_have_no_checksum(
    cli: Any, endpoint: str, tmp_path: Path, model_path: Path
) -> None:
    target = tmp_path / "model"
    done = run(cli, endpoint, tmp_path, "--model", "s3://models/smol.gguf", "--to", str(target))
    assert done.returncode == 0, done.stderr
    assert (target / "smol.gguf").read_bytes() == model_path.read_bytes()
    assert "without a checksum from the source" in done.stderr


@pytest.mark.parametrize(
    ("location", "reason", "said"),
    [
        ("s3://models/org/tin", "ModelNotFound", "nothing of this key"),
        ("s3://nowhere/org/tiny", "ModelNotFound", "NoSuchBucket"),
        ("s3://models/org", "ModelNotFound", "org"),
        ("s3://M/org", "ModelNotFound", "'M' is no bucket's name, which has 3 to 63 small letters"),
        ("s3://M/org", "ModelNotFound", "write s3://bucket/key"),
        ("s3:///org", "ModelNotFound", "'' is no bucket's name"),
        ("s3://models/../org", "ModelNotFound", "'..' is no step inside a bucket; write s3://bucket/key"),
    ],
)
def test_what_is_not_there_is_told(
    cli: Any, endpoint: str, tmp_path: Path, location: str, reason: str, said: str
) -> None:
    found = json.loads(run(cli, endpoint, tmp_path, "--check", "--model", location).stdout)
    assert (found["ok"], found["reason"]) == (False, reason), found
    assert said in found["message"]


def test_connections_that_break_in_the_middle_are_resumed_at_their_byte(
    cli: Any, endpoint: str, tmp_path: Path, model_path: Path
) -> None:
    proxy = BreakingProxy(endpoint)
    try:
        proxy.breaks_after = [20_000_000, 3_000_000, 9_000_000]
        target = tmp_path / "model"
        done = run(cli, proxy.url, tmp_path, "--model", "s3://models/smol.gguf", "--to", str(target))
        assert done.returncode == 0, done.stderr
        assert (target / "smol.gguf").read_bytes() == model_path.read_bytes()
        assert proxy.broken == 3
        assert done.stderr.count("going on there") == 3
        assert proxy.passed_bytes < 1.2 * model_path.stat().st_size, "what had arrived was fetched again"
    finally:
        proxy.close()


@pytest.fixture
def strict_endpoint(endpoint: str) -> Iterator[str]:
    """The same store once it looks at keys, as a real one does."""
    httpx.post(f"{endpoint}/moto-api/reset-auth", content=b"0").raise_for_status()
    yield endpoint
    httpx.post(f"{endpoint}/moto-api/reset-auth", content=b"Infinity").raise_for_status()


def test_a_key_that_is_refused_is_told_apart_from_one_that_is_missing(
    cli: Any, strict_endpoint: str, tmp_path: Path
) -> None:
    words = ("fetch", "--check", "--model", "s3://models/org/tiny")
    refused = json.loads(cli(*words, AWS_ENDPOINT_URL=strict_endpoint, HOME=str(tmp_path), **KEY).stdout)
    assert (refused["ok"], refused["reason"]) == (False, "AccessDenied"), refused
    assert "the key is refused by" in refused["message"]
    assert "InvalidAccessKeyId" in refused["message"]


def test_a_key_that_may_not_read_the_bucket_is_told_as_denied(cli: Any, tmp_path: Path) -> None:
    answer = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    with answering(403, answer) as url:
        words = ("fetch", "--check", "--model", "s3://models/org/tiny")
        with_key = json.loads(cli(*words, AWS_ENDPOINT_URL=url, HOME=str(tmp_path), **KEY).stdout)
        without = json.loads(cli(*words, AWS_ENDPOINT_URL=url, HOME=str(tmp_path)).stdout)
    assert [with_key["reason"], without["reason"]] == ["AccessDenied"] * 2
    assert "the key is refused" in with_key["message"]
    assert "AWS_ACCESS_KEY_ID is not set" in without["message"]


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>a web page</html>"), (503, b"busy"), (404, b"nothing")])
def test_an_endpoint_that_is_no_store_is_told_with_its_address(
    cli: Any, tmp_path: Path, status: int, body: bytes
) -> None:
    with answering(status, body) as url:
        found = json.loads(run(cli, url, tmp_path, "--check", "--model", "s3://models/org/tiny").stdout)
    assert found["reason"] in ("SourceUnreachable", "ModelNotFound"), found
    assert url in found["message"]


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_store_that_is_not_there_is_unreachable(cli: Any, tmp_path: Path) -> None:
    found = json.loads(run(cli, "http://127.0.0.1:9", tmp_path, "--check", "--model", "s3://models/org/tiny").stdout)
    assert found["reason"] == "SourceUnreachable"
    assert "127.0.0.1:9" in found["message"]
