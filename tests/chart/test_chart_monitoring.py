"""What the chart gives to Prometheus, Grafana and network policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "octavo"


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in objects if document["kind"] == kind]


def test_two_monitors_at_once_are_refused_because_every_series_would_come_twice(helm):
    done = helm("template", "x", str(CHART), "--set", "podMonitor.enabled=true,serviceMonitor.enabled=true")
    assert done.returncode != 0
    assert "podMonitor.enabled and serviceMonitor.enabled are both true" in done.stderr


def test_a_service_monitor_without_a_service_is_refused(helm):
    done = helm("template", "x", str(CHART), "--set", "serviceMonitor.enabled=true,service.enabled=false")
    assert done.returncode != 0
    assert "needs service.enabled" in done.stderr


@pytest.mark.parametrize(("value", "kind", "field"), [("podMonitor", "PodMonitor", "podMetricsEndpoints"),
                                                      ("serviceMonitor", "ServiceMonitor", "endpoints")])  # fmt: skip
def test_a_monitor_keeps_the_operators_labels_and_names_the_models(render, value, kind, field):
    objects = render({value: {"enabled": True, "labels": {"release": "p"}}})
    operator, models = of_kind(objects, kind)
    assert operator["spec"][field][0]["honorLabels"] is True
    assert operator["metadata"]["labels"]["release"] == models["metadata"]["labels"]["release"] == "p"
    targets = {rule.get("targetLabel") for rule in models["spec"][field][0]["relabelings"]}
    assert targets >= {"namespace", "service", "pod", "node_type"}
    assert models["spec"]["namespaceSelector"] == {"any": True}


def test_in_namespaced_mode_models_are_scraped_in_the_watched_namespaces_alone(render):
    _, models = of_kind(render({"podMonitor": {"enabled": True}, "watchNamespaces": ["a", "b"]}), "PodMonitor")
    assert models["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_the_rules_are_those_of_the_sources_with_the_wanted_bound_and_address(render):
    source = yaml.safe_load((ROOT / "dashboards" / "rules" / "octavo.rules.yaml").read_text())
    assert of_kind(render({"prometheusRule": {"enabled": True}}), "PrometheusRule")[0]["spec"] == source
    changed = {"enabled": True, "firstTokenSeconds": "0.5"}
    objects = render({"prometheusRule": changed, "runbookBase": "https://wiki.example/octavo/"})
    spec = of_kind(objects, "PrometheusRule")[0]["spec"]
    text = json.dumps(spec)
    assert 'le=\\"0.5\\"' in text
    assert "2.0" not in text
    links = [rule["annotations"]["runbook_url"] for rule in spec["groups"][1]["rules"]]
    assert all(link.startswith("https://wiki.example/octavo/Octavo") for link in links)


def test_every_bound_that_the_schema_allows_is_one_of_the_servers_histogram():
    from octavo_server.metrics import Metrics

    text = [sample for family in Metrics("m").registry.collect() for sample in family.samples]
    bounds = {s.labels["le"] for s in text if s.name == "octavo_time_to_first_token_seconds_bucket"}
    schema = json.loads((CHART / "values.schema.json").read_text())
    allowed = schema["properties"]["prometheusRule"]["properties"]["firstTokenSeconds"]["enum"]
    assert [bound for bound in allowed if bound not in bounds] == []


def test_dashboards_come_as_config_maps_with_the_sidecars_label_and_folder(render):
    values = {"enabled": True, "namespace": "grafana", "label": "my_board", "folderAnnotation": "dir", "folder": "LLM"}
    maps = [item for item in of_kind(render({"dashboards": values}), "ConfigMap") if "images.yaml" not in item["data"]]
    found = {name: text for item in maps for name, text in item["data"].items()}
    sources = {path.name: path.read_text() for path in (ROOT / "dashboards" / "grafana").glob("*.json")}
    assert {name: json.loads(text) for name, text in found.items()} == {k: json.loads(v) for k, v in sources.items()}
    for item in maps:
        assert item["metadata"]["namespace"] == "grafana"
        assert item["metadata"]["labels"]["my_board"] == "1"
        assert item["metadata"]["annotations"] == {"dir": "LLM"}


def test_panels_link_to_where_the_runbooks_are_published(render):
    values = {"dashboards": {"enabled": True}, "runbookBase": "https://wiki.example/octavo"}
    maps = [item for item in of_kind(render(values), "ConfigMap") if "images.yaml" not in item["data"]]
    text = json.dumps([json.loads(board) for item in maps for board in item["data"].values()])
    assert "docs/runbooks" not in text
    assert "https://wiki.example/octavo/OctavoKVCacheFull/" in text


def test_only_prometheus_reaches_the_operator_and_nobody_when_its_namespace_is_not_named(render):
    def ingress(values: dict[str, Any]) -> Any:
        [policy] = of_kind(render({"networkPolicy": values}), "NetworkPolicy")
        return policy["spec"]["ingress"]

    assert ingress({"operator": True}) == []
    [rule] = ingress({"operator": True, "monitoringNamespace": "monitoring"})
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert rule["from"] == [{"namespaceSelector": selector}]
    assert of_kind(render(), "NetworkPolicy") == []


def test_a_private_registry_goes_in_front_of_every_image(render):
    objects = render({"imageRegistry": "mirror.example/x/"})
    images = [container["image"] for kind in ("Deployment",) for item in of_kind(objects, kind)
              for container in item["spec"]["template"]["spec"]["containers"]]  # fmt: skip
    [catalogue] = [item["data"]["images.yaml"] for item in of_kind(objects, "ConfigMap")]
    images += [item["image"] for item in yaml.safe_load(catalogue)["images"]]
    images += [item["spec"]["containers"][0]["image"] for item in of_kind(objects, "Pod")]
    assert len(images) >= 5
    assert all(image.startswith("mirror.example/x/octavo/octavo-") for image in images)


def test_the_operators_service_never_sends_anybody_to_the_test_pod(render):
    objects = render()
    [service], [pod] = of_kind(objects, "Service"), of_kind(objects, "Pod")
    assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


OWN_SCHEMAS = {"CustomResourceDefinition", "PodMonitor", "ServiceMonitor", "PrometheusRule"}


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_every_object_is_valid_in_the_oldest_and_the_newest_kubernetes(render, chart_values, version):
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in render(chart_values):
        if document["kind"] not in OWN_SCHEMAS:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_readme_names_every_value():
    readme = (CHART / "README.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [name for name in values if f"| `{name}" not in readme] == []
