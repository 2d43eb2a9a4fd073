"""The 8-bit path on a CPU: near the exact one, and the same bits in every batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from octavo_kernels import AttentionShape, PagedAttention
from octavo_server.models.decoder import StepTensors, load_decoder
from octavo_server.models.linear import Int8Linear, make_linear
from octavo_server.weights import open_model

TEXT = (
    "The capital of France is Paris. People visit it for its art, architecture, food and history. The Louvre holds the "
    "Mona Lisa, the Eiffel Tower offers a view over the city, and Notre-Dame is a masterpiece of Gothic architecture."
)


pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    torch.manual_seed(0)
    layer = Int8Linear(torch.randn(96, 64), torch.randn(96), torch.float32)
    x = torch.randn(33, 64) * torch.logspace(-3, 3, 33)[:, None]
    whole = layer(x)
    for row in range(33):
        assert torch.equal(layer(x[row : row + 1]), whole[row : row + 1])
    assert torch.equal(layer(x[5:20]), whole[5:20])


def test_a_large_input_does_not_drown_the_small_ones_of_its_token() -> None:
    torch.manual_seed(0)
    weight = torch.randn(96, 512)
    x = torch.randn(8, 512)
    x[:, 7] = 400.0
    weight[:, 7] = 0.0
    exact = x @ weight.t()
    near = Int8Linear(weight, None, torch.float32)(x)
    assert (near - exact).pow(2).mean().sqrt() < 0.02 * exact.pow(2).mean().sqrt(), "1.0 with one byte per input"


def test_the_error_stays_near_what_eight_bits_allow_and_zero_stays_zero() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(96, 512), torch.randn(96)
    x = torch.randn(8, 512)
    x[3] = 0
    exact = make_linear(weight, bias, quantization="None", dtype=torch.float32)(x)
    near = make_linear(weight, bias, quantization="Int8", dtype=torch.float32)(x)
    assert (near - exact).pow(2).mean().sqrt() < 0.01 * exact.pow(2).mean().sqrt()
    assert torch.equal(near[3], bias)


def test_the_real_model_in_eight_bits_predicts_a_text_nearly_as_the_exact_one_does(
    model_path: Path, tokenizer: Any
) -> None:
    source = open_model(str(model_path))
    cpu = torch.device("cpu")
    found: dict[str, torch.Tensor] = {}
    tokens = torch.tensor(tokenizer.encode(TEXT, add_special_tokens=False))
    for quantization in ("None", "Int8"):
        decoder = load_decoder(source, device=cpu, dtype=torch.float32, quantization=quantization, max_length=256)
        spec, count = source.spec, len(tokens)
        attention = PagedAttention(AttentionShape(spec.query_heads, spec.kv_heads, spec.head_size, 16, torch.float32))
        pool = [torch.zeros(20, 2, spec.kv_heads, 16, spec.head_size) for _ in range(spec.layers)]
        table = torch.arange(1, 20, dtype=torch.int32)[None]
        starts = torch.tensor([0, count], dtype=torch.int32)
        with torch.inference_mode():
            attention.plan(starts, torch.tensor([count], dtype=torch.int32), table)
            places = torch.arange(count)
            step = StepTensors(tokens, places, places + 16, places)
            found[quantization] = decoder.forward(step, attention, pool).log_softmax(dim=1)
    exact, near = found["None"], found["Int8"]
    divergence = (exact.exp() * (exact - near)).sum(dim=1).mean().item()
    assert divergence < 0.01, "in nats per token; 0.004 was measured"
    assert (exact.argmax(dim=1) == near.argmax(dim=1)).float().mean().item() > 0.8
