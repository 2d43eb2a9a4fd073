"""Paged attention and fused kernels."""

from octavo_kernels.activation import silu_mul
from octavo_kernels.append import AppendPlan, append_kv, plan_append, rope_append_kv
from octavo_kernels.attention import PagedAttention
from octavo_kernels.batch import PackedMask, SharedPrefixes
from octavo_kernels.norm import rms_norm
from octavo_kernels.prefixes import detect_shared_prefix
from octavo_kernels.shape import PAGE_SIZES, AttentionShape, AttentionVariant

__all__ = [
    "PAGE_SIZES",
    "AppendPlan",
    "AttentionShape",
    "AttentionVariant",
    "PackedMask",
    "PagedAttention",
    "SharedPrefixes",
    "append_kv",
    "detect_shared_prefix",
    "plan_append",
    "rms_norm",
    "rope_append_kv",
    "silu_mul",
]
