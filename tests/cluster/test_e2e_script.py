"""The script of the forge's kind job, run whole against a real API server; only docker and kind are stand-ins here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from octavo_localcluster import Cluster, ClusterOptions

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.cluster
STAND_IN = '#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLS"\n'
"""There are no containers here: the node's own table of programs takes the place of images."""


def test_the_script_for_kind_installs_serves_measures_and_uninstalls(tmp_path):
    if not (ROOT / ".venv" / "bin" / "octavo").exists():
        pytest.skip("the script calls .venv/bin/octavo, and these tests run from another environment")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("docker", "kind"):
        (tools / name).write_text(STAND_IN)
        (tools / name).chmod(0o755)
    nodes = ROOT / "localcluster" / "nodes" / "cpu.yaml"
    with Cluster.start(ClusterOptions(folder=tmp_path / "cluster", nodes_file=nodes), report=print) as cluster:
        programs = {str(cluster.program(name).parent) for name in ("helm", "kubectl")}
        environment = {
            **os.environ,
            "PATH": ":".join((str(tools), *programs, os.environ["PATH"])),
            "KUBECONFIG": str(cluster.kubeconfig),
            "CALLS": str(tmp_path / "calls"),
            "TORCH_INDEX": "file:///wheels",
            "MANIFEST": "examples/smollm2-cpu.yaml",
        }
        script = str(ROOT / "scripts" / "e2e_kind.sh")
        done = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("generated tokens per second") == 2
    version = (ROOT / "VERSION").read_text().strip()
    built, loaded = (tmp_path / "calls").read_text().splitlines()
    assert built.startswith("docker buildx bake --load -f server_image/docker-bake.json")
    assert built.endswith("*.args.INDEX=file:///wheels cpu operator")
    assert loaded.endswith(f"octavo/octavo-operator:{version} octavo/octavo-server:{version}-cpu")


def test_without_the_address_of_torchs_wheels_the_script_says_what_to_set():
    environment = {key: value for key, value in os.environ.items() if key != "TORCH_INDEX"}
    script = str(ROOT / "scripts" / "e2e_kind.sh")
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "TORCH_INDEX: set it to" in done.stderr
