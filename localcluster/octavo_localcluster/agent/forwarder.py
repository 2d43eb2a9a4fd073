"""Listens where Services are and passes each connection to a random Ready pod, as kube-proxy would."""

import asyncio
import contextlib
import logging
import random
import socket
import struct
from urllib.parse import urlsplit

from .api import Object
from .reflector import key_of
from .service_table import API_SERVICE, Listener, ServicePort, backends, listeners_of, unsupported_of

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
BUFFER_BYTES = 65536
RETRY_SECONDS = 2.0
_RESET = struct.pack("ii", 1, 0)


class Forwarder:
    """Keeps one listening socket for each port of each Service. Call its `changed` methods from an event loop."""

    def __init__(self, server: str) -> None:
        api = urlsplit(server)
        self._api = (api.hostname or "127.0.0.1", api.port or 443)
        self._services: dict[tuple[str, str], Object] = {}
        self._pods: dict[tuple[str, str], Object] = {}
        self._targets: dict[Listener, ServicePort] = {}
        self._servers: dict[Listener, asyncio.Task[None]] = {}
        self._connections: set[asyncio.Task[None]] = set()

    def service_changed(self, old: Object | None, new: Object | None) -> None:
        """Take a change of a Service."""
        if old is not None:
            self._services.pop(key_of(old), None)
        if new is not None:
            self._services[key_of(new)] = new
            if old is None and unsupported_of(new):
                log.warning("Service %s/%s: not forwarded: %s", *key_of(new), ", ".join(unsupported_of(new)))
        self._targets = {}
        for key in sorted(self._services):
            self._targets |= listeners_of(self._services[key])
        for listener in [listener for listener in self._servers if listener not in self._targets]:
            self._servers.pop(listener).cancel()
        for listener in self._targets:
            if listener not in self._servers:
                self._servers[listener] = asyncio.create_task(self._listen(listener))

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Take a change of a Pod."""
        if old is not None:
            self._pods.pop(key_of(old), None)
        if new is not None:
            self._pods[key_of(new)] = new

    async def close(self) -> None:
        """Stop listening and cut what runs."""
        tasks = [*self._servers.values(), *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, listener: Listener) -> None:
        warned = False
        while True:
            try:
                listening = socket.create_server((listener.address, listener.port), backlog=512)
                break
            except OSError as error:
                if not warned:
                    log.warning("can't listen on %s:%s: %s", listener.address, listener.port, error.strerror or error)
                warned = True
                await asyncio.sleep(RETRY_SECONDS)
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:
                    log.warning("accept on %s:%s: %s", listener.address, listener.port, error.strerror or error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                task = asyncio.create_task(self._connect(listener, connection))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    def _choose(self, port: ServicePort) -> tuple[str, int] | None:
        key = (port.namespace, port.name)
        if key == API_SERVICE:
            return self._api
        service = self._services.get(key)
        found = [] if service is None else backends(service, port.target, self._pods.values())
        return random.choice(found) if found else None

    async def _connect(self, listener: Listener, client: socket.socket) -> None:
        port = self._targets.get(listener)
        chosen = None if port is None else self._choose(port)
        if port is None or chosen is None:
            log.info("%s:%s: no ready pod behind %s", listener.address, listener.port, port)
            reset(client)
            return
        pod = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        pod.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(pod, chosen)
        except (OSError, TimeoutError) as error:
            log.info("Service %s/%s: pod at %s:%s: %s", port.namespace, port.name, *chosen, error)
            pod.close()
            reset(client)
            return
        for end in (client, pod):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(copy(client, pod))
                group.create_task(copy(pod, client))
        except* OSError:
            # One side was reset: so is the other.
            reset(client)
            reset(pod)
        finally:
            client.close()
            pod.close()


async def copy(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until the source is at its end, then tell the sink so; the other direction goes on."""
    loop = asyncio.get_running_loop()
    buffer = bytearray(BUFFER_BYTES)
    with memoryview(buffer) as view:
        while count := await loop.sock_recv_into(source, buffer):
            await loop.sock_sendall(sink, view[:count])
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def reset(connection: socket.socket) -> None:
    """Close so that the peer sees a reset, not a normal end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
