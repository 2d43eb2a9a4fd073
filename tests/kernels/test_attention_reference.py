"""The reference itself, against loops over single tokens that share no code with it."""

import math

import pytest
import torch
from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention
from octavo_kernels.testing import random_case


@pytest.mark.parametrize(
    "variant",
    [AttentionVariant(), AttentionVariant(scale=0.3), AttentionVariant(soft_cap=2.0), AttentionVariant(window=4)],
    ids=["plain", "scale", "soft_cap", "window"],
)
def test_reference_equals_loops_over_single_tokens(variant):
    shape = AttentionShape(4, 2, 16, 8, torch.float64)
    sequences = [(1, 11), (5, 9), (3, 3)]
    case = random_case(shape, sequences, variant=variant)
    out, lse = case.attend(PagedAttention(shape, variant, backend="Reference"))
    row = 0
    for (new_tokens, length), slot in zip(sequences, case.slots.tolist(), strict=True):
        for token in range(new_tokens):
            last = length - new_tokens + token
            first = 0 if variant.window is None else max(0, last - variant.window + 1)
            for head in range(4):
                scores, values = [], []
                for position in range(first, last + 1):
                    page = case.page_table[slot, position // 8]
                    key = case.kv[page, 0, head // 2, position % 8]
                    score = float(case.q[row, head] @ key) * (variant.scale or 0.25)
                    if variant.soft_cap:
                        score = variant.soft_cap * math.tanh(score / variant.soft_cap)
                    scores.append(score)
                    values.append(case.kv[page, 1, head // 2, position % 8])
                total = sum(math.exp(score) for score in scores)
                wanted = sum(math.exp(score) / total * value for score, value in zip(scores, values, strict=True))
                torch.testing.assert_close(out[row, head], wanted)
                assert math.isclose(float(lse[row, head]), math.log(total), abs_tol=1e-6)
            row += 1
