"""InferenceServices that the pages show are taken by the real API server, rules between fields included."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from tests.frame.test_page_manifests import OURS, ROOT

pytestmark = pytest.mark.cluster
DEADLINE_SECONDS = 60


def test_the_api_server_takes_every_manifest_that_a_page_shows(control_plane: Any) -> None:
    base = [str(control_plane.program("kubectl")), "--kubeconfig", str(control_plane.kubeconfig)]

    def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*base, *arguments], input=stdin, capture_output=True, text=True, check=False)

    applied = run("apply", "--server-side", "-k", str(ROOT / "crds"))
    assert applied.returncode == 0, applied.stderr
    shown = [
        (where, {**manifest, "metadata": {**manifest["metadata"], "namespace": "default"}}) for where, manifest in OURS
    ]
    assert shown
    deadline = time.monotonic() + DEADLINE_SECONDS
    for where, manifest in shown:
        text = json.dumps(manifest)
        done = run("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
        while "no matches for kind" in done.stderr and time.monotonic() < deadline:
            done = run("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
        assert done.returncode == 0, f"{where}: {done.stderr}"
