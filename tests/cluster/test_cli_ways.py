"""The command line from outside of a cluster, and with nothing to look at: through the API server, through a forwarded
port, and in one line where there is no way."""

from __future__ import annotations

import base64
import re
import shlex
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from octavo_cli import forward, top
from octavo_cli.__main__ import main
from octavo_localcluster import Cluster, ClusterOptions

pytestmark = pytest.mark.cluster
NAME = "smollm2"
PROXIED = re.compile(r"/api/v1/namespaces/([\w-]+)/pods/([\w-]+):(\d+)/proxy(/.*)")
NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there: a pod's address, as it looks from outside of a cluster."""
FORWARDER = """
import asyncio, subprocess, sys

async def main():
    words = sys.argv[1:]
    if "port-forward" not in words:
        sys.exit(subprocess.run([KUBECTL, *words]).returncode)
    space, service, port = words[words.index("-n") + 1], words[words.index("-n") + 2], words[words.index("-n") + 3]
    command = [KUBECTL, "get", service, "-n", space, "-o", "jsonpath={.spec.clusterIP}"]
    address = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    async def pump(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader, writer):
        there = await asyncio.open_connection(address, int(port.strip(":")))
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"Forwarding from 127.0.0.1:{server.sockets[0].getsockname()[1]} -> 8000", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
"""kubectl with a forwarder of its own: the local cluster's node, which has no network to bridge, refuses to forward."""


@pytest.fixture(scope="module")
def served(octavo, namespace) -> str:
    octavo.kubectl("apply", "-n", namespace, "-f", str(Path(__file__).parents[2] / "examples" / "smollm2-cpu.yaml"))
    octavo.wait_ready(NAME, namespace)
    return str(namespace)


@pytest.fixture
def at_home(octavo, monkeypatch: pytest.MonkeyPatch) -> Any:
    """KUBECONFIG and kubectl as a person has them."""
    monkeypatch.setenv("KUBECONFIG", str(octavo.cluster.kubeconfig))
    monkeypatch.setenv("PATH", f"{octavo.cluster.program('kubectl').parent}:/usr/bin:/bin")
    return octavo


@pytest.fixture
def outside(at_home, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where neither a pod's nor a Service's address leads anywhere."""

    def far(pod: dict[str, Any], runtime: str) -> Any:
        place = target(pod, runtime)
        return None if place is None else replace(place, url=f"{NOWHERE}/metrics")

    async def silent(url: str) -> bool:
        return False

    target = top.target
    monkeypatch.setattr(top, "target", far)
    monkeypatch.setattr(forward, "_answers", silent)
    return at_home


@pytest.fixture
def through_proxy(outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An API server that reaches pods, which the local one does not: it refuses to proxy to loopback addresses. All
    else is the real one's answer. Yields the proxied paths."""
    content = yaml.safe_load(outside.cluster.kubeconfig.read_text())
    upstream, user = content["clusters"][0]["cluster"]["server"], content["users"][0]["user"]
    for name in ("client-certificate", "client-key"):
        if f"{name}-data" in user:
            (tmp_path / name).write_bytes(base64.b64decode(user[f"{name}-data"]))
            user[name] = str(tmp_path / name)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(user["client-certificate"], user["client-key"])
    client, asked = httpx.Client(verify=context, base_url=upstream, timeout=30), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = PROXIED.fullmatch(self.path)
            if found is not None:
                asked.append(self.path)
                pod = client.get(f"/api/v1/namespaces/{found[1]}/pods/{found[2]}").json()
                answer = httpx.get(f"http://{pod['status']['podIP']}:{found[3]}{found[4]}")
            else:
                answer = client.get(self.path, headers={"Accept": self.headers.get("Accept", "*/*")})
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    content["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{server.server_port}"}
    content["users"][0]["user"] = {}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    yield asked
    server.shutdown()
    server.server_close()
    thread.join(10)


def row(text: str) -> list[str]:
    [found] = [line.split() for line in text.splitlines() if NAME in line]
    return found


def test_from_outside_top_reads_pods_through_the_api_server(served, through_proxy, capsys):
    assert main(["top", "--once", "-n", served]) == 0
    found = row(capsys.readouterr().out)
    assert found[:4] == [served, NAME, "True", "1/1"]
    assert found[4].endswith("%")
    assert len(through_proxy) == 2, "each of the two looks asked the API server"
    assert all(f"/namespaces/{served}/pods/" in path and path.endswith("/proxy/metrics") for path in through_proxy)


def test_a_pod_that_the_api_server_does_not_reach_either_is_told_as_unknown(served, outside, capsys):
    assert main(["top", "--once", "-n", served]) == 0
    told = capsys.readouterr().out
    assert "1 of 1 pods without metrics" in re.sub(r"\s+", " ", told)
    assert "%" not in told


def test_from_outside_bench_goes_through_a_forwarded_port(served, outside, tmp_path, monkeypatch, capsys):
    kubectl = tmp_path / "kubectl"
    program = FORWARDER.replace("KUBECTL", repr(str(outside.cluster.program("kubectl"))))
    (tmp_path / "kubectl.py").write_text(program)
    kubectl.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {tmp_path}/kubectl.py "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = ["bench", NAME, "-n", served, "--requests", "2", "--concurrency", "2", "--tokens", "4"]
    assert main(words) == 0
    assert "generated tokens per second" in capsys.readouterr().out
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"{tmp_path}/kubectl.py port-forward" not in listed, "the forwarder ends with the measurement"


def test_a_port_that_cannot_be_forwarded_is_told_in_one_line_with_kubectls_own_words(served, outside, capsys):
    assert main(["bench", NAME, "-n", served, "--requests", "1"]) == 1
    told = capsys.readouterr().err.strip()
    assert told.startswith(f"octavo: {served}/{NAME} does not answer, and kubectl port-forward opens no way to it: ")
    assert f"octavo explain {NAME}" in told


def test_a_service_that_does_not_exist_is_named(served, at_home, capsys):
    for words in (["bench", "nobody"], ["explain", "nobody"]):
        assert main([*words, "-n", served]) != 0, words
        told = capsys.readouterr().err.strip()
        assert len(told.splitlines()) == 1, told
        assert "nobody" in told


def test_a_service_without_a_ready_pod_has_dashes_and_cannot_be_measured(served, at_home, service, claim, capsys):
    at_home.apply(service("waiting", "pvc://nothing/model.gguf"), namespace=served)
    at_home.wait_condition("waiting", served, "Ready", "False", 30)
    assert main(["top", "--once", "-n", served]) == 0
    [found] = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[1] == "waiting"]
    assert found[2:] == ["False", "0/1", "–", "–", "–", "–", "ClaimNotFound"]
    assert main(["bench", "waiting", "-n", served, "--requests", "1"]) != 0
    assert "waiting" in capsys.readouterr().err


