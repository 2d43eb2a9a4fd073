"""A system at work that a real Prometheus watches: the tests ask it every query, and the pictures are drawn from it.

A local cluster with the operator, installed through the chart; a real model under load; Prometheus with the targets
that the chart's PodMonitors name. Two things that a healthy CPU never shows are made: one refused write, and the
metrics that a server exposes on a driver which is too old for the fast kernels.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml
from octavo_localcluster import Cluster, ClusterOptions

from .prometheus import discovered, scrape_config

ROOT = Path(__file__).resolve().parent.parent
NODES = ROOT / "localcluster" / "nodes" / "cpu.yaml"
RULES = ROOT / "dashboards" / "rules" / "octavo.rules.yaml"
SYSTEM = "octavo-system"
MODEL = "smollm2"
OLD_DRIVER = "old-driver"
"""Label `service` of the server on an old driver."""
SCALED = {"mode": "Operator", "minReplicas": 1, "maxReplicas": 2}
CONTEXT = "You are a patient clerk who answers in short sentences. " * 4
DENIED = "denied"
REFUSE = f"""
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: {DENIED}}}
spec:
  matchConstraints:
    resourceRules: [{{apiGroups: ["", batch, apps], apiVersions: ["*"], operations: [CREATE], resources: ["*"]}}]
  validations: [{{expression: "!object.metadata.name.startsWith('{DENIED}')", message: no room for this one}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: {DENIED}}}
spec: {{policyName: {DENIED}, validationActions: [Deny]}}
"""


@dataclass
class Scene:
    """A running system: Prometheus's address, the model's, and how kubectl is asked."""

    prometheus: str
    model: str
    kubectl: Callable[..., str]
    kubeconfig: Path
    write_targets: Callable[[], object]
    """Tell Prometheus of the pods that run now."""
    _senders: list[tuple[threading.Thread, threading.Event]] = field(default_factory=list)

    def ask(self, path: str, **parameters: Any) -> Any:
        """`data` of an answer of Prometheus's interface.

        Raises httpx.TransportError while Prometheus starts, else httpx.HTTPStatusError.
        """
        answer = httpx.get(f"{self.prometheus}/api/v1/{path}", params=parameters, timeout=30)
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise httpx.ConnectError(f"Prometheus still reads its files: {answer.text}", request=answer.request)
        if answer.status_code != 200:
            raise httpx.HTTPStatusError(f"{parameters}: {answer.text}", request=answer.request, response=answer)
        return answer.json()["data"]

    def targets_up(self) -> int:
        """How many targets the last scrapes reached; 0 while Prometheus starts."""
        try:
            return len(self.ask("query", query="up == 1")["result"])
        except httpx.TransportError:
            return 0

    def send(self, clients: int, tokens: int = 24) -> None:
        """So many clients ask at once from now on."""
        gone, self._senders = self._senders[clients:], self._senders[:clients]
        for _, stop in gone:
            stop.set()
        for thread, _ in gone:
            thread.join(120)
        while len(self._senders) < clients:
            stop = threading.Event()
            thread = threading.Thread(target=_send, args=(self.model, stop, tokens), daemon=True)
            self._senders.append((thread, stop))
            thread.start()

    def refuse_one(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        """A service whose objects an admission policy refuses, until `condition` holds; then both are gone again."""
        self.kubectl("apply", "-f", "-", stdin=REFUSE)
        service = {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": DENIED, "namespace": "default"},
            "spec": {"model": {"uri": "file:///nowhere"}, "placement": {"cpu": "Required"}},
        }
        try:
            deadline = time.monotonic() + seconds
            number = 0
            while not condition():
                assert time.monotonic() < deadline, "the operator met no refused write"
                # A policy takes a moment to be in force; until then the write goes through, and a new name is tried.
                number += 1
                service["metadata"] = {"name": f"{DENIED}-{number}", "namespace": "default"}
                self.kubectl("apply", "-f", "-", stdin=json.dumps(service))
                time.sleep(3)
        finally:
            names = self.kubectl("get", "ois", "-o", "name").split()
            for name in names:
                if f"/{DENIED}" in name:
                    self.kubectl("delete", name, "--wait=false")
            self.kubectl("delete", "-f", "-", stdin=REFUSE)


def _send(url: str, stop: threading.Event, tokens: int) -> None:
    """Requests one after another, with a common beginning so that the prefix cache has something to find."""
    number = 0
    while not stop.is_set():
        number += 1
        prompt = f"{CONTEXT} Question {number} of {threading.get_ident()}: what is paper?"
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens}
        # A pod that scaling removes may end the connection of a request that it did not accept yet.
        with contextlib.suppress(httpx.TransportError):
            httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _old_driver_metrics() -> bytes:
    """What the server exposes of its kernels when a driver is too old, from the server's own code; nothing else."""
    from octavo_server.compatibility import fallbacks
    from octavo_server.engine.messages import Ready
    from octavo_server.metrics import Metrics

    reasons = [item.reason for item in fallbacks("9.0", ["sm_90"], "12.2", "12.8")]
    assert reasons, "CUDA 12.2 is no longer one that the fast kernels do without"
    metrics = Metrics(OLD_DRIVER)
    metrics.engine_ready(Ready(OLD_DRIVER, 1, 1, 16, 16, "cuda", "bfloat16", "None", "Triton", reasons))
    lines = [
        f'octavo_kernel_fallback{{reason="{sample.labels["reason"]}"}} {sample.value}'
        for family in metrics.families()
        if family.name == "octavo_kernel_fallback"
        for sample in family.samples
    ]
    return ("# TYPE octavo_kernel_fallback gauge\n" + "\n".join(lines) + "\n").encode()


