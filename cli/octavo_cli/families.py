"""Which models `octavo init` can size at all, and which ones runtime Octavo serves. From config.json alone; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "llama (GGUF)", "qwen2 (GGUF)")
"""What runtime Octavo serves; a test compares this with the server's own list."""
GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of architectures that write text."""
WITHOUT_KEYS = ("mamba", "rwkv", "retnet", "xlstm", "recurrent", "griffin", "hyena")
"""Parts of the names of families that keep a state in the place of keys and values."""
STATEFUL_FIELDS = ("attn_layer_period", "ssm_cfg", "mamba_d_state", "linear_num_key_heads", "hybrid_override_pattern",
                   "layers_block_type", "state_size", "linear_attn_config")  # fmt: skip
"""Fields of families in which some layers keep a state, and others keys and values."""
ATTENDING = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
"""Kinds of layers (`layer_types`) that keep keys and values; a window's cache is counted as a whole one."""

Config = Mapping[str, Any]


def text_part(config: Config) -> Config:
    """Where the language model is described: models that see or hear keep that apart."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def architecture(config: Config) -> str:
    """The class that the config names, or else its family."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else str(config.get("model_type", "unknown"))


def why_unsized(config: Config) -> str:
    """What keeps the memory of this model from being computed from its layers and heads; empty when nothing does."""
    text, name = text_part(config), architecture(config)
    kind = f"{name} {text.get('model_type', '')}".lower()
    kinds = text.get("layer_types")
    if config.get("is_encoder_decoder") or text.get("is_encoder_decoder"):
        return f"{name} has an encoder and a decoder: its caches depend on the input, too"
    if any(word in kind for word in WITHOUT_KEYS):
        return f"{name} keeps a state of its own in the place of keys and values"
    if field := next((each for each in STATEFUL_FIELDS if each in text), None):
        return f"{name} mixes attention with layers that keep a state ({field})"
    if isinstance(kinds, list) and (odd := sorted({str(each) for each in kinds} - ATTENDING)):
        return f"{name} has layers of the kind {', '.join(odd)}"
    if text.get("block_configs"):
        return f"{name} has layers of different shapes (block_configs)"
    if isinstance(config.get("architectures"), list) and not name.endswith(GENERATES):
        return f"{name} generates no text"
    return ""


def why_not_own(config: Config) -> str:
    """What keeps runtime Octavo from serving it; empty when it does."""
    name = architecture(config)
    if name not in OWN_ARCHITECTURES:
        return f"{name} is not one of its architectures"
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method", "unknown") if isinstance(quantized, dict) else "unknown"
        return f"its weights are quantized ({method})"
    if config.get("hidden_act", "silu") != "silu":
        return f"hidden_act {config['hidden_act']}"
    return ""
