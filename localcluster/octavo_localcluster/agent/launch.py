"""From a container's spec to the process that stands for it."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..agent_config import FOLDER_VARIABLE
from ..nodes import program_for_image
from . import shim
from .api import Object
from .environment import PodFacts, References, resolve_environment
from .expand import expand
from .process import ProcessSpec, read_json
from .rewrite import path_rewriter

SERVICE_ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
LAUNCH_FILE = "launch.json"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ImageError(Exception):
    """An image that no program of this cluster stands for."""


@dataclass(frozen=True)
class NodeFacts:
    """What containers of one node have in common."""

    cluster_folder: str
    server_host: str
    server_port: int
    images: Mapping[str, str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Launch:
    """A process to start and the container as it sees itself here: paths, names and variables replaced."""

    process: ProcessSpec
    container: Object
    termination_log: Path

    def save(self, folder: Path) -> None:
        """Keep it for an agent that adopts the run."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LAUNCH_FILE
        path.touch(mode=0o600)
        shim.write_json(path, {"container": self.container, "termination_log": str(self.termination_log)})

    @classmethod
    def load(cls, folder: Path) -> "Launch":
        """Read what save() and the process's start kept. Raises KeyError when there is nothing."""
        kept, spec = read_json(folder / LAUNCH_FILE), read_json(folder / "spec.json")
        process = ProcessSpec(spec["argv"], spec["env"], spec["cwd"], spec["log"])
        return cls(process, kept["container"], Path(kept["termination_log"]))


def image_program(images: Mapping[str, str], image: str) -> str:
    """The program of an image. Raises ImageError with the way out."""
    program = program_for_image(dict(images), image)
    if program is None:
        known = ", ".join(sorted(images))
        raise ImageError(
            f"no program of this local cluster stands for image {image!r}; known are {known}; "
            f"add it under images in the nodes file"
        )
    if not os.access(program, os.X_OK):
        raise ImageError(f"image {image!r} stands for {program}, which is no executable file; install it first")
    return program


def build_launch(
    pod: Object, container: Object, *, attempt: int, pod_folder: Path, mounts: Mapping[str, str], node: NodeFacts,
    facts: PodFacts, references: References, links: Mapping[str, str], rename: Callable[[str], str],
) -> Launch:  # fmt: skip
    """Decide argv, environment and folders of a container's next run.

    Raises ImageError, or ConfigError when the environment can't be made.
    """
    program = image_program(node.images, container["image"])
    home = pod_folder / "containers" / container["name"]
    folders = {name: home / name for name in ("home", "tmp", "work")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    termination_log = home / f"termination-{attempt}.log"
    paths = dict(mounts)
    paths.setdefault(container.get("terminationMessagePath") or "/dev/termination-log", str(termination_log))
    rewrite_paths = path_rewriter(paths)

    base = {
        "PATH": os.pathsep.join([str(Path(program).parent), str(Path(sys.prefix) / "bin"), SYSTEM_PATH]),
        "HOME": str(folders["home"]),
        "TMPDIR": mounts.get("/tmp", str(folders["tmp"])),
        "LANG": "C.UTF-8",
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
        **links,
        "KUBERNETES_SERVICE_HOST": node.server_host,
        "KUBERNETES_SERVICE_PORT": str(node.server_port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(node.server_port),
        **node.env,
    }
    # Paths are replaced in what the pod wrote, before $(NAME) brings in real paths; names may come out of an expansion.
    env = resolve_environment(pod, container, references, facts, base, rewrite_paths)
    env = {name: rename(value) for name, value in env.items()}
    if SERVICE_ACCOUNT_PATH in mounts:
        env["OCTAVO_SERVICEACCOUNT_DIR"] = mounts[SERVICE_ACCOUNT_PATH]
    env[FOLDER_VARIABLE] = node.cluster_folder

    def rewrite(text: str) -> str:
        return rename(expand(rewrite_paths(text), env))

    command = [rewrite(part) for part in container.get("command") or []] or [program]
    args = [rewrite(part) for part in container.get("args") or []]
    argv = [*command, *args]
    # What is not found stays as it is: exec then fails and its message becomes the container's.
    argv[0] = shutil.which(argv[0], path=env["PATH"]) or argv[0]
    working = rewrite_paths(container.get("workingDir") or "")
    cwd = Path(working) if working and working != container.get("workingDir") else folders["work"]
    log = pod_folder / "logs" / container["name"] / f"{attempt}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return Launch(
        ProcessSpec(argv, env, str(cwd), str(log)), rewritten_handlers(container, rewrite_paths), termination_log
    )


def rewritten_handlers(container: Object, rewrite: Callable[[str], str]) -> Object:
    """The container with paths replaced in its exec handlers; as in Kubernetes, those expand no $(NAME)."""

    def handler(value: Object) -> Object:
        if "exec" not in value:
            return value
        return {**value, "exec": {"command": [rewrite(part) for part in value["exec"].get("command") or []]}}

    result = dict(container)
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if container.get(name):
            result[name] = handler(container[name])
    if container.get("lifecycle"):
        result["lifecycle"] = {name: handler(value) for name, value in container["lifecycle"].items()}
    return result
