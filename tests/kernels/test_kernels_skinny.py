"""Products of few rows, by Triton and by torch, against float64."""

import pytest
import torch
from octavo_kernels import SkinnyProducts
from octavo_kernels.launch_table import LaunchRow, LaunchTable
from octavo_kernels.testing import relative_error

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if GPU else [])]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def exact(x, weight, bias, residual, gated):
    y = x.double() @ weight.double().T
    y = y if bias is None else y + bias.double()
    if gated:
        gate, up = y.chunk(2, dim=1)
        y = torch.nn.functional.silu(gate) * up
    return y if residual is None else y + residual.double()


def operands(rows, columns, depth, dtype, *, gated, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)

    width = columns // 2 if gated else columns
    x, weight = drawn(rows, depth), drawn(columns, depth) / depth**0.5
    return x, weight.to(dtype), drawn(columns), None if gated else drawn(rows, width)


def kernels(programs=2):
    pytest.importorskip("triton")
    launch = {"block_n": 32, "block_k": 32, "programs": programs, "warps": 4, "stages": 2}
    return SkinnyProducts(DEVICE, table=LaunchTable(rows=(LaunchRow("skinny_product", {}, launch),)), backend="Triton")


@pytest.mark.parametrize("backend", ["Torch", "Triton"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 96, 256), (16, 160, 96), (5, 70, 100)])
def test_products_with_bias_and_residual_or_gate_are_those_of_float64(backend, dtype, gated, rows, columns, depth):
    x, weight, bias, residual = operands(rows, columns, depth, dtype, gated=gated)
    products = kernels() if backend == "Triton" else SkinnyProducts(DEVICE, backend="Torch")
    for given in ((None, None), (bias, residual)):
        out = torch.full((rows, columns // 2 if gated else columns), float("nan"), dtype=dtype, device=DEVICE)
        assert products.product(x, weight, *given, gated=gated, out=out) is out
        assert relative_error(out, exact(x, weight, *given, gated)) < TOLERANCE[dtype]


@pytest.mark.parametrize("programs", [1, 2, 3, 5, 64])
def test_any_division_among_programs_adds_every_piece_once(programs):
    x, weight, bias, residual = operands(3, 160, 224, torch.float32, gated=False, seed=1)
    products = kernels(programs)
    found = [products.product(x, weight, bias, residual) for _ in range(2)]
    assert relative_error(found[0], exact(x, weight, bias, residual, False)) < 1e-6
    # The counters were left as they were found, and equal inputs give equal bits.
    assert torch.equal(*found)


def test_the_residual_may_be_the_output_and_logits_may_be_float32():
    x, weight, _, residual = operands(2, 64, 64, torch.float16, gated=False, seed=2)
    wanted = exact(x, weight, None, residual, False)
    kernels().product(x, weight, residual=residual, out=residual)
    assert relative_error(residual, wanted) < 1e-3
    logits = torch.empty(2, 64, device=DEVICE)
    kernels().product(x, weight, out=logits)
    assert relative_error(logits, exact(x, weight, None, None, False)) < 1e-6


def test_operands_may_be_views_with_longer_rows():
    x, weight, _, residual = operands(4, 64, 192, torch.float32, gated=False, seed=3)
    view, part = x[:, 64:128], weight[:, 32:96]
    out = kernels().product(view, part, residual=residual)
    assert relative_error(out, exact(view, part, None, residual, False)) < 1e-6


def test_what_a_table_does_not_prefer_and_more_rows_go_to_torch():
    x, weight, _, _ = operands(17, 64, 64, torch.float16, gated=False)
    assert not kernels().uses_kernel(x, weight)
    assert kernels().uses_kernel(x[:16], weight)
    assert not SkinnyProducts("cpu").uses_kernel(x[:1], weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 9)}, r"x is torch\.float32 \[2, 9\]"),
        ({"weight": torch.zeros(6, 8).half()}, r"weight torch\.float16 \[6, 8\]"),
        ({"bias": torch.zeros(5)}, r"bias has shape \[5\]; it must be contiguous \[6\]"),
        ({"residual": torch.zeros(2, 5)}, r"residual has shape \[2, 5\]; it must be \[2, 6\]"),
        ({"gated": True, "residual": torch.zeros(2, 3)}, "residual is given"),
        ({"out": torch.zeros(2, 6).half()}, r"out is torch\.float16"),
    ],
)
def test_product_names_the_tensor_that_does_not_fit(change, message):
    arguments = {"x": torch.zeros(2, 8), "weight": torch.zeros(6, 8)}
    with pytest.raises(ValueError, match=message):
        SkinnyProducts("cpu").product(**(arguments | change))
