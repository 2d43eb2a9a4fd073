"""Reads flags and metric names out of the unpacked sources of vLLM and SGLang, without importing them.

    python tests/runtimes/record.py VLLM_FOLDER SGLANG_FOLDER > tests/runtimes/recorded.json

Both source archives are on the package registry; the packages themselves need a GPU's libraries to be imported.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any


def added_flags(path: Path) -> dict[str, list[Any] | None]:
    """Flag → its choices (None: none are written there) of every add_argument call."""
    found: dict[str, list[Any] | None] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"):
            continue
        lists = [item.value for item in node.keywords if item.arg == "choices"]
        choices = [literal(item) for item in lists[0].elts] if lists and isinstance(lists[0], ast.List) else None
        for argument in node.args:
            name = literal(argument)
            if isinstance(name, str) and name.startswith("--"):
                found[name] = choices
    return found


def literal(node: ast.AST) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def fields(path: Path, classes: set[str]) -> list[str]:
    """Fields of dataclasses that a parser is made from."""
    found = [item for item in ast.walk(ast.parse(path.read_text())) if isinstance(item, ast.ClassDef)]
    body = [part for item in found if item.name in classes for part in item.body]
    return [part.target.id for part in body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]


def literals(path: Path, name: str) -> list[Any]:
    """The values of a `Name = Literal[…]`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return [literal(item) for item in node.value.slice.elts]  # type: ignore[attr-defined]
    raise ValueError(f"{path}: no {name}")


def metrics(paths: list[Path], prefix: str) -> list[str]:
    return sorted({name for path in paths for name in re.findall(rf'"({prefix}:[a-z0-9_]+)"', path.read_text())})


def record(vllm: Path, sglang: Path) -> dict[str, Any]:
    own = added_flags(vllm / "vllm/engine/arg_utils.py")
    for name in fields(vllm / "vllm/entrypoints/common/cli_args.py", {"FrontendArgs", "BaseFrontendArgs"}):
        own["--" + name.replace("_", "-")] = None
    own["--dtype"] = literals(vllm / "vllm/config/model.py", "ModelDType")
    own["--kv-cache-dtype"] = literals(vllm / "vllm/config/cache.py", "CacheDType")
    other = added_flags(sglang / "sglang/srt/server_args.py")
    return {
        "VLLM": told(vllm, own, metrics([vllm / "vllm/v1/metrics/loggers.py"], "vllm")),
        "SGLang": told(sglang, other, metrics(sorted((sglang / "sglang/srt/metrics").glob("*.py")), "sglang")),
    }


def told(folder: Path, flags: dict[str, list[Any] | None], names: list[str]) -> dict[str, Any]:
    kept = {name: flags[name] for name in ("--dtype", "--kv-cache-dtype")}
    return {"version": folder.name.rpartition("-")[2], "flags": sorted(flags), "choices": kept, "metrics": names}


if __name__ == "__main__":
    print(json.dumps(record(Path(sys.argv[1]), Path(sys.argv[2])), indent=1))
