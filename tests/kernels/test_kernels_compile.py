"""Every attention kernel compiles ahead of time, without a GPU, for each architecture that Triton serves.

The interpreter, which the other tests choose when Triton is imported, replaces the compiler: this runs in processes of
its own.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import sys

import triton
import triton.experimental.gluon.language as gl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from octavo_kernels.triton_attention import attend
from octavo_kernels.triton_hopper_long import attend_long
from octavo_kernels.triton_hopper_short import attend_short
from octavo_kernels.triton_plan import plan_long, plan_merge, plan_short

ARCHITECTURE, KIND = int(sys.argv[1]), sys.argv[2]
FLOATS = ("scale_log2", "soft_cap")
TYPED = {"q_ptr": "*fp16", "kv_ptr": "*fp16", "out_ptr": "*fp16", "lse_ptr": "*fp32", "partial_ptr": "*fp32"}
TYPED |= {"partial_sums_ptr": "*fp32"}
BOX = "tensordesc<fp16[16, 128]," + repr(gl.NVMMASharedLayout(128, 16, 2)) + ">"


def compile(kernel, constants, source=ASTSource, **options):
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
            types[name] = TYPED.get(name, "*i32" if name.endswith("_ptr") else "i32")
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
variant = {"HAS_WINDOW": True, "SOFT_CAP": True, "HAS_LSE": True}
work = {"KV_HEADS": 8, "HAS_WINDOW": True, "ITEM_COLUMNS": 16, "LEAST_BLOCKS": 1, "BLOCK_B": 64, "ROWS": 32}
if KIND == "plan":
    groups = {"TILE_TOKENS": 4, "BLOCK_N": 64, "PAGE_SIZE": 16}
    beside = {"BESIDE": 2, "LONG_TOKENS": 32, "LONG_BLOCK": 128}
    compile(plan_short, {**work, **groups, **beside, "GROUPED": False})
    del work["HAS_WINDOW"], work["ITEM_COLUMNS"]
    compile(plan_merge, {**work, **groups, "MERGE_COLUMNS": 8})
    work |= {"HAS_WINDOW": False, "ITEM_COLUMNS": 16}
    compile(plan_short, {**work, **groups, **beside, "BESIDE": 0, "GROUPED": True})
    beside = {"BESIDE": 1, "SHORT_TOKENS": 16, "SHORT_BLOCK": 64}
    compile(plan_long, {**work, **beside, "TILE_TOKENS": 32, "BLOCK_N": 128, "SORTED": True, "CHUNK": 64})
elif KIND == "attend":
    # Large tiles take the compiler long where it has no matrix instructions to use.
    tiles = [(16, False, 4, 4)] + ([(64, True, 16, 1)] if ARCHITECTURE in (80, 90) else [])
    for block_m, two_loops, rows, splits in tiles:
        compile(
            attend,
            {
                **shape, **variant, "BLOCK_D": 128, "BLOCK_M": block_m, "BLOCK_N": 16 if ARCHITECTURE < 80 else 64,
                "PRECISION": "ieee", "TWO_LOOPS": two_loops, "MERGE_ROWS": rows, "MERGE_SPLITS": splits,
                "MERGE_LATER": False, "OVERLAP": ARCHITECTURE >= 90, "TRANSFORM": None, "HAS_SINKS": False,
            },
            num_warps=4, num_stages=2,
        )
else:
    pool = {**shape, **variant, "BOX": 16}
    long = {"BLOCK_N": 128, "STAGES": 2, "PING_PONG": False, "BESIDE": True}
    compile(attend_long, {**pool, **long}, GluonASTSource, num_warps=4)
    compile(
        attend_short,
        {
            **pool, "BLOCK_N": 64, "STAGES": 3, "MERGE_ROWS": 4, "MERGE_SPLITS": 32, "MERGE_LATER": False,
            "OVERLAP": True, "BESIDE": True,
        },
        GluonASTSource, num_warps=4, maxnreg=128,
    )
print("compiled")
"""


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [*((architecture, "attend") for architecture in (75, 80, 86, 89, 90, 100, 120)), (80, "plan"), (90, "hopper")],
)
def test_attention_compiles_without_a_gpu(architecture, kind, tmp_path):
    # Kernels are read from a file's lines, so the program needs one.
    program = tmp_path / "compile.py"
    program.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, str(program), str(architecture), kind],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.endswith("compiled\n")
