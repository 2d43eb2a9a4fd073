"""Every fused and sampling kernel compiles ahead of time, without a GPU, for each architecture that Triton serves.

Triton turns a whole number of 1 among the arguments into a constant, which lacks a tensor's methods, so each kernel is
compiled with such arguments too. The interpreter, which the other tests choose when Triton is imported, replaces the
compiler: this runs in processes of its own. With the installed Triton and with the oldest that is supported.
"""

import pytest

pytest.importorskip("triton")

PROGRAM = """
import sys

if len(sys.argv) > 3:
    # torch comes from the environment of the tests, behind what the small one holds.
    sys.path.append(sys.argv[3])
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo_kernels.triton_append import _rope_append
from octavo_kernels.triton_fused import _gated_mul, _rms_norm
from octavo_kernels.triton_sampling import add_biases, measure_and_draw, penalize
from octavo_kernels.triton_skinny import skinny_product
from octavo_kernels.triton_truncation import truncate_and_draw

ARCHITECTURE, KIND = int(sys.argv[1]), sys.argv[2]
TYPES = {
    "eps": "fp32",
    **dict.fromkeys(("q_norm_ptr", "k_norm_ptr", "scales_ptr"), "*fp16"),
    **dict.fromkeys(("seeds_ptr", "choices_ptr", "positions_ptr", "slots_ptr", "out_ptr"), "*i64"),
    **dict.fromkeys(("sum_ptr", "row_sum_ptr", "sums_ptr", "weights_ptr"), "*i64"),
    **dict.fromkeys(("logits_ptr", "temperature_ptr", "top_p_ptr", "min_p_ptr", "values_ptr", "cos_sin_ptr"), "*fp32"),
    **dict.fromkeys(("largest_ptr", "row_largest_ptr"), "*fp32"),
    **dict.fromkeys(("repetition_ptr", "presence_ptr", "frequency_ptr"), "*fp32"),
    **dict.fromkeys(("x_ptr", "weight_ptr", "residual_ptr", "gate_up_ptr"), "*fp16"),
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "kv_ptr"), "*fp16"),
}


def compile(kernel, constants, typed=None, **options):
    for ones in (False, True):
        names = kernel.arg_names
        known = TYPES | (typed or {})
        types = {name: known.get(name, "*i32" if name.endswith("_ptr") else "i32") for name in names}
        given = dict(constants)
        if ones:
            if ARCHITECTURE != 90:
                continue
            given |= {name: 1 for name in names if types[name] == "i32" and name not in given}
        types |= dict.fromkeys(given, "constexpr")
        pointers = [n for n, name in enumerate(names) if types[name].startswith("*")]
        strides = [n for n, name in enumerate(names) if name.startswith("stride") and types[name] == "i32"]
        compiled = triton.compile(
            ASTSource(
                kernel,
                types,
                {(names.index(name),): value for name, value in given.items()},
                {(n,): [["tt.divisibility", 16]] for n in pointers + strides},
            ),
            target=GPUTarget("cuda", ARCHITECTURE, 32),
            options=options,
        )
        assert len(compiled.asm["cubin"]) > 1000


exact = {"enable_fp_fusion": False}
if KIND == "sampling":
    chunks = {"CHUNKS": 3, "CHUNK": 4096, "BLOCK_CHUNKS": 4}
    absent = dict.fromkeys(("top_k_ptr", "top_p_ptr", "min_p_ptr", "vocabulary_ptr", "words_ptr", "mask_rows_ptr"))
    lists = {"SAMPLES": 2048, "LISTED": 32768, "BLOCK": 2048, "WIDTH": 512}
    compile(measure_and_draw, chunks, num_warps=8, **exact)
    compile(truncate_and_draw, {**chunks, **lists}, num_warps=8, **exact)
    compile(add_biases, {"BLOCK": 256, "lists_ptr": None}, num_warps=4, **exact)
    if ARCHITECTURE == 90:
        one = {"CHUNKS": 1, "BLOCK_CHUNKS": 1, "CHUNK": 4096, "vocabulary_ptr": None, "min_p_ptr": None}
        compile(measure_and_draw, {**chunks, **absent}, num_warps=8, **exact)
        compile(truncate_and_draw, {**lists, **one, "WIDTH": 2048}, num_warps=8, **exact)
        compile(penalize, {"BLOCK": 256}, num_warps=4, **exact)
else:
    rows = {"out_ptr": "*fp16"}
    compile(_rms_norm, {"HAS_RESIDUAL": True, "BLOCK": 4096}, rows, num_warps=8)
    compile(_rms_norm, {"HAS_RESIDUAL": False, "BLOCK": 1024}, rows, num_warps=2)
    for activation in ("silu", "gelu", "gelu_tanh"):
        compile(_gated_mul, {"ACTIVATION": activation, "BLOCK": 1024}, rows, num_warps=4)
    heads = {"QUERY_HEADS": 6, "KV_HEADS": 2, "HEAD_SIZE": 80, "PAGE_SIZE": 16, "BLOCK_HEADS": 8, "BLOCK_D": 128}
    plain = {"NORMED": False, "SCALED": False, "FP8_BITS": False}
    pairs = {"ROPE_SIZE": 64, "BLOCK_PAIRS": 32, "FIRST_PART": 0}
    compile(_rope_append, {**heads, **plain, **pairs, "INTERLEAVED": False}, num_warps=4)
    compile(_rope_append, {**heads, **plain, **pairs, "INTERLEAVED": True}, num_warps=4)
    bare = {"ROPE_SIZE": 0, "BLOCK_PAIRS": 1, "FIRST_PART": 1, "INTERLEAVED": False}
    compile(_rope_append, {**heads, **plain, **bare}, num_warps=4)
    normed = {"NORMED": True, "SCALED": True, "FP8_BITS": True}
    bytes_ = {"kv_ptr": "*u8", "scales_ptr": "*fp32"}
    compile(_rope_append, {**heads, **normed, **pairs, "INTERLEAVED": False}, bytes_, num_warps=4)
    compile(_rope_append, {**heads, **bare, "NORMED": False, "SCALED": False, "FP8_BITS": True}, bytes_, num_warps=4)
    halves = dict.fromkeys(("bias_ptr", "residual_ptr", "out_ptr"), "*fp16") | {"partial_ptr": "*fp32"}
    tiles = {"BLOCK_N": 64, "BLOCK_K": 64, "ROWS": 16, "STAGES": 3, "OVERLAP": ARCHITECTURE >= 90}
    compile(skinny_product, {**tiles, "GATED": True, "EVEN": True}, halves, num_warps=4)
    compile(skinny_product, {**tiles, "GATED": False, "EVEN": False, "bias_ptr": None}, halves, num_warps=4)
print("compiled")
"""


ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]


@pytest.mark.parametrize("kind", ["fused", "sampling"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_kernels_compile_without_a_gpu(architecture, kind, compiles):
    compiles(PROGRAM, architecture, kind)


@pytest.mark.parametrize("kind", ["fused", "sampling"])
@pytest.mark.parametrize("architecture", [75, 90])
def test_fused_kernels_compile_with_the_oldest_triton(oldest_python, architecture, kind, compiles):
    compiles(PROGRAM, architecture, kind, python=oldest_python)
