"""CRDs from the resource models.

Pydantic gives a JSON schema with references; the API server wants a structural one: no references, no `anyOf` with
null, no titles. Objects with defaults inside get a default themselves, so that the API server fills them in.
"""

from __future__ import annotations

from typing import Any

import yaml

from . import inference_service, tuning_profile
from .base import GROUP, PATTERN_WORDS, VERSION, Model, rule

Schema = dict[str, Any]


def _without_null(node: Schema) -> Schema:
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if "anyOf" not in node or node.get("x-kubernetes-int-or-string"):
        return node
    assert len(options) == 1, f"a field has {len(options)} types; a structural schema allows one"
    return {**options[0], **{key: value for key, value in node.items() if key != "anyOf"}}


def _worded(node: Schema) -> Schema:
    """A pattern as a rule with a message; of a pattern itself the API server shows the bare expression."""
    words = node.get(PATTERN_WORDS)
    if words is None:
        return node
    kept = {key: value for key, value in node.items() if key not in (PATTERN_WORDS, "pattern")}
    escaped = node["pattern"].replace("\\", "\\\\")
    test = f"self.matches('{escaped}')"
    if node.get("x-kubernetes-int-or-string"):
        test = f"type(self) == string ? {test} : self >= 0"
    kept["x-kubernetes-validations"] = [*node.get("x-kubernetes-validations", ()), rule(test, words)]
    return kept


def _structural(node: Schema, definitions: Schema) -> Schema:
    """One node of pydantic's schema as the API server wants it."""
    node = _without_null(node)
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    node = _worded(node)
    if node.get("x-kubernetes-int-or-string"):
        return {key: value for key, value in node.items() if key not in ("anyOf", "title")}
    handled = ("title", "propertyNames", "properties", "items", "additionalProperties")
    kept = {key: value for key, value in node.items() if key not in handled}
    if kept.get("default") in (None, "", [], {}, ()):
        kept.pop("default", None)
    if "description" in kept:
        kept["description"] = " ".join(kept["description"].split())
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    if kept.get("type") == "integer":
        kept["format"] = "int64"
    if "items" in node:
        kept["items"] = _structural(node["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict):
        kept["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    if "properties" in node:
        kept["properties"] = {name: _structural(child, definitions) for name, child in node["properties"].items()}
    return kept


def _fill_defaults(schema: Schema, model: type[Model]) -> None:
    """Gives each object field that the model can make from nothing the default that its own fields add up to.

    The API server checks rules against this default before it fills in the inner ones, so `{}` is not enough.
    """
    for field in model.model_fields.values():
        factory = field.default_factory
        if isinstance(factory, type) and issubclass(factory, Model):
            child = schema["properties"][field.alias]
            _fill_defaults(child, factory)
            inner = child["properties"].items()
            child["default"] = {name: part["default"] for name, part in inner if "default" in part}
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Model):
            _fill_defaults(schema["properties"][field.alias], field.annotation)


def object_schema(model: type[Model]) -> Schema:
    """The structural schema of a resource: {spec, status} with every reference resolved."""
    raw = model.model_json_schema(by_alias=True)
    schema = _structural(raw, raw.get("$defs", {}))
    schema.pop("$defs", None)
    _fill_defaults(schema, model)
    return schema


def _column(name: str, kind: str, path: str, description: str, priority: int = 0) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, "description": description, "priority": priority}


def _crd(kind: str, plural: str, short: str, model: type[Model], columns: list[Schema], subresources: Schema) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["octavo"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": object_schema(model)},
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def _ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'


def inference_service_crd() -> Schema:
    """The CRD of InferenceService."""
    columns = [
        _column("Ready", "string", _ready("status"), "Whether all wanted replicas are current and serve."),
        _column("Reason", "string", _ready("reason"), "Why it is ready or not."),
        _column("Model", "string", ".spec.model.uri", "Where the weights come from."),
        _column("Desired", "integer", ".status.scaling.desired", "Replicas wanted."),
        _column("Ready replicas", "integer", ".status.readyReplicas", "Replicas that serve."),
        _column("Nodes", "string", ".status.nodeTypes[*].product", "Products in use."),
        _column("Address", "string", ".status.address", "Address inside the cluster.", 1),
        _column("Fallback", "string", ".status.nodeTypes[*].kernelFallback", "Why slower kernels may run.", 1),
        _column("Message", "string", _ready("message"), "What is missing, and the way out.", 1),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
    ]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return _crd(
        inference_service.KIND,
        inference_service.PLURAL,
        "ois",
        inference_service.InferenceService,
        columns,
        {"status": {}, "scale": scale},
    )


def tuning_profile_crd() -> Schema:
    """The CRD of TuningProfile."""
    columns = [
        _column("Product", "string", ".spec.product", "Product of the accelerator."),
        _column("Block size", "integer", ".status.blockSize", "Chosen block size in tokens."),
        _column("Measured", "date", ".status.measuredAt", "When it was measured."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
    ]
    return _crd(
        tuning_profile.KIND, tuning_profile.PLURAL, "otp", tuning_profile.TuningProfile, columns, {"status": {}}
    )


class _Dumper(yaml.SafeDumper):
    """Writes equal parts twice instead of as an alias, which kubectl and people read better."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render_crds() -> dict[str, str]:
    """File name → YAML of everything in crds/; `python -m octavo_operator crds` and the drift test use it."""
    header = "# Generated from octavo_operator/api; do not edit. Regenerate with `make generate`.\n"
    files = {
        f"{inference_service.PLURAL}.yaml": inference_service_crd(),
        f"{tuning_profile.PLURAL}.yaml": tuning_profile_crd(),
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(files),
    }
    files["kustomization.yaml"] = kustomization
    return {
        name: header + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
        for name, content in sorted(files.items())
    }
