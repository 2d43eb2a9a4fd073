"""Which files of a repository make up the model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch

from octavo_server.contract import CheckReason
from octavo_server.termination import Refused

_BESIDE = ("*.json", "*.jinja", "tokenizer.model")
"""Small files beside the weights: configuration, tokenizer, chat template."""
_BESIDE_FOR_OTHERS = (*_BESIDE, "*.model", "*.txt", "*.tiktoken")
"""Other runtimes read more forms of tokenizers."""


def choose_files(name: str, sizes: Mapping[str, int], inside: str, format: str, runtime: str = "Octavo") -> list[str]:
    """Files to fetch, sorted. `sizes` maps every path in the repository to bytes; `inside` narrows to a file or folder.

    Safetensors are preferred unless `format` says GGUF. Raises Refused when there is no model or more than one.
    """
    if inside in sizes:
        if not inside.endswith(".gguf"):
            raise Refused(CheckReason.FORMAT_UNSUPPORTED, f"model {name}: {inside} is no .gguf file")
        return [inside]
    folder = f"{inside}/" if inside else ""
    files = [path for path in sizes if path.startswith(folder) and "/" not in path[len(folder) :]]
    if not files:
        raise Refused(CheckReason.MODEL_NOT_FOUND, f"model {name}: the repository holds no {inside or 'files'}")
    if runtime == "MLC":
        # Compiled weights in many parts, listed by a file of their own: all of the folder belongs to the model.
        return sorted(path for path in files if not path.rsplit("/", 1)[-1].startswith((".", "README")))
    beside = _BESIDE if runtime == "Octavo" else _BESIDE_FOR_OTHERS
    weights = [path for path in files if path.endswith(".safetensors")]
    ggufs = sorted(path for path in files if path.endswith(".gguf"))
    if weights and format != "GGUF":
        return sorted({*weights, *(path for path in files if _is_beside(path, beside))})
    if format == "Safetensors" or not ggufs:
        found = ", ".join(sorted({path.rsplit(".", 1)[-1] for path in files if "." in path}))
        wanted = ".safetensors or .gguf" if format == "Auto" else f".{format.lower()}"
        raise Refused(CheckReason.FORMAT_UNSUPPORTED, f"model {name}: no {wanted} files; the repository holds: {found}")
    if len(ggufs) > 1:
        listed = ", ".join(ggufs[:6]) + (", …" if len(ggufs) > 6 else "")
        raise Refused(
            CheckReason.FORMAT_UNSUPPORTED,
            f"model {name}: {len(ggufs)} GGUF files; name one, as in hf://…/{ggufs[0]} (there are: {listed})",
        )
    return ggufs


def _is_beside(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in patterns)
