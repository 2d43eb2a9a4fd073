"""What callers may rely on: errors that name the way out, and backends that load without Triton."""

import subprocess
import sys
import textwrap

import pytest
import torch
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention

SHAPE = AttentionShape(4, 2, 32, 16, torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_heads": 5}, "query_heads is 5; it must be a multiple of kv_heads"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"head_size": 260}, "head_size is 260"),
        ({"head_size": 65}, "multiple of 8"),
        ({"page_size": 12}, "page_size is 12; it must be one of 8, 16"),
        ({"dtype": torch.int8}, "dtype is torch.int8"),
        ({"kv_dtype": torch.int8}, "kv_dtype is torch.int8"),
    ],
)
def test_a_shape_that_cannot_work_names_field_value_and_limit(change, message):
    fields = {"query_heads": 4, "kv_heads": 2, "head_size": 64, "page_size": 16, "dtype": torch.float32}
    with pytest.raises(ValueError, match=message):
        AttentionShape(**(fields | change))


@pytest.mark.parametrize(
    "fields", [{"scale": 0.0}, {"scale": float("nan")}, {"soft_cap": -1.0}, {"window": 0}], ids=str
)
def test_a_variant_that_cannot_work_names_its_field(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        AttentionVariant(**fields)


def planned():
    attention = PagedAttention(SHAPE, max_tokens=8, max_sequences=2)
    attention.plan(torch.tensor([0, 1]).int(), torch.tensor([3]).int(), torch.ones(1, 1).int())
    return attention


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(1, 2, 32)}, "q has shape"),
        ({"out": torch.zeros(2, 4, 32)}, "out"),
        (
            {"q": torch.zeros(9, 4, 32), "out": torch.zeros(9, 4, 32)},
            "q has 9 tokens; this PagedAttention was made for 8",
        ),
        ({"q": torch.zeros(1, 4, 32).half()}, "dtypes torch.float16"),
        ({"kv": torch.zeros(2, 2, 2, 8, 32)}, "kv has shape"),
        ({"kv": torch.zeros(2, 2, 2, 32, 16).transpose(3, 4)}, "must be contiguous"),
        ({"lse": torch.zeros(1, 4).double()}, "lse is torch.float64"),
    ],
)
def test_run_names_the_tensor_that_does_not_fit(change, message):
    arguments = {"q": torch.zeros(1, 4, 32), "kv": torch.zeros(2, 2, 2, 16, 32), "out": torch.zeros(1, 4, 32)}
    with pytest.raises(ValueError, match=message):
        planned().run(**(arguments | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_starts": torch.tensor([0]).int()}, "query_starts has shape"),
        ({"kv_lengths": torch.tensor([3])}, "kv_lengths has dtype torch.int64"),
        ({"page_table": torch.ones(1).int()}, "page_table has shape"),
        ({"slots": torch.ones(3).int()}, "slots has shape"),
        ({"tokens": 9}, "tokens is 9"),
        ({"kv_lengths": torch.ones(3).int()}, "3 sequences; this PagedAttention was made for 2"),
    ],
)
def test_plan_names_the_tensor_that_does_not_fit(change, message):
    arguments = {
        "query_starts": torch.tensor([0, 1]).int(),
        "kv_lengths": torch.tensor([3]).int(),
        "page_table": torch.ones(1, 1).int(),
    }
    with pytest.raises(ValueError, match=message):
        PagedAttention(SHAPE, max_tokens=8, max_sequences=2).plan(**(arguments | change))


def test_run_before_plan_is_refused():
    with pytest.raises(RuntimeError, match="call plan once per step"):
        PagedAttention(SHAPE).run(torch.zeros(1, 4, 32), torch.zeros(2, 2, 2, 16, 32), torch.zeros(1, 4, 32))


def test_auto_takes_the_cpu_backend_in_host_memory_and_an_unknown_name_is_refused():
    assert PagedAttention(SHAPE).backend == "CPU"
    assert PagedAttention(SHAPE, backend="Reference").backend == "Reference"
    with pytest.raises(ValueError, match="Auto, Reference, CPU, Triton"):
        PagedAttention(SHAPE, backend="Cuda")
    with pytest.raises(ValueError, match="backend CPU cannot serve device cuda"):
        PagedAttention(SHAPE, backend="CPU", device="cuda")


def run_python(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, timeout=120
    )


def test_everything_but_the_triton_backend_works_where_triton_is_missing():
    result = run_python(
        """
        import sys
        from importlib.abc import MetaPathFinder

        class NoTriton(MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "triton":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
                return None

        sys.meta_path.insert(0, NoTriton())
        import torch
        from octavo_kernels import AttentionShape, PagedAttention, rms_norm, silu_mul
        from octavo_kernels.testing import random_case, relative_error

        shape = AttentionShape(4, 2, 32, 16, torch.float32)
        case = random_case(shape, [(1, 20), (3, 9)])
        out, _ = case.attend(PagedAttention(shape))
        assert relative_error(out, case.reference()[0]) < 1e-5
        silu_mul(rms_norm(torch.randn(2, 8), torch.ones(8), 1e-5))
        try:
            PagedAttention(shape, backend="Triton")
        except RuntimeError as error:
            assert "octavo-kernels[triton]" in str(error), error
        else:
            raise SystemExit("backend Triton was accepted")
        assert not any(name.split(".")[0] == "triton" for name in sys.modules)
        """
    )
    assert result.returncode == 0, result.stderr


def test_the_triton_backend_refuses_the_cpu_outside_of_its_interpreter(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="cannot serve device cpu; use backend CPU"):
        PagedAttention(SHAPE, backend="Triton")
