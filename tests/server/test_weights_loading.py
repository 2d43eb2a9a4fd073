"""Model files of every kind we read: right numbers from sound ones, a reason and a way out for the others."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from octavo_server.engine.blocks import BlockPool
from octavo_server.engine.messages import SamplingParams, Submit
from octavo_server.engine.request import make_request
from octavo_server.engine.runner import Runner
from octavo_server.engine.scheduler import Scheduler, SchedulerLimits
from octavo_server.models.decoder import _angles, load_decoder
from octavo_server.weights import ModelError, inspect, open_model
from safetensors.torch import save_file

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 32}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + place / 2 for place in range(8)],
}
PROMPT = [(7 * place) % 130 for place in range(90)]


def our_logits(folder: Path) -> torch.Tensor:
    """float32 `[tokens, vocabulary]` of PROMPT through our loader, decoder and pool."""
    source = open_model(str(folder))
    cpu = torch.device("cpu")
    decoder = load_decoder(source, device=cpu, dtype=torch.float32, quantization="None", max_length=128)
    kept: list[torch.Tensor] = []
    forward = decoder.forward

    def keep(*arguments: Any) -> torch.Tensor:
        kept.append(forward(*arguments).clone())
        return kept[-1].clone()

    decoder.forward = keep  # type: ignore[method-assign]
    runner = Runner(
        decoder,
        blocks=20,
        block_size=8,
        kv_dtype=torch.float32,
        device=cpu,
        max_sequences=1,
        max_batched_tokens=128,
        max_length=128,
    )
    scheduler = Scheduler(BlockPool(20), SchedulerLimits(128, 1, 8))
    data = struct.pack(f"<{len(PROMPT)}i", *PROMPT)
    submit = Submit(1, data, SamplingParams(temperature=0.0, prompt_logprobs=0), 1)
    scheduler.add(
        make_request(submit, connection=0, arrival=0, now_seconds=0, block_size=8, max_length=128, vocabulary=130)
    )
    runner.step(scheduler.schedule())
    return kept[0]


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("Llama", {"tie_word_embeddings": False}),
        ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
        ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
        ("Llama", {"rope_parameters": YARN}),
        ("Llama", {"rope_parameters": LONG_ROPE}),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {"use_sliding_window": False}),
    ],
    ids=["llama", "llama3-rope-tied", "biases-and-head-size", "linear-rope", "yarn", "longrope", "mistral", "qwen2"],
)
def test_logits_of_a_safetensors_model_equal_those_of_transformers(
    tmp_path: Path, kind: str, extra: dict[str, Any]
) -> None:
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **extra)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1, "meant to be in several files"
    with torch.inference_mode():
        theirs = model(torch.tensor([PROMPT])).logits[0]
    ours = our_logits(tmp_path)
    assert (ours - theirs).abs().max().item() < 1e-3 * theirs.abs().max().item()


def write_config(folder: Path, **changes: Any) -> Path:
    config = {"architectures": ["LlamaForCausalLM"], **SIZES, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.embed_tokens.weight": torch.zeros(130, 64)}, str(folder / "model.safetensors"))
    return folder


def test_a_sliding_window_shortens_the_length_instead_of_changing_the_answer(tmp_path: Path) -> None:
    folder = write_config(tmp_path, architectures=["MistralForCausalLM"], sliding_window=100)
    assert inspect(str(folder)).max_length == 100


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"type": "yarn", "factor": 4.0}, 256),
        ({"type": "dynamic", "factor": 2.0}, 512),
        ({"type": "linear", "factor": 2.0}, 256),
    ],
)
def test_the_longest_text_is_what_the_scaling_of_angles_was_made_for(
    tmp_path: Path, scaling: dict[str, Any], length: int
) -> None:
    assert inspect(str(write_config(tmp_path, rope_scaling=scaling))).max_length == length


def test_a_scaling_of_angles_that_means_nothing_is_named_when_the_model_loads(tmp_path: Path) -> None:
    folder = write_config(tmp_path, rope_scaling={"type": "yarn", "factor": 0.5}, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"rotary embedding: factor is 0.5; it must be a number of at least 1"):
        _angles(inspect(str(folder)), 64, lambda: torch.ones(8))


@pytest.mark.parametrize(
    ("changes", "reason", "named"),
    [
        ({"architectures": ["BertModel"]}, "ArchitectureUnsupported", "LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "ArchitectureUnsupported", "gelu"),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 4.0}}, "ArchitectureUnsupported", "mrope"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "ModelUnreadable", "factor is missing"),
        ({"num_key_value_heads": 3}, "ArchitectureUnsupported", "3 KV heads"),
        ({"quantization_config": {"quant_method": "awq"}}, "FormatUnsupported", "awq"),
        ({"hidden_size": None}, "ModelUnreadable", "config.json"),
        ({"num_hidden_layers": 0}, "ModelUnreadable", "layers"),
        # Names of so many layers would fill memory before one of them is missed.
        ({"num_hidden_layers": 10**30}, "ModelUnreadable", "num_hidden_layers is 1000.* from 1 to 10000"),
        ({"num_attention_heads": 0}, "ModelUnreadable", "num_attention_heads is 0, and must be a whole number from 1"),
        ({"vocab_size": "many"}, "ModelUnreadable", "vocab_size is many"),
        ({"rms_norm_eps": float("nan")}, "ModelUnreadable", "rms_norm_eps is nan"),
        ({"sliding_window": float("inf")}, "ModelUnreadable", "config.json"),
        ({"architectures": 7}, "ArchitectureUnsupported", "7"),
        ({"quantization_config": "int4"}, "FormatUnsupported", "quantization_config int4"),
    ],
)
def test_a_model_that_would_be_served_wrongly_is_refused_with_what_is_wrong(
    tmp_path: Path, changes: dict[str, Any], reason: str, named: str
) -> None:
    with pytest.raises(ModelError, match=named) as refused:
        inspect(str(write_config(tmp_path, **changes)))
    assert refused.value.reason == reason
    assert "\n" not in refused.value.message


def gguf(*entries: bytes) -> bytes:
    """A GGUF file of metadata alone."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries)


