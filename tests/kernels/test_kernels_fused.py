"""RMSNorm and gated activations, by torch operations and by Triton, against float64."""

import pytest
import torch
from octavo_kernels import gelu_mul, rms_norm, silu_mul
from octavo_kernels.testing import relative_error

GPU = torch.cuda.is_available()
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if GPU else [])]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
PATHS = ["torch", "triton"]


def normed(x, weight, eps):
    x = x.double()
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


def call_rms_norm(path, x, weight, eps, residual, out):
    if path == "torch":
        rms_norm(x, weight, eps, residual, out)
        return
    pytest.importorskip("triton")
    from octavo_kernels.triton_fused import launch_rms_norm

    device = "cuda" if GPU else "cpu"
    moved = [None if tensor is None else tensor.to(device) for tensor in (x, weight, residual, out)]
    launch_rms_norm(moved[0], moved[1], eps, moved[2], moved[3])
    out.copy_(moved[3])
    if residual is not None:
        residual.copy_(moved[2])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [64, 576, 1000])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_normalises_the_sum_and_keeps_it(path, dtype, hidden, with_residual):
    x = torch.randn(5, hidden).to(dtype)
    weight = torch.rand(hidden).to(dtype)
    residual = torch.randn(5, hidden).to(dtype) if with_residual else None
    total = x if residual is None else x + residual
    out = torch.full_like(x, float("nan"))
    call_rms_norm(path, x, weight, 1e-5, residual, out)
    assert relative_error(out, normed(total, weight, 1e-5)) < TOLERANCE[dtype]
    if residual is not None:
        assert torch.equal(residual, total)


def active(gate, activation):
    """By the definitions, in float64."""
    if activation == "silu":
        return gate / (1 + torch.exp(-gate))
    if activation == "gelu":
        return gate * (1 + torch.erf(gate / 2**0.5)) / 2
    return gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))) / 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [8, 1536, 1100])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activations_gate_without_overflow(path, dtype, columns, activation):
    gate_up = torch.randn(4, 2 * columns).to(dtype)
    gate_up[0, 0], gate_up[1, 0] = -200.0, 200.0
    gate, up = gate_up.double().chunk(2, dim=-1)
    wanted = active(gate, activation) * up
    out = torch.full((4, columns), float("nan"), dtype=dtype)
    if path == "torch":
        options = {} if activation == "silu" else {"approximate": activation == "gelu_tanh"}
        function = silu_mul if activation == "silu" else gelu_mul
        function(gate_up, out, **options)
        torch.testing.assert_close(function(gate_up, **options), out)
    else:
        pytest.importorskip("triton")
        from octavo_kernels.triton_fused import launch_gated

        device = "cuda" if GPU else "cpu"
        on_device = out.to(device)
        launch_gated(gate_up.to(device), on_device, activation)
        out = on_device.cpu()
    assert relative_error(out, wanted) < TOLERANCE[dtype]


def test_a_gated_activation_names_the_tensor_that_does_not_fit():
    with pytest.raises(ValueError, match=r"gate_up has 7 columns; it must have an even number"):
        gelu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"out has shape \[2, 8\]; for this gate_up it must be \[2, 4\]"):
        gelu_mul(torch.zeros(2, 8), torch.zeros(2, 8))


@pytest.mark.gpu
def test_public_functions_take_the_same_results_from_the_gpu():
    x, weight = torch.randn(7, 576, device="cuda").bfloat16(), torch.rand(576, device="cuda").bfloat16()
    assert relative_error(rms_norm(x, weight, 1e-5), normed(x, weight, 1e-5)) < 8e-3
    gate, up = x.double().chunk(2, dim=-1)
    assert relative_error(silu_mul(x), torch.nn.functional.silu(gate) * up) < 8e-3


def test_fused_functions_name_the_tensor_that_does_not_fit():
    with pytest.raises(ValueError, match=r"weight has shape \[3\]"):
        rms_norm(torch.zeros(2, 4), torch.zeros(3), 1e-5)
    with pytest.raises(ValueError, match=r"residual is torch\.float32"):
        rms_norm(torch.zeros(2, 4), torch.zeros(4), 1e-5, torch.zeros(1, 4))
    with pytest.raises(ValueError, match="gate_up has 3 columns"):
        silu_mul(torch.zeros(2, 3))
