"""Kernels run on the GPU where there is one, else in Triton's interpreter, which must be chosen before the import."""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[2]
OLDEST_TRITON = "3.6.0"
_FOLDER = ROOT / ".venv-triton36"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords and "kernels" in item.path.parts:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def triton_device() -> torch.device:
    """Where the Triton kernels run in this session."""
    pytest.importorskip("triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def on_gpu() -> bool:
    return torch.cuda.is_available()


@pytest.fixture
def compiles(tmp_path: Path) -> Callable[..., None]:
    """`compiles(program, *arguments)` runs a program that compiles kernels, where the interpreter is not chosen.

    With `python=`, another interpreter, to which torch is lent from this one as the last argument.
    """

    def run(program: str, *arguments: object, python: Path | None = None) -> None:
        # Kernels are read from a file's lines, so the program needs one.
        path = tmp_path / "compile.py"
        path.write_text(program)
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["PYTHONPATH"] = str(ROOT / "kernels")
        lent = [] if python is None else [sysconfig.get_path("purelib")]
        command = [str(python or sys.executable), str(path), *map(str, arguments), *lent]
        result = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
        assert result.returncode == 0, result.stderr[-3000:]
        assert result.stdout.endswith("compiled\n")

    return run


@pytest.fixture(scope="session")
def oldest_python() -> Path:
    """The interpreter of an environment with the oldest Triton, made once for all processes of the tests."""
    uv = shutil.which("uv")
    python = _FOLDER / "bin" / "python"
    _FOLDER.mkdir(exist_ok=True)
    with (ROOT / ".venv-triton36.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_FOLDER / "ready").exists():
            if uv is None:
                pytest.skip(f"uv is missing, which installs Triton {OLDEST_TRITON}")
            make = [uv, "venv", "-q", "--clear", "-p", sys.executable, str(_FOLDER)]
            wanted = [f"triton=={OLDEST_TRITON}", "numpy<2.3"]
            fetch = [uv, "pip", "install", "-q", "--python", str(python), "--no-deps", *wanted]
            for command in (make, fetch):
                done = subprocess.run(command, capture_output=True, text=True, timeout=240)
                if done.returncode:
                    pytest.skip(f"Triton {OLDEST_TRITON} can't be fetched: {done.stderr.strip()[-200:]}")
            (_FOLDER / "ready").write_text(OLDEST_TRITON)
    return python
