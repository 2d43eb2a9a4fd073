"""Transforms of the logits and attention sinks: whole and split, prefill and decode, and a variant of one's own."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.batch import SharedPrefixes, check_batch
from octavo_kernels.testing import lse_error, random_case, relative_error

pytest.importorskip("triton")

from octavo_kernels.triton_backend import TritonBackend
from octavo_kernels.variants import alibi

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"
SHAPE = AttentionShape(4, 2, 16, 8, torch.float32)
MIXED = [(1, 90), (5, 21), (0, 9), (16, 16), (1, 1), (2, 0)]
DECODE = [(1, 150), (1, 3), (1, 65), (1, 0)]


def slopes(heads):
    return (2.0 ** -torch.arange(1, heads + 1, dtype=torch.float32)).to(DEVICE)


def attend(case, share=None, groups=None):
    backend = TritonBackend(case.shape, case.variant, DEVICE, max_tokens=4096, share=share)
    batch = check_batch(case.query_starts, case.kv_lengths, case.page_table, case.slots, groups, max_sequences=64)
    out = torch.full_like(case.q, float("nan"))
    lse = torch.full(case.q.shape[:2], float("nan"), device=DEVICE)
    backend.plan(batch, case.q.shape[0])
    backend.run(case.q, case.kv, out, lse)
    return out, lse


@pytest.mark.parametrize("sequences", [MIXED, DECODE], ids=["mixed", "decode"])
@pytest.mark.parametrize("fields", [{}, {"soft_cap": 4.0, "window": 30}], ids=str)
def test_linear_biases_equal_the_reference(sequences, fields):
    variant = AttentionVariant(transform=alibi(slopes(4)), **fields)
    case = random_case(SHAPE, sequences, variant=variant, device=DEVICE)
    expected, expected_lse = case.reference()
    plain, _ = random_case(SHAPE, sequences, variant=AttentionVariant(**fields), device=DEVICE).reference()
    assert relative_error(expected, plain) > 1e-2, "the biases matter"
    for share in (None, 1, 9):
        out, lse = attend(case, share)
        assert relative_error(out, expected) < 2e-5
        assert lse_error(lse, expected_lse) < 1e-4


@settings(max_examples=12 if DEVICE.type == "cpu" else 40, deadline=None)
@given(
    sequences=st.lists(
        st.integers(0, 120).flatmap(lambda length: st.tuples(st.integers(0, min(length + 1, 9)), st.just(length))),
        min_size=1,
        max_size=4,
    ),
    sinks=st.lists(st.sampled_from([-40.0, -1.0, 0.0, 2.5, 30.0, float("-inf")]), min_size=4, max_size=4),
    share=st.integers(1, 12),
)
def test_sinks_enter_the_denominator_once_whatever_the_number_of_splits(sequences, sinks, share):
    variant = AttentionVariant(sinks=torch.tensor(sinks, device=DEVICE))
    case = random_case(SHAPE, sequences, variant=variant, device=DEVICE)
    expected, expected_lse = case.reference()
    out, lse = attend(case, share)
    assert relative_error(out, expected) < 2e-5
    assert lse_error(lse, expected_lse) < 1e-4


def test_a_sink_halves_an_output_whose_only_score_equals_it():
    case = random_case(SHAPE, [(1, 1)], variant=AttentionVariant(sinks=torch.zeros(4, device=DEVICE)), device=DEVICE)
    case.q.zero_()
    own = case.kv[case.page_table[case.slots[0].item(), 0].item(), 1, :, 0].repeat_interleave(2, 0)
    out, lse = attend(case)
    torch.testing.assert_close(out[0], own / 2)
    torch.testing.assert_close(lse[0], torch.full_like(lse[0], 2.0).log())


@pytest.mark.parametrize("biased", [False, True])
def test_sinks_and_biases_stand_with_a_shared_prefix(biased):
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], device=DEVICE)
    variant = AttentionVariant(transform=alibi(slopes(4)) if biased else None, sinks=sinks)
    case = random_case(SHAPE, [(1, 250 + own) for own in range(8)], variant=variant, device=DEVICE)
    case.page_table[case.slots.long(), :30] = case.page_table[case.slots[0].long(), :30].clone()
    expected, expected_lse = case.reference()
    starts, lengths = torch.tensor([0, 8]).int().to(DEVICE), torch.tensor([240]).int().to(DEVICE)
    out, lse = attend(case, 3, SharedPrefixes(starts, lengths))
    assert relative_error(out, expected) < 2e-5
    assert lse_error(lse, expected_lse) < 1e-4


def test_auto_takes_the_reference_for_such_variants_in_host_memory():
    variant = AttentionVariant(sinks=torch.zeros(4))
    assert PagedAttention(SHAPE, variant).backend == "Reference"
    with pytest.raises(ValueError, match="backend CPU takes no transform, no sinks"):
        PagedAttention(SHAPE, variant, backend="CPU")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AttentionVariant(sinks=torch.zeros(4).half()), "sinks is torch.float16"),
        (lambda: PagedAttention(SHAPE, AttentionVariant(sinks=torch.zeros(3))), "sinks has 3 values"),
        (lambda: alibi(torch.zeros(4, 1)), "slopes is torch.float32"),
    ],
)
def test_values_of_the_wrong_shape_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_tutorial_of_the_kernels_page_adds_a_variant(tmp_path):
    (program,) = re.findall(
        r"```python\n(import torch\nimport triton\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    # A kernel is compiled from its lines in a file.
    path = tmp_path / "tutorial.py"
    path.write_text(program)
    spec = importlib.util.spec_from_file_location("kernels_tutorial", path)
    tutorial = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tutorial)
    variant = tutorial.attend_near(torch.full((4,), 8.0, device=DEVICE))
    case = random_case(SHAPE, MIXED, variant=variant, device=DEVICE)
    out, _ = attend(case, 5)
    assert relative_error(out, case.reference()[0]) < 2e-5
    plain, _ = random_case(SHAPE, MIXED, device=DEVICE).reference()
    assert relative_error(out, plain) > 1e-2
