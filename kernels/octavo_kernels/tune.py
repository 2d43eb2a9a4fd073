"""The tuner's command: python -m octavo_kernels.tune --query-heads 32 --kv-heads 8 --head-size 128 --out h200.json"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from octavo_kernels.launch_table import load, save
from octavo_kernels.shape import PAGE_SIZES, AttentionShape
from octavo_kernels.tuner import tune

DTYPES = ("bfloat16", "float16", "float32")
POOLS = (*DTYPES, "float8_e4m3fn")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m octavo_kernels.tune",
        description="Measures launch configurations of attention on this machine and writes the fastest as JSON.",
    )
    made.add_argument("--query-heads", type=int, required=True, help="heads of the queries on one GPU")
    made.add_argument("--kv-heads", type=int, required=True, help="heads of the keys and values on one GPU")
    made.add_argument("--head-size", type=int, required=True, help="elements of a head")
    made.add_argument(
        "--page-sizes", default="16", help=f"tokens of a page, by comma; of {', '.join(map(str, PAGE_SIZES))}"
    )
    made.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of queries and outputs")
    made.add_argument("--kv-dtype", choices=POOLS, help="of the pool; the same as --dtype where it is left out")
    made.add_argument("--device", help="cuda, cuda:1, cpu …; the first GPU where there is one")
    made.add_argument("--seconds", type=float, default=120.0, help="budget of time, over all page sizes")
    made.add_argument("--table", type=Path, help="a table whose other rows stay; the package's where it is left out")
    made.add_argument("--out", type=Path, required=True, help="the file to write")
    made.add_argument("--quiet", action="store_true", help="no line for each launch")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Tunes and writes the file; 0, or 2 with one line on the error stream where an option can't be served."""
    chosen = parser().parse_args(arguments)
    begin = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin:6.1f} s  {line}", file=sys.stderr, flush=True)

    try:
        shapes = [
            AttentionShape(
                chosen.query_heads,
                chosen.kv_heads,
                chosen.head_size,
                int(size),
                getattr(torch, chosen.dtype),
                None if chosen.kv_dtype is None else getattr(torch, chosen.kv_dtype),
            )
            for size in chosen.page_sizes.split(",")
        ]
        table = tune(
            shapes,
            device=chosen.device,
            seconds=chosen.seconds,
            table=None if chosen.table is None else load(chosen.table),
            progress=None if chosen.quiet else tell,
        )
        save(table, chosen.out)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"tune: {error}", file=sys.stderr)
        return 2
    print(f"{chosen.out}: {len(table.rows)} rows for {table.device} ({table.capability})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