@contextlib.contextmanager
def _old_driver() -> Iterator[dict[str, Any]]:
    """A target for Prometheus, labelled as the chart's PodMonitor labels pods."""
    body = _old_driver_metrics()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: scrapes are not news."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    labels = {"namespace": "default", "service": OLD_DRIVER, "pod": f"{OLD_DRIVER}-0", "node_type": "0a1b2c3d"}
    try:
        yield {
            "job_name": OLD_DRIVER,
            "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"], "labels": labels}],
        }
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextlib.contextmanager
def running(
    folder: Path,
    prometheus: str,
    *,
    spec: Mapping[str, Any] | None = None,
    nodes: Path = NODES,
    rules: Path = RULES,
    every: str = "2s",
) -> Iterator[Scene]:
    """All of it, until the block ends. `spec`: sections of the model's InferenceService in the place of the example's;
    `every`: how often Prometheus scrapes and evaluates the rules."""
    options = ClusterOptions(folder=folder / "cluster", nodes_file=nodes)
    with Cluster.start(options, report=print) as cluster, _old_driver() as old_driver:

        def call(program: str, *arguments: str, stdin: str | None = None) -> str:
            command = [str(cluster.program(program)), "--kubeconfig", str(cluster.kubeconfig), *arguments]
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{program} {arguments}: {done.stderr}"
            return done.stdout

        def kubectl(*arguments: str, stdin: str | None = None) -> str:
            return call("kubectl", *arguments, stdin=stdin)

        def write_targets() -> None:
            found = json.loads(kubectl("get", "pods", "-A", "--field-selector=status.phase=Running", "-o", "json"))
            # In one step: Prometheus reads the file when it likes.
            partial = folder / "targets.partial"
            partial.write_text(json.dumps(discovered(found["items"])))
            partial.replace(folder / "targets.json")

        chart = str(ROOT / "charts" / "octavo")
        call("helm", "install", "octavo", chart, "-n", SYSTEM, "--create-namespace", "--wait", "--timeout", "120s")
        documents = list(yaml.safe_load_all((ROOT / "examples" / "smollm2-cpu.yaml").read_text()))
        documents[-1]["spec"] |= {"scaling": SCALED, **(spec or {})}
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
        kubectl("wait", f"ois/{MODEL}", "--for=condition=Ready", "--timeout=180s")
        address = kubectl("get", "service", MODEL, "-o", "jsonpath={.spec.clusterIP}")

        rendered = call("helm", "template", "octavo", chart, "-n", SYSTEM, "--set", "podMonitor.enabled=true")
        monitors = [item for item in yaml.safe_load_all(rendered) if item and item["kind"] == "PodMonitor"]
        settings = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(rules)],
            "scrape_configs": [*(scrape_config(item, folder / "targets.json") for item in monitors), old_driver],
        }
        write_targets()
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        port = free_port()
        command = [prometheus, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                   f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
        with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            scene = Scene(f"http://127.0.0.1:{port}", f"http://{address}", kubectl, cluster.kubeconfig, write_targets)
            try:
                yield scene
            finally:
                scene.send(0)
                process.terminate()
