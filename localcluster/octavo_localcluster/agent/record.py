"""What the agent remembers of a pod, also across its own restarts: `<pod folder>/record.json`."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import shim
from .lifecycle import Phase
from .process import read_json

FILE_NAME = "record.json"


@dataclass
class ContainerRecord:
    """One container: `attempt` counts its starts from 0; `ended` and `last` are terminated states of a pod status."""

    name: str
    init: bool
    attempt: int = -1
    phase: Phase = "new"
    started_at: str = ""
    ended: dict[str, Any] | None = None
    ended_at: float = 0.0
    last: dict[str, Any] | None = None
    ready: bool = False
    started: bool = False
    delay_seconds: float = 0.0
    waiting: tuple[str, str] | None = None
    retry_at: float = 0.0


@dataclass
class PodRecord:
    """One pod."""

    namespace: str
    name: str
    uid: str
    node: str
    ip: str
    start_time: str
    containers: list[ContainerRecord] = field(default_factory=list)
    outcome: str = ""
    reason: str = ""
    message: str = ""

    def save(self, folder: Path) -> None:
        """Write the record, whole or not at all."""
        shim.write_json(folder / FILE_NAME, asdict(self))

    def container(self, name: str) -> ContainerRecord:
        """The record of a container. Raises KeyError."""
        for container in self.containers:
            if container.name == name:
                return container
        raise KeyError(name)


def load_record(folder: Path) -> PodRecord | None:
    """The record in a pod folder, or None when the pod never got that far."""
    try:
        found = read_json(folder / FILE_NAME)
    except ValueError:
        return None
    if not found:
        return None
    containers = []
    for item in found.pop("containers"):
        waiting = item.pop("waiting")
        containers.append(ContainerRecord(**item, waiting=tuple(waiting) if waiting else None))
    return PodRecord(**found, containers=containers)


def records_below(pods: Path) -> dict[str, PodRecord]:
    """Records of all pod folders by uid."""
    found = {}
    for folder in pods.iterdir() if pods.is_dir() else ():
        record = load_record(folder)
        if record is not None:
            found[folder.name] = record
    return found
