"""Every example asks for accelerators that hold its model at its length, by the check of `octavo init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from octavo_cli.accelerators import ACCELERATORS
from octavo_cli.fit import fit
from octavo_cli.init import runtime_of
from octavo_cli.model_facts import from_config
from octavo_operator.api.inference_service import InferenceService
from octavo_operator.plan.support import unsupported_fields

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MINOR = {"scaling.maxReplicas"}
"""Told in status until load is known; the operator scales by it all the same."""


def shape(architecture: str, hidden: int, inner: int, layers: int, heads: int, kv: int, words: int, length: int,
          **more: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "architectures": [architecture], "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": words, "max_position_embeddings": length,
        **more,
    }  # fmt: skip


QWEN, LLAMA, MISTRAL = "Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"
CONFIGS = {
    "hf://Qwen/Qwen2.5-0.5B-Instruct": shape(QWEN, 896, 4864, 24, 14, 2, 151936, 32768, tie_word_embeddings=True),
    "hf://Qwen/Qwen2.5-7B-Instruct": shape(QWEN, 3584, 18944, 28, 28, 4, 152064, 32768),
    "hf://Qwen/Qwen2.5-32B-Instruct": shape(QWEN, 5120, 27648, 64, 40, 8, 152064, 32768),
    "hf://meta-llama/Llama-3.1-8B-Instruct": shape(LLAMA, 4096, 14336, 32, 32, 8, 128256, 131072),
    "hf://meta-llama/Llama-3.1-70B-Instruct": shape(LLAMA, 8192, 28672, 80, 64, 8, 128256, 131072),
    "s3://models/mistral-7b-instruct-v0.3": shape(MISTRAL, 4096, 14336, 32, 32, 8, 32768, 32768),
}
"""What decides about memory in the models' own config.json."""


def services() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path.name, document)
        for path in sorted(EXAMPLES.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document and document.get("kind") == "InferenceService"
    ]


SERVICES = services()


@pytest.mark.parametrize(("file", "document"), SERVICES, ids=[name for name, _ in SERVICES])
def test_an_example_is_honoured_by_this_version_in_every_field(file, document):
    spec = InferenceService.parse(document).spec
    assert {item.field for item in unsupported_fields(spec)} <= MINOR
    about = (EXAMPLES / file).read_text().splitlines()[0]
    assert about.startswith("# "), f"{file} does not say what it is for"


ON_GPU = [(name, item) for name, item in SERVICES if item["spec"]["model"]["uri"] in CONFIGS]


@pytest.mark.parametrize(("file", "document"), ON_GPU, ids=[name for name, _ in ON_GPU])
def test_the_smallest_accelerator_that_an_example_admits_holds_its_longest_request_several_times(file, document):
    spec = InferenceService.parse(document).spec
    model = from_config(CONFIGS[spec.model.uri], spec.model.uri)
    assert 0 < spec.model.max_length <= model.max_length
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


def test_only_examples_for_cpus_are_not_sized():
    sized = {name for name, _ in ON_GPU}
    assert sized
    for name, document in SERVICES:
        assert name in sized or document["spec"]["placement"]["cpu"] == "Required", name
