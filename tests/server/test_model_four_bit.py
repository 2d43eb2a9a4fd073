"""4-bit files: multiplied as they are for few rows, and nearer to the exact model than 8 bits are."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from octavo_server.models.linear import FewRowsLinear, Int8Linear, make_linear
from octavo_server.weights import FourBitWeight, open_model
from octavo_server.weights.four_bit import join, unpack

NEEDS_KERNEL = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="torch has no 4-bit kernel for this processor"
)


def floats(weight: FourBitWeight) -> torch.Tensor:
    blocks = (weight.values.float() - 8).unflatten(1, (-1, 32))
    return (blocks * weight.scale[:, :, None] + weight.middle[:, :, None]).flatten(1)


def quantized(rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> tuple[FourBitWeight, torch.Tensor]:
    data = gguf.quantize(np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32), kind)
    return unpack(data, (rows, columns), int(kind)), torch.from_numpy(gguf.dequantize(data, kind))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1"])
def test_both_formats_are_read_as_the_gguf_package_reads_them(name: str) -> None:
    weight, expected = quantized(48, 96, gguf.GGMLQuantizationType[name])
    torch.testing.assert_close(floats(weight), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", ["q", "k", "v", "o", "gate", "down"])
def test_the_real_models_matrices_are_the_same_either_way_rotary_order_included(model_path: Path, part: str) -> None:
    source = open_model(str(model_path))
    weight = source.four_bit(f"layers.3.{part}")
    assert weight is not None
    torch.testing.assert_close(floats(weight), source.tensor(f"layers.3.{part}"), rtol=1e-6, atol=1e-6)
    assert source.four_bit("embed") is None, "kept in eight bits by the file"


@NEEDS_KERNEL
@pytest.mark.parametrize("rows", range(1, FewRowsLinear.ROWS + 1))
def test_few_rows_are_as_near_as_bfloat16_inputs_allow(rows: int) -> None:
    torch.manual_seed(rows)
    parts = [quantized(size, 256, gguf.GGMLQuantizationType.Q4_1) for size in (64, 16)]
    exact, bias = torch.cat([part[1] for part in parts]), torch.randn(80)
    layer = make_linear(exact, bias, quantization="Int8", dtype=torch.float32, four_bit=join([p[0] for p in parts]))
    x = torch.randn(rows, 256)
    expected = x @ exact.t() + bias
    assert (layer(x) - expected).pow(2).mean().sqrt() < 0.006 * expected.pow(2).mean().sqrt()


@NEEDS_KERNEL
def test_more_rows_take_the_eight_bit_path_and_a_row_alone_has_the_bits_of_a_row_among_four() -> None:
    torch.manual_seed(0)
    weight, exact = quantized(64, 128, gguf.GGMLQuantizationType.Q4_1)
    layer = make_linear(exact, None, quantization="Int8", dtype=torch.float32, four_bit=weight)
    x = torch.randn(FewRowsLinear.ROWS + 1, 128)
    assert torch.equal(layer(x), Int8Linear(exact, None, torch.float32)(x))
    few = x[: FewRowsLinear.ROWS]
    for row in range(FewRowsLinear.ROWS):
        assert torch.equal(layer(few[row : row + 1]), layer(few)[row : row + 1])


def test_a_shape_without_a_kernel_keeps_eight_bits() -> None:
    weight, exact = quantized(24, 64, gguf.GGMLQuantizationType.Q4_1)
    assert isinstance(make_linear(exact, None, quantization="Int8", dtype=torch.float32, four_bit=weight), Int8Linear)
