"""Loopback addresses and ports that no other cluster on this machine uses."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NETWORKS = range(96, 250)
"""Second octets of 127.x.0.0/16 that clusters may take."""

PORTS = range(20000, 30000)
"""Below NodePorts (30000–32767) and below the ports that the kernel gives to outgoing connections (32768 and up)."""


class NetworkError(RuntimeError):
    """No free address range or port is left; the message says which and what to do."""


@dataclass(frozen=True)
class ClaimedNetwork:
    """A 127.x.0.0/16 that belongs to this process until `release` or its end, however that comes about."""

    octet: int
    claim: socket.socket

    @property
    def cidr(self) -> str:
        """`127.x.0.0/16`."""
        return f"127.{self.octet}.0.0/16"

    def address(self, third: int, fourth: int) -> str:
        """`127.x.third.fourth`."""
        return f"127.{self.octet}.{third}.{fourth}"

    def release(self) -> None:
        """Lets others take the network."""
        self.claim.close()


def claim_network(candidates: Iterable[int] = NETWORKS) -> ClaimedNetwork:
    """Takes the first free network.

    The claim is a socket in the kernel's abstract namespace: it is seen by all users of this machine's loopback
    interface, needs no file and ends with its process.
    """
    busy = busy_networks(Path("/proc/net/tcp").read_text())
    for octet in candidates:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0octavo-localcluster/127.{octet}")
            if octet not in busy and port_is_free(0, f"127.{octet}.0.1"):
                return ClaimedNetwork(octet, claim)
        except OSError:
            with suppress(OSError):
                claim.close()
            continue
        claim.close()
    raise NetworkError(
        "all loopback networks from 127.96.0.0/16 on are taken; stop a cluster (octavo-localcluster down)"
    )


def busy_networks(table: str) -> set[int]:
    """Second octets of the 127.x.0.0/16 in which something listens, from /proc/net/tcp."""
    busy = set()
    for line in table.splitlines()[1:]:
        _, local, _, state = line.split()[:4]
        address = bytes.fromhex(local.partition(":")[0])[:: -1 if sys.byteorder == "little" else 1]
        if state == "0A" and address[0] == 127:  # 0A: LISTEN
            busy.add(address[1])
    return busy


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports on which nothing listens now. Another process may take one before it is used: try again then."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if port_is_free(port, host):
            found.append(port)
        if len(found) == count:
            return found
    raise NetworkError(f"{count} free TCP ports are needed on {host} between {PORTS[0]} and {PORTS[-1]}")


def port_is_free(port: int, host: str) -> bool:
    """Whether a server could listen at host:port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: an address with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True
