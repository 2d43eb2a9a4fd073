"""Helm as the local cluster finds or builds it, and the chart's objects as it renders them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from octavo_localcluster.programs import PROGRAMS, ensure_programs

CHART = Path(__file__).resolve().parents[2] / "charts" / "octavo"
MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one namespace": {"watchNamespaces": ["team-a"]},
    "two namespaces, no nodes": {"watchNamespaces": ["team-a", "team-b"], "nodes": {"access": False}},
    "everything off": {
        "crds": {"enabled": False},
        "service": {"enabled": False},
        "userRoles": {"create": False},
        "serviceAccount": {"create": False, "name": "someone"},
    },
    "scraped through services": {"serviceMonitor": {"enabled": True}, "watchNamespaces": ["team-a"]},
    "everything on": {
        "replicas": 2,
        "image": {"repository": "registry.example/octavo-operator", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "models": {
            "cacheClaim": "models",
            "hubEndpoint": "https://hub.example",
            "priorityClassName": "octavo-online",
            "imagePullSecrets": [{"name": "pull"}, {"name": "other"}],
            "proxy": {"address": "http://proxy.example:3128", "except": [".cluster.local", "10.0.0.0/8"]},
        },
        "runbookBase": "https://wiki.example/octavo",
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "serving"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "serviceAccount": {"annotations": {"a": "b"}},
        "extraArgs": ["--log-level=Debug"],
        "policy": {
            "imagePrefixes": ["registry.example/team", "*"],
            "filePrefixes": ["/models", "/opt/models"],
            "argumentPrefixes": [],
            "priorityClasses": ["serving", "*"],
            "tolerations": ["dedicated=llm", "example.com/pool", "*"],
            "resources": ["rdma/hca_shared_devices_a"],
        },
        "networkPolicy": {
            "monitoringNamespace": "monitoring",
            "gatewayNamespace": "gateway",
            "egress": [{"cidr": "10.1.2.3/32", "port": 3128}, {"cidr": "fd00::/8", "port": 443}],
            "operator": True,
        },
        "imageRegistry": "mirror.example/octavo/",
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "firstTokenSeconds": "0.5"},
        "dashboards": {"enabled": True, "folder": "Models"},
        "priorityClasses": [{"name": "octavo-online", "value": 1000}],
        "extraEnv": [{"name": "NO_PROXY", "value": "*"}],
    },
}

Helm = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Run helm with these arguments; its exit code is the caller's business."""
    program = str(ensure_programs(print, [PROGRAMS["helm"]])["helm"])

    def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """The objects that the chart makes of these values."""

    def objects(values: dict[str, Any] | None = None, *, namespace: str = "octavo-system") -> list[dict[str, Any]]:
        command = ("template", "octavo", str(CHART), "--namespace", namespace, "--values", "-")
        done = helm(*command, stdin=yaml.safe_dump(values or {}))
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return objects


@pytest.fixture(params=MATRIX.values(), ids=MATRIX.keys())
def chart_values(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Sets of values that together turn every switch of the chart."""
    values: dict[str, Any] = request.param
    return values
