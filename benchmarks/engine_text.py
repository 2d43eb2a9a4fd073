"""Greedy text of a real model on a GPU beside the CPU's: equal up to ties, and how ties are told.

PYTHONPATH=kernels:server_image python3 benchmarks/engine_text.py MODEL [--devices CPU CUDA] [--dtype Float32]

Both generate with the two largest log-probabilities of each token. Where the texts part, the CPU's two best tokens
are looked at: if they are the two that were chosen and no further apart than `--tie`, rounding decided, and the rest of
that text says nothing. Anything else is a difference, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from octavo_server.llm import LLM, Generation, GenerationParams

PROMPTS = (
    "A sheet of paper that is folded three times",
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, a printer",
    "The three most important rules of cooking are",
    "Water boils at",
    "1, 2, 3, 4, 5,",
    "Dear Sir or Madam,",
)


def generate(model: Path, device: str, dtype: str, tokens: int) -> list[Generation]:
    """The answers of one device."""
    llm = LLM(model, device=device, dtype=dtype, max_length=512, pool_bytes=256 << 20)
    params = GenerationParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, logprobs=2)
    return llm.generate(PROMPTS, params, progress=False)


def compare(expected: Generation, found: Generation, tie: float) -> str:
    """`equal`, `tie at …` or `different at …`."""
    for place, (one, other) in enumerate(zip(expected.token_ids, found.token_ids, strict=True)):
        if one == other:
            continue
        best = expected.logprobs[place]
        margin = best.top_logprobs[0] - best.top_logprobs[1]
        if {one, other} == set(best.top_ids[:2]) and margin <= tie:
            return f"tie at {place}: {margin:.4f}"
        return f"different at {place}: {one} and {other}, best {best.top_ids[:2]}, margin {margin:.4f}"
    return "equal"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--devices", nargs=2, default=["CPU", "CUDA"], help="the reference first")
    parser.add_argument("--dtype", default="Float32", help="of both")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--tie", type=float, default=0.02, help="largest difference of log-probabilities that is a tie")
    given = parser.parse_args()
    expected, found = (generate(given.model, device, given.dtype, given.tokens) for device in given.devices)
    verdicts = [compare(one, other, given.tie) for one, other in zip(expected, found, strict=True)]
    for prompt, verdict, one in zip(PROMPTS, verdicts, expected, strict=True):
        print(f"{verdict:28} {prompt!r} → {one.text[:60]!r}")
    wrong = sum(verdict.startswith("different") for verdict in verdicts)
    print(json.dumps({"prompts": len(PROMPTS), "equal": verdicts.count("equal"), "different": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
