"""Tables of angles for every kind of scaling: equal to what transformers computes for the same configuration."""

import pytest
import torch
from octavo_kernels import RotaryScaling, rotary_table

SIZE, THETA, ORIGINAL = 64, 500000.0, 4096
SHORT = tuple(1.0 + i / 40 for i in range(SIZE // 2))
LONG = tuple(1.0 + i / 3 for i in range(SIZE // 2))
CASES = [
    ("None", RotaryScaling(), {"rope_type": "default"}, 200),
    ("Linear", RotaryScaling("Linear", 4.0), {"rope_type": "linear", "factor": 4.0}, 200),
    ("Dynamic", RotaryScaling("Dynamic", 2.0, ORIGINAL), {"rope_type": "dynamic", "factor": 2.0}, 3 * ORIGINAL),
    ("DynamicShort", RotaryScaling("Dynamic", 2.0, ORIGINAL), {"rope_type": "dynamic", "factor": 2.0}, 200),
    (
        "Yarn",
        RotaryScaling("Yarn", 4.0, ORIGINAL),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
        300,
    ),
    (
        "YarnRamp",
        RotaryScaling(
            "Yarn", 40.0, ORIGINAL, beta_fast=16.0, beta_slow=2.0, truncate=False, mscale=0.7, mscale_all_dim=1.0
        ),
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": ORIGINAL,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
        },
        300,
    ),
    (
        "LongRopeShort",
        RotaryScaling("LongRope", 8.0, ORIGINAL, short_factors=SHORT, long_factors=LONG),
        {
            "rope_type": "longrope",
            "factor": 8.0,
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
            "original_max_position_embeddings": ORIGINAL,
        },
        ORIGINAL,
    ),
    (
        "LongRopeLong",
        RotaryScaling("LongRope", 8.0, ORIGINAL, short_factors=SHORT, long_factors=LONG),
        {
            "rope_type": "longrope",
            "factor": 8.0,
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
            "original_max_position_embeddings": ORIGINAL,
        },
        ORIGINAL + 1,
    ),
    (
        "Llama3",
        RotaryScaling("Llama3", 8.0, ORIGINAL, low_frequency_factor=1.0, high_frequency_factor=4.0),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        },
        300,
    ),
]


@pytest.mark.parametrize(("scaling", "parameters", "length"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_the_table_holds_the_angles_that_transformers_computes(scaling, parameters, length):
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=2 * SIZE,
        num_attention_heads=2,
        max_position_embeddings=ORIGINAL,
        rope_parameters={"rope_theta": THETA, **parameters},
    )
    positions = torch.arange(length)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    table = rotary_table(SIZE, length, THETA, scaling)
    assert (table.dtype, table.shape) == (torch.float32, (length, SIZE))
    rows = slice(None, None, 7)
    torch.testing.assert_close(table[rows, : SIZE // 2], cos[0, rows, : SIZE // 2], atol=2e-3, rtol=0)
    torch.testing.assert_close(table[rows, SIZE // 2 :], sin[0, rows, : SIZE // 2], atol=2e-3, rtol=0)


def test_factors_of_a_file_divide_the_frequencies():
    table = rotary_table(4, 10, 100.0, RotaryScaling("Divided", short_factors=(2.0, 5.0)))
    angles = torch.arange(10.0)[:, None] / torch.tensor([2.0, 50.0])
    torch.testing.assert_close(table, torch.cat((angles.cos(), angles.sin()), 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "yarn"}, "kind is 'yarn'; it must be one of None, Linear"),
        ({"kind": "Linear", "factor": 0.5}, "factor is 0.5; it must be a number of at least 1"),
        ({"kind": "Linear", "factor": float("nan")}, "factor is nan"),
        ({"kind": "Yarn", "factor": 2.0}, "original_length is 0; Yarn needs at least 1 token"),
        ({"kind": "Llama3", "original_length": 9, "high_frequency_factor": 1.0}, "high_frequency_factor is 1.0"),
        ({"kind": "Yarn", "original_length": 9, "beta_slow": 40.0}, "beta_slow is 40.0"),
        ({"kind": "Divided", "short_factors": (1.0, 0.0)}, "short_factors and long_factors must be numbers above 0"),
    ],
)
def test_a_scaling_that_means_nothing_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        RotaryScaling(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rope_size": 7}, "rope_size is 7; it must be even"),
        ({"length": 0}, "length is 0; it must be at least 1"),
        ({"theta": 1.0}, "theta is 1.0; it must be a number above 1"),
        ({"scaling": RotaryScaling("Divided", short_factors=(2.0,))}, "short_factors has 1 numbers; Divided needs"),
        ({"rope_size": 2, "scaling": RotaryScaling("Dynamic", 2.0, 4)}, "rope_size is 2; Dynamic needs at least 4"),
    ],
)
def test_a_table_that_cannot_be_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        rotary_table(**({"rope_size": 8, "length": 4} | arguments))
