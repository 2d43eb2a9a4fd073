"""The nodes file: which nodes a local cluster shows, which volumes they hold, which program stands for which image.

The control plane reads it to write certificates and PersistentVolumes, the node agent to register nodes and to run
pods.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

DEFAULT_IMAGES = {"octavo-server:*": "octavo-server", "octavo-operator:*": "octavo-operator"}
MAX_NODES = 200

_QUANTITY = re.compile(r"^\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")
_NAME = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"


class NodesFileError(ValueError):
    """A nodes file that can't be used; the message is one line that names file, field and reason."""


def _quantity(value: object) -> object:
    """Lets a bare number stand for its text: `cpu: 2` is `cpu: "2"`."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(text, str) and not _QUANTITY.match(text):
        raise ValueError(f"{text!r} is no Kubernetes quantity; write for example 2, 500m or 8Gi")
    return text


def _text(value: object) -> object:
    """YAML reads `true` and `80` as other types; labels and environment values are always text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Quantity = Annotated[str, BeforeValidator(_quantity)]
Text = Annotated[str, BeforeValidator(_text)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Taint(_Model):
    """A taint as in `Node.spec.taints`."""

    key: str
    value: Text = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class NodeSpec(_Model):
    """One node that the agent registers and serves."""

    name: str = Field(pattern=_NAME)
    labels: dict[str, Text] = {}
    taints: tuple[Taint, ...] = ()
    capacity: dict[str, Quantity] = {}
    """Resources of `Node.status.capacity`; cpu and memory default to this machine's, pods to 110."""
    device: Literal["cpu"] = "cpu"
    """What really computes on this node; pods see it as OCTAVO_DEVICE, the Node as a label."""
    env: dict[str, Text] = {}
    """Added to the environment of each container on this node."""


class PersistentVolumeSpec(_Model):
    """A local PersistentVolume (or `count` alike, for as many claims) tied to one node."""

    name: str = Field(pattern=_NAME)
    path: str
    """An absolute folder, or `package:NAME`: the folder of a Python package of this environment."""
    capacity: Quantity = "1Gi"
    storage_class_name: str = Field(default="local-models", alias="storageClassName")
    node: str
    count: int = Field(default=1, ge=1, le=100)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the PersistentVolume objects: `name`, `name-2`, `name-3`, …"""
        return (self.name, *(f"{self.name}-{i}" for i in range(2, self.count + 1)))

    def folder(self) -> Path:
        """The real folder. Raises ValueError when it does not exist."""
        return resolve_path(self.path)


class NodesFile(_Model):
    """Contents of a nodes file."""

    nodes: tuple[NodeSpec, ...] = Field(default=(), max_length=MAX_NODES)
    persistent_volumes: tuple[PersistentVolumeSpec, ...] = Field(default=(), alias="persistentVolumes")
    images: dict[str, str] = {}
    """Image pattern → program; added to DEFAULT_IMAGES, a pattern given here wins."""

    @model_validator(mode="after")
    def _names_agree(self) -> NodesFile:
        names = [node.name for node in self.nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"nodes: the name {twice[0]!r} is used twice")
        volumes = [name for volume in self.persistent_volumes for name in volume.names]
        twice = sorted({name for name in volumes if volumes.count(name) > 1})
        if twice:
            raise ValueError(f"persistentVolumes: the name {twice[0]!r} is used twice")
        for index, volume in enumerate(self.persistent_volumes):
            if volume.node not in names:
                known = ", ".join(names) or "none"
                raise ValueError(f"persistentVolumes[{index}].node: no node is named {volume.node!r}; nodes: {known}")
        return self

    def programs(self) -> dict[str, str]:
        """Image pattern → absolute path of its program; the path need not exist yet."""
        return {pattern: program_path(name) for pattern, name in (DEFAULT_IMAGES | self.images).items()}


def resolve_path(path: str) -> Path:
    """The folder that a volume's `path` means. A package is found without importing it.

    Raises ValueError when it is neither absolute nor `package:NAME`, or does not exist.
    """
    if path.startswith("package:"):
        name = path.removeprefix("package:")
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"{path!r}: no package {name!r} is installed in {sys.prefix}; install it first")
        return Path(spec.submodule_search_locations[0]).resolve()
    folder = Path(path)
    if not folder.is_absolute():
        raise ValueError(f"{path!r} is not absolute; give an absolute folder or package:NAME")
    if not folder.is_dir():
        raise ValueError(f"{path!r} is no folder")
    return folder


def program_path(name: str) -> str:
    """A program of this environment, or `name` itself when it is a path."""
    return name if "/" in name else str(Path(sys.prefix) / "bin" / name)


def program_for_image(programs: dict[str, str], image: str) -> str | None:
    """The program that stands for an image, or None.

    A pattern matches the whole reference or its last part, so any registry prefix is accepted; a reference without a
    tag counts as `:latest`, a digest is ignored. A longer pattern wins over a shorter one.
    """
    reference = image.partition("@")[0]
    last = reference.rpartition("/")[2]
    if ":" not in last:
        reference, last = f"{reference}:latest", f"{last}:latest"
    for pattern in sorted(programs, key=lambda text: (-len(text), text)):
        if fnmatch.fnmatchcase(reference, pattern) or fnmatch.fnmatchcase(last, pattern):
            return programs[pattern]
    return None


def parse_nodes(content: Any, *, source: str = "nodes file") -> NodesFile:
    """Checks what YAML gave. Raises NodesFileError that names the field."""
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise NodesFileError(f"{source}: expected nodes, persistentVolumes, images; found a {_kind(content)}")
    try:
        return NodesFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        reason = first["msg"].removeprefix("Value error, ")
        more = error.error_count() - 1
        suffix = f" (and {more} more)" if more else ""
        raise NodesFileError(f"{source}: {f'{field}: ' if field else ''}{reason}{suffix}") from None


def load_nodes(path: Path) -> NodesFile:
    """Reads and checks a nodes file, its volumes' folders included. Raises NodesFileError."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise NodesFileError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NodesFileError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    nodes = parse_nodes(content, source=str(path))
    for index, volume in enumerate(nodes.persistent_volumes):
        try:
            volume.folder()
        except ValueError as error:
            raise NodesFileError(f"{path}: persistentVolumes[{index}].path: {error}") from None
    return nodes


def _kind(value: object) -> str:
    return {"list": "list", "str": "text"}.get(type(value).__name__, type(value).__name__)
