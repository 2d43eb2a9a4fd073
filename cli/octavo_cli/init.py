"""`octavo init MODEL`: an InferenceService for a model, after a look at what its files say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from .accelerators import ACCELERATORS, GIB
from .errors import ModelError
from .fit import COMFORT_TOKENS, COUNTS, Fit, choose, fit, fits
from .hub import from_hub
from .model_facts import ModelFacts, from_path

MAX_NAME_LENGTH = 48
TENSOR_CORES = "8.0"
"""Below this compute capability Triton's kernels run without tensor cores."""


@dataclass(frozen=True)
class Wish:
    """What the command was asked for."""

    model: str
    """A folder, a .gguf file or hf://org/name."""
    length: int | None = None
    """Longest request in tokens; None = what the model was made for."""
    cpu: bool = False
    revision: str | None = None
    uri: str | None = None
    """Where the cluster finds the files, when that is not where they were read."""


def service_name(uri: str) -> str:
    """A name that Kubernetes takes, from the last part of the address."""
    last = uri.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix(".gguf")
    name = re.sub(r"[^a-z0-9]+", "-", last).strip("-")
    return (name if name[:1].isalpha() else f"model-{name}")[:MAX_NAME_LENGTH].strip("-")


def manifest(model: ModelFacts, wish: Wish, length: int, chosen: Fit | None) -> dict[str, Any]:
    """The object; `chosen` None = it runs on CPUs."""
    uri = wish.uri or model.uri
    about: dict[str, Any] = {"uri": uri, "maxLength": length}
    if wish.revision is not None:
        about["revision"] = wish.revision
    spec: dict[str, Any] = {"model": about}
    if chosen is None:
        spec["engine"] = {"quantization": "Int8"}
        spec["placement"] = {"cpu": "Required"}
    else:
        if runtime_of(model, chosen) != "Octavo":
            spec["engine"] = {"runtime": runtime_of(model, chosen)}
        if chosen.count > 1:
            spec["engine"]["parallelism"] = {"tensor": chosen.count}
        kind = {"vendor": "NVIDIA", "minMemoryGiB": int(chosen.accelerator.memory_gib)}
        if chosen.accelerator.capability != "7.5":
            kind["minComputeCapability"] = TENSOR_CORES
        spec["placement"] = {"accelerators": [kind]}
    spec["scaling"] = {"minReplicas": 1, "maxReplicas": 4}
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": service_name(uri)},
        "spec": spec,
    }


def runtime_of(model: ModelFacts, chosen: Fit | None) -> str:
    """Octavo where it can: an architecture of its own, on one accelerator."""
    return "Octavo" if model.is_own and (chosen is None or chosen.count == 1) else "VLLM"


def asked_for(chosen: Fit) -> str:
    """What the manifest asks for, and why that."""
    number = "one accelerator" if chosen.count == 1 else f"{chosen.count} accelerators"
    kind = f"of {chosen.accelerator.memory_gib:g} GiB or more (as {chosen.accelerator.product})"
    room = f" that leaves room for {COMFORT_TOKENS:,} tokens" if chosen.pool_tokens >= COMFORT_TOKENS else ""
    why = f"of the kinds of which a replica needs fewest, the one with the least memory{room}"
    return f"asks for {number} a replica, {kind}: {why}"


def about(model: ModelFacts, uri: str) -> str:
    """The model in a line; `uri`: where the cluster finds it."""
    weights = f"{model.weight_bytes / GIB:.1f} GiB of weights{' (estimated)' if model.weights_are_estimated else ''}"
    cache = f"{model.cache_bytes_per_token / 1024:.0f} KiB of cache a token"
    return f"{uri}: {model.architecture}, {weights}, {cache}, made for {model.max_length:,} tokens"


def table(model: ModelFacts, length: int) -> Table:
    """What fits where; `at once` counts requests of `length` tokens."""
    made = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    made.add_column("accelerator", no_wrap=True)
    made.add_column("runtime", no_wrap=True)
    for heading in ("a replica", "pool in tokens", "longest", f"at once of {length:,}"):
        made.add_column(heading, justify="right")
    for accelerator, one in fits(model, length):
        if one is None:
            made.add_row(accelerator.product, "", "too small")
        else:
            numbers = (one.count, one.pool_tokens, one.length, one.together(length))
            made.add_row(accelerator.product, runtime_of(model, one), *(f"{number:,}" for number in numbers))
    return made


def read_model(wish: Wish) -> ModelFacts:
    """Raises ModelError."""
    if wish.model.startswith("hf://"):
        return from_hub(wish.model, wish.revision or "main")
    if "://" in wish.model and not wish.model.startswith("file://"):
        raise ModelError(
            f"{wish.model}: can't be read from here; give a folder or file of the same content and --uri {wish.model}"
        )
    return from_path(Path(wish.model.removeprefix("file://")).expanduser())


def _placed(model: ModelFacts, wish: Wish, length: int, console: Console) -> Fit:
    """The accelerator to ask for. Raises ModelError when none holds the model at this length."""
    console.print(table(model, length))
    chosen = choose([one for _, one in fits(model, length)])
    if chosen is None:
        longest = max(fit(model, item, COUNTS[-1]).length for item in ACCELERATORS)
        way = f"try --length {longest} or less" if longest else "no length does; use a smaller or quantized model"
        raise ModelError(f"{wish.model} with {length} tokens fits on none of them; {way}")
    return chosen


def init(wish: Wish, console: Console) -> str:
    """The manifest as YAML; the table and what to mind go to `console`. Raises ModelError."""
    model = read_model(wish)
    if wish.length is not None and wish.length > model.max_length:
        raise ModelError(
            f"--length {wish.length}: {wish.model} was made for {model.max_length} tokens; give at most that"
        )
    length = wish.length or model.max_length
    if wish.cpu and not model.is_own:
        raise ModelError(f"--cpu: only runtime Octavo serves on CPUs, and it can't serve this: {model.not_own}")
    console.print(about(model, wish.uri or model.uri), soft_wrap=True)
    chosen = None if wish.cpu else _placed(model, wish, length, console)
    if chosen is not None:
        console.print(asked_for(chosen), soft_wrap=True)
        if any(one and one.count > chosen.count for _, one in fits(model, length)):
            console.print("other kinds do with more of them a replica, by runtime VLLM: the table says how many")
    if runtime_of(model, chosen) != "Octavo":
        why = model.not_own
        if not why and chosen is not None:
            why = f"a replica needs {chosen.count} accelerators, and Octavo uses one"
        words = f"runtime VLLM is written, since runtime Octavo can't serve this: {why}; the catalogue (serverImages)"
        console.print(f"{words} must hold an image for it", soft_wrap=True)
    if not wish.model.startswith("hf://") and wish.uri is None:
        words = f"model.uri is a guess: put the files on a claim so that {model.uri} is right, or give --uri"
        console.print(words, soft_wrap=True)
    return yaml.safe_dump(manifest(model, wish, length, chosen), sort_keys=False)
