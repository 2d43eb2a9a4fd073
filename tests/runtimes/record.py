"""Reads flags and metric names out of the sources of vLLM and SGLang, without importing them.

    uv pip install --no-deps --target sglang-VERSION sglang==VERSION    # pure Python
    uv pip install --no-deps --target vllm-VERSION vllm==VERSION        # large: it holds the compiled kernels
    python tests/runtimes/record.py vllm-VERSION sglang-VERSION > tests/runtimes/recorded.json

The packages themselves need a GPU's libraries to be imported. A program whose folder is given as - stays as it is
recorded, and so does MLC, which is on no registry: its names were read in its repository, in
python/mlc_llm/cli/serve.py (parser, and the names of --overrides) and cpp/serve/metrics.cc (EngineMetrics), at the
commit that is recorded as its version.
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


def declared_flags(paths: list[Path]) -> dict[str, list[Any] | None]:
    """Flag → its choices of settings that are declared as `name: A[type, Arg(…)]`."""
    found: dict[str, list[Any] | None] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            if getattr(getattr(node.annotation, "value", None), "id", "") != "A":
                continue
            parts = node.annotation.slice.elts  # type: ignore[attr-defined]
            told = [part for part in parts if isinstance(part, ast.Call) and getattr(part.func, "id", "") == "Arg"]
            words = {item.arg: item.value for call in told for item in call.keywords}
            if "no_cli" in words or any(getattr(getattr(p, "func", None), "id", "") == "Derived" for p in parts):
                continue
            choices, aliases = words.get("choices"), words.get("aliases")
            listed = [literal(item) for item in choices.elts] if isinstance(choices, ast.List) else None
            name = literal(words["cli_name"]) if "cli_name" in words else node.target.id.replace("_", "-")
            names = [f"--{str(name).removeprefix('--')}"]
            names += [literal(item) for item in aliases.elts] if isinstance(aliases, ast.List) else []
            found |= dict.fromkeys(names, listed)
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


def record_vllm(folder: Path) -> dict[str, Any]:
    own = added_flags(folder / "vllm/engine/arg_utils.py")
    for name in fields(folder / "vllm/entrypoints/common/cli_args.py", {"FrontendArgs", "BaseFrontendArgs"}):
        own["--" + name.replace("_", "-")] = None
    own["--dtype"] = literals(folder / "vllm/config/model.py", "ModelDType")
    own["--kv-cache-dtype"] = literals(folder / "vllm/config/cache.py", "CacheDType")
    return told(folder, own, metrics([folder / "vllm/v1/metrics/loggers.py"], "vllm"))


def record_sglang(folder: Path) -> dict[str, Any]:
    sources = folder / "sglang/srt"
    own = added_flags(sources / "server_args.py") | declared_flags(sorted((sources / "arg_groups/fields").glob("*.py")))
    return told(folder, own, metrics(sorted((sources / "observability").glob("*.py")), "sglang"))


def told(folder: Path, flags: dict[str, list[Any] | None], names: list[str]) -> dict[str, Any]:
    kept = {name: flags[name] for name in ("--dtype", "--kv-cache-dtype")}
    return {"version": folder.name.rpartition("-")[2], "flags": sorted(flags), "choices": kept, "metrics": names}


RECORDERS = {"VLLM": record_vllm, "SGLang": record_sglang}

if __name__ == "__main__":
    recorded = json.loads((Path(__file__).parent / "recorded.json").read_text())
    for (program, recorder), place in zip(RECORDERS.items(), sys.argv[1:], strict=False):
        if place != "-":
            recorded[program] = recorder(Path(place))
    print(json.dumps(recorded, indent=1))
