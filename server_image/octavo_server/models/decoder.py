"""The Llama-shaped decoder over a paged pool: merged QKV and gate-up projections, few operations per layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from octavo_kernels import (
    PagedAttention,
    RotaryScaling,
    plan_append,
    rms_norm,
    rope_append_kv,
    rotary_table,
    silu_mul,
)

from octavo_server.models.linear import Linear, floats, make_linear
from octavo_server.weights import FourBitWeight, ModelError, ModelSource, ModelSpec
from octavo_server.weights.four_bit import join


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; norms `[hidden]`."""

    attention_norm: torch.Tensor
    qkv: Linear
    o: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class StepTensors:
    """What one forward pass reads, on the device of the model.

    tokens, positions, slot_mapping: int64 `[tokens]`; logit_rows: int64 `[rows]`, the tokens whose logits are wanted,
    None = all of them.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    logit_rows: torch.Tensor | None


class Decoder:
    """Weights on one device and the forward pass; holds no state between steps."""

    def __init__(
        self,
        spec: ModelSpec,
        embedding: torch.Tensor,
        layers: list[Layer],
        final_norm: torch.Tensor,
        head: Linear,
        cos_sin: torch.Tensor,
    ) -> None:
        self.spec = spec
        self.dtype = final_norm.dtype
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self._head = floats(head)
        self._cos_sin = cos_sin
        self._heads = [spec.query_heads, spec.kv_heads, spec.kv_heads]

    @contextmanager
    def cut_to(self, layers: int) -> Iterator[None]:
        """Inside, only so many layers are computed: enough to see which kernels a step launches."""
        whole = self._layers
        self._layers = whole[:layers]
        try:
            yield
        finally:
            self._layers = whole

    def forward(self, step: StepTensors, attention: PagedAttention, pool: list[torch.Tensor]) -> torch.Tensor:
        """float32 logits `[rows, vocabulary]`; appends keys and values of all tokens to `pool` (one tensor per layer).

        `attention` must be planned for this step. Nothing follows the last layer but the wanted logits, so past its
        keys and values it computes their rows alone: of a long prompt a whole layer less.
        """
        spec, epsilon = self.spec, self.spec.rms_epsilon
        count = step.tokens.shape[0]
        plan = None
        if pool[0].device.type == "cpu":
            plan = plan_append(
                step.slot_mapping,
                kv_heads=spec.kv_heads,
                page_size=pool[0].shape[3],
                positions=step.positions,
                cos_sin=self._cos_sin,
            )
        residual = F.embedding(step.tokens, self._embedding).to(self.dtype)
        out = torch.empty(count, spec.query_heads, spec.head_size, dtype=self.dtype, device=residual.device)
        flat_out = out.view(count, -1)
        hidden = rms_norm(residual, self._layers[0].attention_norm, epsilon)
        for index, layer in enumerate(self._layers):
            q, k, v = torch.split(layer.qkv(hidden).view(count, -1, spec.head_size), self._heads, dim=1)
            rope_append_kv(q, k, v, step.positions, self._cos_sin, pool[index], step.slot_mapping, plan=plan)
            last = index + 1 == len(self._layers)
            if last and step.logit_rows is not None and step.logit_rows.shape[0] == 0:
                return torch.empty(0, spec.vocabulary_size, dtype=torch.float32, device=residual.device)
            attention.run(q, pool[index], out)
            if last and step.logit_rows is not None:
                flat_out, residual = flat_out[step.logit_rows], residual[step.logit_rows]
            hidden = rms_norm(layer.o(flat_out), layer.mlp_norm, epsilon, residual=residual)
            hidden = layer.down(silu_mul(layer.gate_up(hidden)))
            norm = self._final_norm if last else self._layers[index + 1].attention_norm
            hidden = rms_norm(hidden, norm, epsilon, residual=residual)
        return self._head(hidden)


def load_decoder(
    source: ModelSource,
    *,
    device: torch.device,
    dtype: torch.dtype,
    quantization: str,
    max_length: int,
    progress: Callable[[int], None] = lambda percent: None,
) -> Decoder:
    """Reads the tensors one by one into their final form; `progress` gets percent. Raises ModelError."""
    spec = source.spec

    def read(name: str) -> torch.Tensor:
        return source.tensor(name).to(device)

    def four_bit(prefix: str, parts: tuple[str, ...]) -> FourBitWeight | None:
        if quantization != "Int8":
            return None
        found = [block for part in parts if (block := source.four_bit(prefix + part)) is not None]
        return join(found) if len(found) == len(parts) else None

    def linear(prefix: str, parts: tuple[str, ...]) -> Linear:
        weight = torch.cat([read(prefix + part) for part in parts])
        names = [f"{prefix}{part}_bias" for part in parts]
        bias = torch.cat([read(name) for name in names]) if all(source.has(name) for name in names) else None
        return make_linear(weight, bias, quantization=quantization, dtype=dtype, four_bit=four_bit(prefix, parts))

    layers = []
    for index in range(spec.layers):
        prefix = f"layers.{index}."
        layers.append(
            Layer(
                attention_norm=read(prefix + "attention_norm").to(dtype),
                qkv=linear(prefix, ("q", "k", "v")),
                o=linear(prefix, ("o",)),
                mlp_norm=read(prefix + "mlp_norm").to(dtype),
                gate_up=linear(prefix, ("gate", "up")),
                down=linear(prefix, ("down",)),
            )
        )
        progress(100 * (index + 1) // (spec.layers + 1))
    embedding = read("embed")
    head_weight = embedding if spec.tied_embeddings else read("head")
    embedding = embedding.to(dtype)
    head = make_linear(
        embedding if spec.tied_embeddings and quantization == "None" else head_weight,
        None,
        quantization=quantization,
        dtype=dtype,
        four_bit=four_bit("", ("embed" if spec.tied_embeddings else "head",)),
    )
    table = _angles(spec, max_length, lambda: read("rope_factors")).to(device)
    progress(100)
    return Decoder(spec, embedding, layers, read("final_norm").to(dtype), head, table)


def _angles(spec: ModelSpec, max_length: int, factors: Callable[[], torch.Tensor]) -> torch.Tensor:
    fields = dict(spec.rope.scaling)
    if fields.get("kind") == "Divided":
        fields["short_factors"] = tuple(factors().flatten().tolist())
    try:
        return rotary_table(spec.head_size, max_length, spec.rope.theta, RotaryScaling(**fields))
    except ValueError as error:
        raise ModelError("ModelUnreadable", f"model {spec.name}: rotary embedding: {error}") from error
