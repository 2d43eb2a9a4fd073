"""The handlers that probes and lifecycle hooks share: httpGet, tcpSocket, exec, sleep."""

import asyncio
import contextlib
import os
import signal
import ssl
from dataclasses import dataclass

import aiohttp

from .api import Object
from .process import ProcessSpec

OUTPUT_LIMIT_BYTES = 10240


@dataclass(frozen=True)
class Target:
    """The container that a handler acts on; `process` gives environment and folder for exec."""

    pod_ip: str
    container: Object
    process: ProcessSpec


def port_number(port: int | str, container: Object) -> int:
    """A port by number or by its name among the container's ports. Raises ValueError for an unknown name."""
    if isinstance(port, int):
        return port
    for item in container.get("ports") or []:
        if item.get("name") == port:
            return int(item["containerPort"])
    if port.isdigit():
        return int(port)
    raise ValueError(f"no port of container {container['name']!r} is named {port!r}")


async def call(handler: Object, target: Target, timeout_seconds: float) -> tuple[bool, str]:
    """Run one handler; gives success and, when it failed, why."""
    try:
        async with asyncio.timeout(timeout_seconds):
            if "exec" in handler:
                return await _exec(handler["exec"]["command"], target)
            if "httpGet" in handler:
                return await _http_get(handler["httpGet"], target)
            if "tcpSocket" in handler:
                return await _tcp_socket(handler["tcpSocket"], target)
            await asyncio.sleep(float(handler["sleep"]["seconds"]))
            return True, ""
    except TimeoutError:
        return False, f"no answer within {timeout_seconds:g} s"
    except (OSError, ValueError, aiohttp.ClientError) as error:
        return False, str(error) or type(error).__name__


async def _http_get(handler: Object, target: Target) -> tuple[bool, str]:
    scheme = str(handler.get("scheme") or "HTTP").lower()
    host = handler.get("host") or target.pod_ip
    port = port_number(handler["port"], target.container)
    path = str(handler.get("path") or "/")
    url = f"{scheme}://{host}:{port}{path if path.startswith('/') else '/' + path}"
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    headers = {"User-Agent": "kube-probe/1.37", "Accept": "*/*"}
    headers |= {item["name"]: item["value"] for item in handler.get("httpHeaders") or []}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, force_close=True)) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        body = await response.content.read(OUTPUT_LIMIT_BYTES)
        if 200 <= response.status < 400:
            return True, ""
        text = body.decode(errors="replace").strip()[:200]
        return False, f"HTTP probe failed with statuscode: {response.status}{': ' + text if text else ''}"


async def _tcp_socket(handler: Object, target: Target) -> tuple[bool, str]:
    port = port_number(handler["port"], target.container)
    _, writer = await asyncio.open_connection(handler.get("host") or target.pod_ip, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True, ""


async def _exec(command: list[str], target: Target) -> tuple[bool, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=target.process.env,
        cwd=target.process.cwd,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        output = await process.stdout.read(OUTPUT_LIMIT_BYTES)
        while await process.stdout.read(65536):
            pass
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    text = output.decode(errors="replace").strip()
    return code == 0, "" if code == 0 else f"command exited with {code}{': ' + text if text else ''}"