def test_an_empty_namespace_is_said_to_be_one(served, at_home, capsys):
    assert main(["top", "--once", "-n", "kube-system"]) == 0
    assert "no InferenceService in kube-system" in capsys.readouterr().out


def test_without_a_cluster_each_command_says_so_in_one_line(at_home, tmp_path, monkeypatch, capsys):
    content = yaml.safe_load(at_home.cluster.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    for words in (["top", "--once"], ["explain", NAME], ["bench", NAME], ["explain", "nodes"]):
        assert main(words) == 1, words
        told = capsys.readouterr().err.strip()
        assert len(told.splitlines()) == 1, f"{words}: {told}"
        assert "127.0.0.1:9" in told


def test_where_octavo_is_not_installed_every_command_says_so(tmp_path, monkeypatch, capsys):
    with Cluster.start(ClusterOptions(folder=tmp_path / "empty"), report=print) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        for words in (["top", "--once"], ["explain", NAME], ["bench", NAME]):
            assert main(words) == 1, words
            told = capsys.readouterr().err.strip()
            assert len(told.splitlines()) == 1, told
            assert told.startswith("octavo: "), told
            assert "install Octavo" in told or "no operator is installed" in told or f'"{NAME}" not found' in told, told


def test_as_a_plugin_of_kubectl_the_same_commands_are_there(served, at_home, tmp_path, monkeypatch):
    """kubectl finds `kubectl-octavo` on PATH, as pip puts it there."""
    here = Path(sys.executable).parent
    assert (here / "kubectl-octavo").exists()
    environment = {
        "PATH": f"{here}:/usr/bin:/bin",
        "KUBECONFIG": str(at_home.cluster.kubeconfig),
        "HOME": str(tmp_path),
    }
    kubectl = str(at_home.cluster.program("kubectl"))
    listed = subprocess.run([kubectl, "plugin", "list"], capture_output=True, text=True, env=environment)
    assert "kubectl-octavo" in listed.stdout
    done = subprocess.run([kubectl, "octavo", "top", "--once", "-n", served], capture_output=True, text=True,
                          env=environment, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert row(done.stdout)[2] == "True"
    done = subprocess.run([kubectl, "octavo", "explain", NAME, "-n", served], capture_output=True, text=True,
                          env=environment, check=False)  # fmt: skip
    assert "Ready" in done.stdout
