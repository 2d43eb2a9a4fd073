"""An operator process beside a local cluster, under the rights that the chart grants, and its part of the audit log.

The chart is installed without operator pods: simulated nodes run none, and a process of our own can be measured,
stopped and killed. It logs in with a service-account token, as the pod does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from octavo_localcluster import Cluster

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "octavo-system"
ACCOUNT = "octavo-operator"
POLL_SECONDS = 0.1
CATALOGUE = """images:
  - {name: cpu, image: "octavo/octavo-server:0.1.0-cpu"}
  - {name: cuda12, image: "octavo/octavo-server:0.1.0-cuda12", cuda: "12.8", computeCapabilities: ["8.9", "9.0"]}
"""


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true value of the condition; raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL_SECONDS)
    return value


def run_program(cluster: Cluster, program: str, *arguments: str, stdin: str | None = None) -> str:
    """What `kubectl` or `helm` prints; raises RuntimeError with its error."""
    command = [str(cluster.program(program)), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def install_rights(cluster: Cluster) -> None:
    """CRDs, service account and roles from the chart, without operator pods."""
    chart = str(ROOT / "charts" / "octavo")
    run_program(
        cluster, "helm", "upgrade", "--install", "octavo", chart, "-n", NAMESPACE, "--create-namespace",
        "--set", "replicas=0",
    )  # fmt: skip


def simulated_nodes(count: int, *, gpus: int = 0) -> list[dict[str, Any]]:
    """Nodes whose pods kwok pretends to run, with so many L4 each; without, they compute on their CPU."""
    kind = "l4" if gpus else "cpu"
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    resources = {"cpu": "64", "memory": "1Ti", "pods": "250", "ephemeral-storage": "1Ti"}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": "NVIDIA-L4",
            "nvidia.com/gpu.family": "ada-lovelace",
            "nvidia.com/gpu.count": str(gpus),
            "nvidia.com/gpu.replicas": "1",
            "nvidia.com/gpu.memory": "23034",
            "nvidia.com/gpu.compute.major": "8",
            "nvidia.com/gpu.compute.minor": "9",
            "nvidia.com/cuda.driver-version.full": "570.172.08",
            "nvidia.com/cuda.driver-version.major": "570",
            "nvidia.com/cuda.driver-version.minor": "172",
            "nvidia.com/cuda.runtime-version.full": "12.8",
            "nvidia.com/cuda.runtime-version.major": "12",
            "nvidia.com/cuda.runtime-version.minor": "8",
        }
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"{kind}-{number}",
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {**labels, "kubernetes.io/hostname": f"{kind}-{number}"},
            },
            "status": {"allocatable": resources, "capacity": resources},
        }
        for number in range(count)
    ]


def user_of(account: str = ACCOUNT) -> str:
    """The user as the audit log names it."""
    return f"system:serviceaccount:{NAMESPACE}:{account}"


@dataclass(frozen=True)
class Request:
    """One answered request."""

    verb: str
    resource: str
    """With its subresource, as `inferenceservices/status`."""
    name: str
    code: int

    @property
    def writes_objects(self) -> bool:
        """Leases keep the operator its leadership, access reviews store nothing: neither counts."""
        reading = self.verb in ("get", "list", "watch")
        return not reading and self.resource not in ("leases", "selfsubjectaccessreviews")


class Audit:
    """A user's requests from a moment on."""

    def __init__(self, cluster: Cluster, user: str) -> None:
        self._path, self._user = cluster.audit_log, user
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def requests(self) -> list[Request]:
        """All since this object was made."""
        return list(self._read())

    def writes(self) -> list[Request]:
        """Those that write objects."""
        return [request for request in self._read() if request.writes_objects]

    def _read(self) -> Iterator[Request]:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n") or self._user.encode() not in line:
                    continue
                event = json.loads(line)
                about = event.get("objectRef") or {}
                if event["user"]["username"] != self._user or event["stage"] != "ResponseComplete":
                    continue
                parts = [about.get("resource", ""), about.get("subresource", "")]
                code = int(event.get("responseStatus", {}).get("code", 0))
                yield Request(event["verb"], "/".join(filter(None, parts)), about.get("name", ""), code)


class OperatorProcess:
    """`octavo-operator run` as a child process; as a context manager it is ended."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *flags: str,
        name: str = "one",
        account: str = ACCOUNT,
        program: Sequence[str] = (sys.executable, "-m", "octavo_operator"),
        server: str = "",
    ) -> None:
        """`server`: address of something between operator and API server; its authority goes into `folder`/ca.crt."""
        self._cluster, self.folder, self._program = cluster, folder / name, program
        self._server = server or cluster.state.server
        self.folder.mkdir(parents=True, exist_ok=True)
        token = run_program(cluster, "kubectl", "create", "token", account, "-n", NAMESPACE, "--duration=1h")
        (self.folder / "token").write_text(token)
        (self.folder / "ca.crt").write_bytes((cluster.folder / "pki" / "ca.crt").read_bytes())
        (self.folder / "images.yaml").write_text(CATALOGUE)
        self._flags, self._name = flags, name
        self.log_file = self.folder / "log"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> OperatorProcess:
        """Start it, or start it again after its end."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        address = urlsplit(self._server)
        environment = {
            **{key: value for key, value in os.environ.items() if key != "KUBECONFIG"},
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
            "OCTAVO_SERVICEACCOUNT_DIR": str(self.folder),
            "POD_NAMESPACE": NAMESPACE,
            "POD_NAME": self._name,
        }
        command = [*self._program, "run", "--port", str(self.port)]
        command += ["--catalogue", str(self.folder / "images.yaml"), *self._flags]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd="/")
        return self

    def __enter__(self) -> OperatorProcess:
        return self if self.process else self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, number: int = signal.SIGTERM, seconds: float = 20.0) -> int:
        """Signal it and return its exit code (of a process that has ended: that)."""
        assert self.process is not None, "not started"
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def state(self) -> str:
        """What /readyz says; empty while nobody answers."""
        return self._ask("/readyz")

    def wait_for(self, state: str, seconds: float = 60.0) -> None:
        """Wait until /readyz says this; raises TimeoutError with the log's end."""
        try:
            wait_until(lambda: self.state() == state, f"the operator is {state!r}", seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log()[-3000:]}") from None

    def metric(self, name: str) -> float:
        """The sum of a metric's samples. Raises RuntimeError with the log's end when the process has ended."""
        self._must_run()
        pattern = re.compile(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", re.MULTILINE)
        return sum(float(value) for value in pattern.findall(self._ask("/metrics")))

    def peak_memory_mib(self) -> float:
        """Largest resident set until now. Raises RuntimeError with the log's end when the process has ended."""
        process = self._must_run()
        text = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None, "the kernel tells VmHWM"
        return int(found[1]) / 1024

    def cpu_seconds(self) -> float:
        """Processor time until now."""
        fields = Path(f"/proc/{self._must_run().pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _must_run(self) -> subprocess.Popen[bytes]:
        """A figure of an operator that is gone would be nobody's."""
        assert self.process is not None, "not started"
        if (code := self.process.poll()) is not None:
            raise RuntimeError(f"the operator has ended with {code}; its log ends\n{self.log()[-3000:]}")
        return self.process

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def _ask(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode().strip())
        except urllib.error.HTTPError as error:
            return str(error.read().decode().strip())
        except OSError:
            return ""
