"""Kernels run on the GPU where there is one, else in Triton's interpreter, which must be chosen before the import."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)


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
