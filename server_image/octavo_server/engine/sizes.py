"""How much memory a model and its pool take, and which length fits; pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_server.weights import ModelSpec


class Refusal(Exception):
    """The engine can't start for a reason that a person must mend; `reason` in CamelCase, the text in one line."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class CachePlan:
    """A pool of `blocks` blocks, block 0 included."""

    blocks: int
    block_size: int
    bytes_per_block: int

    @property
    def capacity_tokens(self) -> int:
        """Tokens of all blocks but block 0."""
        return (self.blocks - 1) * self.block_size

    @property
    def pool_bytes(self) -> int:
        """Bytes of all layers' tensors."""
        return self.blocks * self.bytes_per_block


def cache_plan(spec: ModelSpec, *, block_size: int, element_bytes: int, pool_bytes: int) -> CachePlan:
    """As many blocks as `pool_bytes` hold; raises Refusal when that is fewer than two."""
    per_block = spec.layers * 2 * spec.kv_heads * spec.head_size * element_bytes * block_size
    blocks = pool_bytes // per_block
    if blocks < 2:
        raise Refusal(
            "PoolTooSmall",
            f"a KV pool of {pool_bytes / 2**20:.2f} MiB holds {blocks} blocks of {block_size} tokens; it needs at "
            f"least 2, {2 * per_block / 2**20:.2f} MiB: give the pool more memory or use a smaller block size",
        )
    return CachePlan(blocks, block_size, per_block)


def plan_length(spec: ModelSpec, plan: CachePlan, asked_tokens: int) -> int:
    """The longest prompt + answer; 0 asks for what model and pool allow. Raises Refusal for a length that can't fit."""
    if asked_tokens < 0 or asked_tokens == 1:
        raise Refusal("MaxLengthTooShort", f"max length is {asked_tokens}; use 0 (automatic) or at least 2 tokens")
    if asked_tokens == 0:
        return min(spec.max_length, plan.capacity_tokens)
    if asked_tokens > spec.max_length:
        raise Refusal(
            "MaxLengthTooLong",
            f"max length {asked_tokens} is more than model {spec.name} was made for: {spec.max_length} tokens at most",
        )
    if asked_tokens > plan.capacity_tokens:
        needed = (-(-asked_tokens // plan.block_size) + 1) * plan.bytes_per_block
        raise Refusal(
            "MaxLengthTooLong",
            f"max length {asked_tokens} needs a KV pool of {needed / 2**30:.2f} GiB, this one has "
            f"{plan.pool_bytes / 2**30:.2f} GiB; the largest length that fits is {plan.capacity_tokens} tokens",
        )
    return asked_tokens


def weight_bytes(spec: ModelSpec, element_bytes: int, quantization: str) -> int:
    """Bytes of the loaded weights; Int8: a byte each, the file's 4-bit form beside it, the embedding as floats."""
    if quantization == "Int8":
        # 32 values of 4 bits and two bfloat16 factors.
        four_bit = spec.four_bit_parameters * 20 // 32
        return spec.parameters + four_bit + spec.vocabulary_size * spec.hidden_size * element_bytes
    return spec.parameters * element_bytes
