"""What the chart makes of its values."""

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


def the(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [only] = of_kind(objects, kind)
    return only


def test_the_chart_is_without_a_complaint_of_helms_linter(helm):
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_object_has_a_name_and_labels_and_none_is_rendered_twice(render, chart_values):
    objects = render(chart_values)
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(keys) == len(set(keys))
    for document in objects:
        if document["kind"] != "CustomResourceDefinition":
            assert document["metadata"]["labels"]["app.kubernetes.io/part-of"] == "octavo"


def test_the_operators_pod_meets_the_restricted_level(render, chart_values):
    spec = the(render(chart_values), "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec.get("hostNetwork")
    assert all(set(volume) <= {"name", "configMap"} for volume in spec["volumes"])
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_operator_listens_on_its_pods_address_alone(render):
    container = the(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    arguments = container["args"]
    assert arguments[arguments.index("--host") + 1] == "$(POD_IP)"
    address = next(entry for entry in container["env"] if entry["name"] == "POD_IP")
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_the_operator_takes_the_arguments_that_the_chart_gives_it(render, chart_values):
    from octavo_operator.__main__ import _parser
    from octavo_operator.plan import SAFE_ARGUMENTS
    from octavo_operator.settings import read_egress, read_proxy

    [container] = the(render(chart_values), "Deployment")["spec"]["template"]["spec"]["containers"]
    flags = _parser().parse_args(container["args"])
    policy = chart_values.get("policy", {"imagePrefixes": [], "argumentPrefixes": list(SAFE_ARGUMENTS)})
    assert list(filter(None, flags.image_prefixes.split(","))) == policy["imagePrefixes"]
    for name, given in (("priorityClasses", flags.priority_classes), ("tolerations", flags.tolerations),
                        ("resources", flags.resources)):  # fmt: skip
        assert list(filter(None, given.split(","))) == policy.get(name, [])
    assert list(filter(None, flags.argument_prefixes.split(","))) == policy["argumentPrefixes"]
    assert list(filter(None, flags.file_prefixes.split(","))) == policy.get("filePrefixes", ["*"])
    given = chart_values.get("models", {})
    for name, flag in (("cacheClaim", flags.default_cache_claim), ("hubEndpoint", flags.hub_endpoint),
                       ("priorityClassName", flags.default_priority_class)):  # fmt: skip
        assert flag == given.get(name, "")
    network = chart_values.get("networkPolicy", {})
    assert flags.monitoring_namespace == network.get("monitoringNamespace")
    assert flags.gateway_namespace == network.get("gatewayNamespace")
    models = chart_values.get("models", {})
    secrets = [item["name"] for item in models.get("imagePullSecrets", [])]
    assert list(filter(None, flags.pull_secrets.split(","))) == secrets
    proxy = dict(read_proxy(flags.model_proxy, flags.model_no_proxy))
    assert proxy.get("HTTPS_PROXY", "") == models.get("proxy", {}).get("address", "")
    assert proxy.get("NO_PROXY", "") == ",".join(models.get("proxy", {}).get("except", []))
    wanted = [(item["cidr"], item["port"]) for item in network.get("egress", [])]
    assert [(item.cidr, item.port) for item in read_egress(flags.egress)] == wanted


@pytest.mark.parametrize(
    ("values", "made", "used"),
    [
        ({}, -1000, "octavo-operator-calibration"),
        ({"calibration": {"priorityClass": {"value": -50}}}, -50, "octavo-operator-calibration"),
        ({"calibration": {"priorityClass": {"name": "low"}}}, None, "low"),
        ({"calibration": {"where": "Off"}}, None, None),
        ({"watchNamespaces": ["a"], "nodes": {"access": False}}, None, None),
    ],
)
def test_calibrations_have_a_priority_class_below_every_replica(render, values, made, used):
    from octavo_operator.__main__ import _parser

    objects = render(values)
    classes = [item for item in of_kind(objects, "PriorityClass") if item["metadata"]["name"].endswith("-calibration")]
    assert [(item["value"], item["preemptionPolicy"]) for item in classes] == ([(made, "Never")] if made else [])
    [container] = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert (_parser().parse_args(container["args"]).calibration_priority_class or None) == used
    if classes:
        assert classes[0]["metadata"]["name"] == used


def test_the_catalogue_of_the_values_is_what_the_variants_file_says():
    variants = yaml.safe_load((ROOT / "server_image" / "variants.yaml").read_text())["variants"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())["serverImages"]
    kept = ("name", "cuda", "computeCapabilities", "ptx", "torch", "triton")
    assert [{key: item[key] for key in kept} for item in values] == [
        {key: item[key] for key in kept} for item in variants
    ]


def test_every_build_argument_of_a_variant_is_one_of_the_dockerfile():
    bake = json.loads((ROOT / "server_image" / "docker-bake.json").read_text())
    dockerfile = (ROOT / "server_image" / "Dockerfile").read_text()
    images = yaml.safe_load((CHART / "values.yaml").read_text())["serverImages"]
    servers = [target for name, target in bake["target"].items() if name != "operator"]
    assert {tag for target in servers for tag in target["tags"]} == {item["image"] for item in images}
    for target in bake["target"].values():
        assert [name for name in target["args"] if f"\nARG {name}" not in dockerfile] == []


def test_a_digest_decides_over_the_tag(render):
    digest = "sha256:" + "a" * 64
    objects = render({"image": {"repository": "r/octavo-operator", "tag": "1.2.3", "digest": digest}})
    [container] = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"r/octavo-operator@{digest}"


def test_a_changed_catalogue_restarts_the_operator_and_an_equal_one_does_not(render):
    def annotations(values: dict[str, Any]) -> dict[str, str]:
        template = the(render(values), "Deployment")["spec"]["template"]
        return template["metadata"]["annotations"]

    other = {"serverImages": [{"name": "cpu", "image": "octavo/octavo-server:9-cpu"}]}
    assert annotations({}) == annotations({"replicas": 3})
    assert annotations({}) != annotations(other)


def test_the_catalogue_reaches_the_operator_as_it_stands_in_the_values(render):
    images = [{"name": "cu126", "image": "r/octavo-server:1-cu126", "cuda": "12.6", "computeCapabilities": ["8.0"]}]
    catalogue = yaml.safe_load(the(render({"serverImages": images}), "ConfigMap")["data"]["images.yaml"])
    assert catalogue == {"images": images}


@pytest.mark.parametrize("keep", [True, False])
def test_the_rendered_crds_are_those_of_the_sources_and_stay_if_asked(render, keep):
    rendered = of_kind(render({"crds": {"keep": keep}}), "CustomResourceDefinition")
    sources = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*s.yaml"))]
    assert len(sources) >= 1
    annotation = {"helm.sh/resource-policy": "keep"}
    for document in rendered:
        annotations = document["metadata"].pop("annotations", {})
        assert annotations.items() >= annotation.items() if keep else "helm.sh/resource-policy" not in annotations
    for document in sources:
        document["metadata"].pop("annotations", None)
    by_name = lambda document: document["metadata"]["name"]  # noqa: E731
    assert sorted(rendered, key=by_name) == sorted(sources, key=by_name)


def test_no_crd_is_rendered_when_they_are_installed_otherwise(render):
    assert not of_kind(render({"crds": {"enabled": False}}), "CustomResourceDefinition")


def test_the_notes_end_with_two_commands_to_go_on(helm):
    command = ("install", "octavo", str(CHART), "--namespace", "octavo-system", "--dry-run=client")
    done = helm(*command)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]
    assert notes.count("kubectl") >= 2
    assert "rollout status deployment/octavo-operator" in notes
