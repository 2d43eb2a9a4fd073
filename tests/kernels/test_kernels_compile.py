"""Every attention kernel compiles ahead of time, without a GPU, for each architecture that Triton serves.

With the installed Triton and with 3.6.0, the oldest that is supported, in a small environment that the tests make once
and keep. The interpreter, which the other tests choose when Triton is imported, replaces the compiler: this runs in
processes of its own.
"""

import pytest

pytest.importorskip("triton")

PROGRAM = """
import sys

if len(sys.argv) > 3:
    # torch comes from the environment of the tests, behind what the small one holds.
    sys.path.append(sys.argv[3])
import triton
import triton.experimental.gluon.language as gl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from octavo_kernels.triton_attention import attend
from octavo_kernels.triton_hopper_long import attend_long
from octavo_kernels.triton_hopper_short import attend_short
from octavo_kernels.triton_plan_groups import plan_merge, plan_rows
from octavo_kernels.triton_plan_long import plan_long
from octavo_kernels.triton_plan_short import plan_short

ARCHITECTURE, KIND = int(sys.argv[1]), sys.argv[2]
FLOATS = ("scale_log2", "soft_cap")
TYPED = {"q_ptr": "*fp16", "kv_ptr": "*fp16", "out_ptr": "*fp16", "lse_ptr": "*fp32", "partial_ptr": "*fp32"}
TYPED |= {"partial_sums_ptr": "*fp32", "sinks_ptr": "*fp32", "scales_ptr": "*fp32", "mask_ptr": "*u8"}
TYPED |= {"mask_starts_ptr": "*i64"}
BOX = "tensordesc<fp16[16, 128]," + repr(gl.NVMMASharedLayout(128, 16, 2)) + ">"


def compile(kernel, constants, source=ASTSource, typed=None, **options):
    names = kernel.arg_names
    types = {}
    for name in names:
        if name in constants:
            types[name] = "constexpr"
        elif name == "kv_desc":
            types[name] = BOX
        elif name in FLOATS:
            types[name] = "fp32"
        else:
            types[name] = (TYPED | (typed or {})).get(name, "*i32" if name.endswith("_ptr") else "i32")
    aligned = [n for n, name in enumerate(names) if types[name].startswith("*") or name.startswith("stride")]
    compiled = triton.compile(
        source(
            kernel,
            types,
            {(names.index(name),): value for name, value in constants.items()},
            {(n,): [["tt.divisibility", 16]] for n in aligned},
        ),
        target=GPUTarget("cuda", ARCHITECTURE, 32),
        options=options,
    )
    assert len(compiled.asm["cubin"]) > 1000


shape = {"GROUP": 4, "PAGE_SIZE": 16, "HEAD_SIZE": 128, "ITEM_COLUMNS": 16}
variant = {"HAS_WINDOW": True, "SOFT_CAP": True, "HAS_SINKS": True, "HAS_LSE": True}
work = {"KV_HEADS": 8, "HAS_WINDOW": True, "ITEM_COLUMNS": 16, "LEAST_BLOCKS": 1, "BLOCK_B": 64, "ROWS": 32}
if KIND == "plan":
    groups = {"TILE_TOKENS": 4, "BLOCK_N": 64, "HAS_MASK": False, "CHUNK": 0}
    beside = {"BESIDE": 2, "LONG_TOKENS": 32, "LONG_BLOCK": 128}
    compile(plan_short, {**work, **groups, **beside, "GROUPED": False})
    compile(plan_short, {**work, **groups, **beside, "GROUPED": False, "CHUNK": 1024, "BESIDE": 0})
    work["HAS_WINDOW"] = False
    compile(plan_short, {**work, **groups, **beside, "BESIDE": 0, "GROUPED": True})
    beside = {"BESIDE": 1, "SHORT_TOKENS": 16, "SHORT_BLOCK": 64, "SORTED": True, "CHUNK": 64}
    beside |= {"TILE_TOKENS": 32, "BLOCK_N": 128, "HAS_MASK": True, "SPLIT": True}
    for least in (0, 16):
        compile(plan_long, {**work, **beside, "LEAST_LAST": least})
    tile = {"KV_HEADS": 8, "TILE_TOKENS": 4, "BLOCK_N": 64, "PAGE_SIZE": 16}
    compile(plan_rows, {**tile, "BLOCK_B": 64, "ROWS": 32, "CHUNK": 64})
    merge = {name: value for name, value in {**work, **groups}.items() if name in plan_merge.arg_names}
    compile(plan_merge, {**merge, "MERGE_COLUMNS": 8})
elif KIND == "attend":
    # Large tiles take the compiler long where it has no matrix instructions to use.
    plain = {"HAS_MASK": False, "HAS_SCALES": False, "FP8_BITS": False, "FP8_PAIRS": False, "LISTED": False}
    tiles = [(16, False, 4, 4, plain, {})]
    if ARCHITECTURE in (80, 90):
        tiles.append((64, True, 16, 1, plain, {}))
    if ARCHITECTURE in (75, 89, 90, 120):
        # FP8 pools: as bytes where the architecture has no conversion of its own.
        fp8 = {"kv_ptr": "*fp8e4nv" if ARCHITECTURE >= 89 else "*u8"}
        masked = {"HAS_MASK": True, "HAS_SCALES": True, "LISTED": True}
        masked |= {"FP8_BITS": ARCHITECTURE < 89, "FP8_PAIRS": ARCHITECTURE >= 89}
        tiles.append((16, False, 4, 4, masked, fp8))
    for block_m, two_loops, rows, splits, fields, typed in tiles:
        compile(
            attend,
            {
                **shape, **variant, **fields, "BLOCK_D": 128, "BLOCK_M": block_m,
                "BLOCK_N": 16 if ARCHITECTURE < 80 else 64, "PRECISION": "ieee", "TWO_LOOPS": two_loops,
                "MERGE_ROWS": rows, "MERGE_SPLITS": splits, "OVERLAP": ARCHITECTURE >= 90, "TRANSFORM": None,
            },
            typed=typed, num_warps=4, num_stages=2,
        )
else:
    pool = {**shape, **variant, "BOX": 16, "HEAD_USED": 112}
    long = {"BLOCK_N": 128, "STAGES": 2, "MERGE_ROWS": 64, "MERGE_SPLITS": 1, "PING_PONG": False, "BESIDE": True}
    compile(attend_long, {**pool, **long}, GluonASTSource, num_warps=4)
    short = {"BLOCK_N": 64, "STAGES": 3, "MERGE_ROWS": 4, "MERGE_SPLITS": 32, "OVERLAP": True}
    for fields in ({"LISTED": False, "BESIDE": True, "EARLY": False}, {"LISTED": True, "BESIDE": False, "EARLY": True}):
        compile(attend_short, {**pool, **short, **fields}, GluonASTSource, num_warps=4, maxnreg=128)
print("compiled")
"""


CASES = [*((architecture, "attend") for architecture in (75, 80, 86, 89, 90, 100, 120)), (80, "plan"), (90, "hopper")]


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_attention_compiles_without_a_gpu(architecture, kind, compiles):
    compiles(PROGRAM, architecture, kind)


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_attention_compiles_with_the_oldest_triton(oldest_python, architecture, kind, compiles):
    compiles(PROGRAM, architecture, kind, python=oldest_python)
