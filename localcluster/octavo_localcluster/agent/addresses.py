"""Loopback addresses of pods."""

import ipaddress


class AddressPool:
    """Hands out addresses `127.y.0.1` to `127.y.254.254` in turn, so that one just given back is not reused at once."""

    def __init__(self, network: str) -> None:
        parsed = ipaddress.ip_network(network)
        if parsed.prefixlen != 16:
            raise ValueError(f"pod_network: {network} is no /16; the node agent needs 127.y.0.0/16")
        self._base = int(parsed.network_address)
        self._next = 0
        self._used: set[str] = set()

    def take(self) -> str:
        """A free address. Raises RuntimeError when all 64,770 are in use."""
        for _ in range(255 * 254):
            offset = self._next
            self._next = (self._next + 1) % (255 * 254)
            address = str(ipaddress.ip_address(self._base + (offset // 254) * 256 + offset % 254 + 1))
            if address not in self._used:
                self._used.add(address)
                return address
        raise RuntimeError("every address of pod_network is in use; delete pods")

    def reserve(self, address: str) -> None:
        """Note an address that a pod of a former agent holds; later addresses come after it."""
        offset = int(ipaddress.ip_address(address)) - self._base
        self._used.add(address)
        self._next = max(self._next, (offset // 256) * 254 + offset % 256) % (255 * 254)

    def give_back(self, address: str) -> None:
        """Free an address."""
        self._used.discard(address)
