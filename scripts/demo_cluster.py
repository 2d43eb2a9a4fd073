"""The demo's cluster as its stages see it: octavo-localcluster, helm and kubectl, run as a person would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo_localcluster.programs import CONTROL_PLANE, ProgramError, ensure_programs

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("OCTAVO_DEMO_DIR") or ROOT / ".state" / "demo").absolute()
NODES = ROOT / "localcluster" / "nodes" / "cpu.yaml"
CHART = ROOT / "charts" / "octavo"
OPERATOR_NAMESPACE = "octavo-system"
POLL_SECONDS = 0.5
RESTRICTED = ("pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")


class StepFailed(Exception):
    """A step did not do what it should; the message says which and why."""


class DemoCluster:
    """One local cluster in one state folder."""

    def __init__(self, *, say: Callable[[str], None], folder: Path = FOLDER) -> None:
        self.folder = folder
        self._say = say
        self._programs: dict[str, Path] = {}

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def find_programs(self) -> None:
        """Find or build etcd, the control plane, kubectl and helm; tells progress."""
        try:
            self._programs = ensure_programs(self._say, CONTROL_PLANE)
        except ProgramError as error:
            raise StepFailed(str(error)) from error

    def program(self, name: str) -> Path:
        if not self._programs:
            self._programs = ensure_programs(lambda text: None, CONTROL_PLANE)
        return self._programs[name]

    def up(self) -> None:
        """Start the cluster, or find it running."""
        self._localcluster("up", "--nodes", str(NODES))

    def down(self) -> None:
        """Stop everything and remove the folder. Does nothing when there is none."""
        if self.folder.exists():
            self._localcluster("down")
            if self.folder.parent.name == ".state" and not any(self.folder.parent.iterdir()):
                self.folder.parent.rmdir()

    def _localcluster(self, verb: str, *options: str) -> None:
        command = [sys.executable, "-m", "octavo_localcluster", verb, "--folder", str(self.folder), *options]
        self._stream(command, f"octavo-localcluster {verb}")

    def install_chart(self) -> None:
        """`helm upgrade --install`, so that a second run brings a changed chart."""
        self.create_namespace(OPERATOR_NAMESPACE)
        helm = [str(self.program("helm")), "--kubeconfig", str(self.kubeconfig), "--namespace", OPERATOR_NAMESPACE]
        self._run([*helm, "upgrade", "--install", "octavo", str(CHART)])
        target = "deployment/octavo-operator"
        rollout = ("rollout", "status", target, "--namespace", OPERATOR_NAMESPACE, "--timeout", "120s")
        self._say(self.kubectl(*rollout).strip())

    def create_namespace(self, name: str) -> None:
        """A namespace that refuses pods below the restricted level."""
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(restricted_namespace(name)))

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl with the demo's kubeconfig and return what it prints."""
        return self._run([str(self.program("kubectl")), "--kubeconfig", str(self.kubeconfig), *arguments], stdin=stdin)

    def get(self, namespace: str, name: str) -> dict[str, Any]:
        """The InferenceService as it stands."""
        found = json.loads(self.kubectl("get", "inferenceservice", name, "--namespace", namespace, "--output", "json"))
        return dict(found)

    def wait_ready(self, namespace: str, name: str, timeout_seconds: float) -> None:
        """Wait until Ready is true for the present generation, telling each change of a condition."""
        started = time.monotonic()
        told: dict[str, tuple[str, str, str]] = {}
        while True:
            service = self.get(namespace, name)
            conditions = current_conditions(service)
            for kind, condition in conditions.items():
                line = (condition["status"], condition.get("reason", ""), condition.get("message", ""))
                if told.get(kind) != line:
                    told[kind] = line
                    elapsed = time.monotonic() - started
                    self._say(f"{elapsed:6.1f} s  {kind}={line[0]:7s} {line[1]}  {line[2]}".rstrip())
            if conditions.get("Ready", {}).get("status") == "True":
                return
            if time.monotonic() - started > timeout_seconds:
                ready = conditions.get("Ready", {"reason": "no condition", "message": "has the operator seen it?"})
                raise StepFailed(
                    f"InferenceService {namespace}/{name} is not Ready after {timeout_seconds:.0f} s: "
                    f"{ready.get('reason')}: {ready.get('message')}"
                )
            time.sleep(POLL_SECONDS)

    def service_address(self, namespace: str, name: str) -> str:
        """`http://ClusterIP:port`: a loopback address here, so it answers on this machine."""
        spec = json.loads(self.kubectl("get", "service", name, "--namespace", namespace, "--output", "json"))["spec"]
        return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"

    def explain(self, namespace: str, name: str) -> str:
        """What a person would look at first: conditions, pods, events and the ends of the logs."""
        try:
            self.kubectl("get", "--raw", "/readyz")
        except (StepFailed, ProgramError, OSError):
            return ""  # Without an API server the failed step's own lines are all there is to tell.
        looks = (
            ("get", "ois,pods", "--namespace", namespace),
            ("events", "--namespace", namespace, "--types", "Warning"),
            ("get", "pods", "--namespace", OPERATOR_NAMESPACE),
            ("logs", "--namespace", OPERATOR_NAMESPACE, "deployment/octavo-operator", "--tail", "20"),
            ("logs", "--namespace", namespace, "--selector", f"serving.octavo.dev/service={name}", "--tail", "20"),
        )
        parts = []
        for look in looks:
            try:
                parts.append(f"\n$ kubectl {' '.join(look)}\n{self.kubectl(*look).rstrip()}")
            except StepFailed as error:
                parts.append(f"\n$ kubectl {' '.join(look)}\n{error}")
        return "\n".join(parts)

    def _run(self, command: list[str], *, stdin: str | None = None) -> str:
        done = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            shown = " ".join([Path(command[0]).name, *command[1:]])
            raise StepFailed(f"'{shown}' failed:\n{(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _stream(self, command: list[str], name: str) -> None:
        """Run a longer step and pass its lines on as they come."""
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._say(line.rstrip())
        if process.returncode:
            raise StepFailed(f"'{name}' ended with exit code {process.returncode}; its lines above say why")


def current_conditions(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Conditions by type, those about an older generation left out."""
    generation = service["metadata"].get("generation", 0)
    conditions = service.get("status", {}).get("conditions", [])
    return {c["type"]: c for c in conditions if c.get("observedGeneration", generation) >= generation}


def restricted_namespace(name: str) -> dict[str, Any]:
    """A Namespace object that enforces the restricted pod security level."""
    labels = dict(label.split("=") for label in RESTRICTED)
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