def entry(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


LLAMA = entry("general.architecture", 8, struct.pack("<Q", 5) + b"llama")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (gguf(entry("a", 9, struct.pack("<IQ", 9, 1) * 5000)), "GGUF header"),
        (gguf(entry("general.alignment", 4, struct.pack("<I", 0))), "GGUF header"),
        (gguf(LLAMA, entry("llama.attention.head_count", 4, bytes(4))), "llama.attention.head_count is 0"),
        (gguf(LLAMA, entry("llama.attention.head_count", 8, struct.pack("<Q", 1) + b"x")), "head_count is x"),
    ],
)
def test_a_gguf_header_that_lies_is_a_reason_in_words_and_no_exception(
    tmp_path: Path, content: bytes, named: str
) -> None:
    (tmp_path / "x.gguf").write_bytes(content + bytes(64))
    with pytest.raises(ModelError, match=named) as refused:
        inspect(str(tmp_path / "x.gguf"))
    assert refused.value.reason == "ModelUnreadable"


def test_missing_damaged_and_ambiguous_files_have_a_reason_each(tmp_path: Path, model_path: Path) -> None:
    def reason(path: Path, format: str = "Auto") -> str:
        with pytest.raises(ModelError) as refused:
            inspect(str(path), format)
        return refused.value.reason

    assert reason(tmp_path / "absent") == "ModelNotFound"
    assert reason(tmp_path) == "ModelNotFound"
    text = tmp_path / "model.txt"
    text.write_text("no model")
    assert reason(text) == "FormatUnsupported"
    assert reason(model_path, "Safetensors") == "FormatUnsupported"
    whole = model_path.read_bytes()
    for place, size in enumerate((3, 30, 5_000, 3_000_000, len(whole) - 1)):
        cut = tmp_path / f"cut{place}.gguf"
        cut.write_bytes(whole[:size])
        assert reason(cut) in ("ModelUnreadable", "FormatUnsupported"), size
    assert reason(tmp_path) == "FormatUnsupported", "several GGUF files"


def test_a_cut_off_safetensors_file_is_seen_before_it_is_loaded(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cut off") as refused:
        inspect(str(folder))
    assert refused.value.reason == "ModelUnreadable"


def test_every_block_format_of_gguf_is_read_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    import gguf
    from gguf.constants import GGMLQuantizationType as Kind

    generator = np.random.default_rng(1)
    values = generator.normal(size=(64, 256)).astype(np.float32)
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "qwen2")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "bc", ""])
    kinds = {"q": Kind.Q4_0, "k": Kind.Q4_1, "v": Kind.Q8_0, "output": Kind.F16, "norm": Kind.F32}
    for part, kind in kinds.items():
        writer.add_tensor(f"blk.0.attn_{part}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    raw = generator.integers(0, 60, size=(64, 144), dtype=np.uint8)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=Kind.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = open_model(str(tmp_path))
    for name, part in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"), ("attention_norm", "norm")):
        kind = kinds[part]
        expected = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert np.array_equal(source.tensor(f"layers.0.{name}").numpy(), expected.astype(np.float32)), part
    expected = gguf.quants.dequantize(raw, Kind.Q4_K)
    assert np.array_equal(source.tensor("embed").numpy(), expected, equal_nan=True)
    assert source.spec.kv_heads == 4
    assert source.spec.tied_embeddings
