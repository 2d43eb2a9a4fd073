"""Paged attention, fused kernels, sampling."""

from octavo_kernels.activation import gelu_mul, silu_mul
from octavo_kernels.append import AppendPlan, append_kv, plan_append, rope_append_kv
from octavo_kernels.attention import PagedAttention
from octavo_kernels.batch import PackedMask, SharedPrefixes
from octavo_kernels.logprobs import TokenDescriptions, describe_tokens, log_probabilities
from octavo_kernels.norm import rms_norm
from octavo_kernels.prefixes import detect_shared_prefix
from octavo_kernels.rotary import RotaryScaling, rotary_table
from octavo_kernels.sampling import Biases, Penalties, Sampler, SamplingRows, TokenLists, TokenMasks
from octavo_kernels.shape import PAGE_SIZES, AttentionShape, AttentionVariant
from octavo_kernels.skinny import SkinnyProducts
from octavo_kernels.tuner import tune

__all__ = [
    "PAGE_SIZES",
    "AppendPlan",
    "AttentionShape",
    "AttentionVariant",
    "Biases",
    "PackedMask",
    "PagedAttention",
    "Penalties",
    "RotaryScaling",
    "Sampler",
    "SamplingRows",
    "SharedPrefixes",
    "SkinnyProducts",
    "TokenDescriptions",
    "TokenLists",
    "TokenMasks",
    "append_kv",
    "describe_tokens",
    "detect_shared_prefix",
    "gelu_mul",
    "log_probabilities",
    "plan_append",
    "rms_norm",
    "rope_append_kv",
    "rotary_table",
    "silu_mul",
    "tune",
]
