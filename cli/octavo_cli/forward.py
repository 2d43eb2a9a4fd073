"""The way to a service from where the command runs: its address in the cluster, else a port that kubectl forwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator

import aiohttp
from octavo_operator.cluster.client import connect
from octavo_operator.cluster.resources import BY_KIND
from octavo_operator.settings import account_folder

from .context import kubectl
from .errors import ServiceError

DIRECT_SECONDS = 2.0
FORWARD_SECONDS = 20.0
_FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:([0-9]+)")


async def _answers(url: str) -> bool:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DIRECT_SECONDS)) as session,
            session.get(f"{url}/health") as answer,
        ):
            return answer.status < 500
    except (aiohttp.ClientError, TimeoutError):
        return False


@contextlib.asynccontextmanager
async def reach(namespace: str, name: str) -> AsyncIterator[str]:
    """A base address that answers while the block runs. Raises ServiceError, ApiError; CommandError without kubectl."""
    async with connect(account_folder(os.environ)) as client:
        service = await client.get(BY_KIND["Service"], namespace, name)
    port = service["spec"]["ports"][0]["port"]
    direct = f"http://{service['spec'].get('clusterIP')}:{port}"
    if await _answers(direct):
        yield direct
        return
    command = (kubectl(), "port-forward", "-n", namespace, f"service/{name}", f":{port}", "--address", "127.0.0.1")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        yield f"http://127.0.0.1:{await _forwarded_port(process, namespace, name)}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _forwarded_port(process: asyncio.subprocess.Process, namespace: str, name: str) -> int:
    assert process.stdout is not None
    assert process.stderr is not None
    told = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FORWARD_SECONDS):
            told = await process.stdout.readline()
            if not told:
                told = await process.stderr.read()
    found = _FORWARDING.search(told)
    if found is None:
        words = told.decode(errors="replace").strip() or "no word from it"
        raise ServiceError(
            f"{namespace}/{name} does not answer, and kubectl port-forward opens no way to it: {words}; is a replica"
            f" ready (octavo explain {name})?"
        )
    return int(found[1])
