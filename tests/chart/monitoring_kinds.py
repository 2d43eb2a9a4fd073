"""Prometheus Operator's kinds without their schemas, for an API server that has to take such objects."""

from __future__ import annotations

import yaml


def monitoring_crds() -> str:
    """Kinds of Prometheus Operator, so that they can be applied; what is in them, test_chart_monitoring.py asks."""
    names = {"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return yaml.safe_dump_all(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "scope": "Namespaced",
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }
        for kind, plural in names.items()
    )
