"""Writes kubeconfig files."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from octavo_localcluster.agent_config import Identity
from octavo_localcluster.pki import write_private

CONTEXT = "octavo-localcluster"


def write_kubeconfig(path: Path, server: str, authority: Path, identity: Identity, user: str) -> Path:
    """A kubeconfig with everything inside, so that it works from any folder. Only its owner can read it."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": CONTEXT, "cluster": {"server": server, "certificate-authority-data": _base64(authority)}},
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(identity.certificate),
                    "client-key-data": _base64(identity.key),
                },
            },
        ],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user, "namespace": "default"}}],
        "current-context": CONTEXT,
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False).encode())
    return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
