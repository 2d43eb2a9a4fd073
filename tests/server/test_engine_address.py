"""The engine's socket may lie in a folder of any depth."""

from __future__ import annotations

import socket

import pytest
from octavo_server.engine.address import socket_address


@pytest.mark.parametrize("depth", [0, 12])
def test_a_socket_is_bound_and_reached_at_any_depth(tmp_path, depth):
    folder = tmp_path.joinpath(*["a-folder-of-some-length"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "engine"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        with socket_address(path) as address:
            listener.bind(address)
        listener.listen()
        assert path.is_socket(), "it lies where it was asked for"
        with socket_address(path) as address:
            caller.connect(address)
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"here")
        assert caller.recv(4) == b"here"
