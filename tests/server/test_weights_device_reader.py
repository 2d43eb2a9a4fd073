"""Weights read in pieces straight into a device's memory: the numbers of the file, or an error that names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from octavo_server.weights import ModelError
from octavo_server.weights.device_reader import DeviceReader, fill
from octavo_server.weights.safetensors_model import _LAYER_NAMES, SafetensorsModel
from safetensors import safe_open


@pytest.fixture
def reader() -> DeviceReader:
    # Pieces far smaller than a tensor, and more of them than threads.
    return DeviceReader(torch.device("cpu"), workers=3, piece_bytes=1000)


def test_each_tensor_is_bit_for_bit_what_the_file_holds_in_any_order(tiny_model: Path, reader: DeviceReader) -> None:
    plain, ahead = SafetensorsModel(tiny_model), SafetensorsModel(tiny_model)
    ahead.read_into(reader)
    names = [f"layers.{layer}.{part}" for layer in (1, 0) for part in ("q", "gate", "down", "attention_norm")]
    for name in [*names, "embed", "final_norm"]:
        found, expected = ahead.tensor(name), plain.tensor(name)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected), name
    reader.close()


def test_tensors_that_follow_are_read_before_they_are_asked_for(tiny_model: Path, reader: DeviceReader) -> None:
    model = SafetensorsModel(tiny_model)
    model.read_into(reader)
    model.tensor("layers.0.attention_norm")
    reader.close()
    # No thread is left that could read it now.
    assert torch.equal(model.tensor("layers.1.down"), SafetensorsModel(tiny_model).tensor("layers.1.down"))


def test_a_file_that_is_cut_off_meanwhile_is_named(tiny_model: Path, reader: DeviceReader, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "cut"))
    model = SafetensorsModel(folder)
    model.read_into(reader)
    file = folder / "model.safetensors"
    # The one that ends last in the file.
    with safe_open(file, framework="pt") as found:
        last = str(found.offset_keys()[-1]).removeprefix("model.").removesuffix(".weight")
    name = {"norm": "final_norm", "embed_tokens": "embed"}.get(last, last)
    for ours, theirs in _LAYER_NAMES.items():
        name = name.replace(theirs, ours)
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size - 64)
    with pytest.raises(ModelError, match=r"model\.safetensors.*ended 64 bytes early.*fetch the file again"):
        model.tensor(name)
    reader.close()


def test_reads_that_give_little_are_repeated_until_the_piece_is_full() -> None:
    source, into = bytes(range(256)), bytearray(256)

    def three(part: memoryview, at: int) -> int:
        count = min(3, len(part))
        part[:count] = source[at : at + count]
        return count

    fill(memoryview(into), three, Path("weights"))
    assert bytes(into) == source
