"""Files of weights for benchmarks/engine.py: made, loaded and read from their disk."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from octavo_server.models.decoder import load_decoder
from octavo_server.weights.device_reader import DeviceReader
from octavo_server.weights.safetensors_model import SafetensorsModel


def write_weights(folder: Path, shape: dict[str, Any]) -> int:
    """A model.safetensors of this shape without useful numbers; its size in bytes."""
    hidden, inner, keys = shape["hidden_size"], shape["intermediate_size"], shape["num_key_value_heads"] * 128
    parts: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (shape["vocab_size"], hidden),
        "lm_head": (shape["vocab_size"], hidden),
        "model.norm": (hidden,),
    }
    for layer in range(shape["num_hidden_layers"]):
        tensors |= {f"model.layers.{layer}.{name}": size for name, size in parts.items()}
    header, at = {}, 0
    for name, size in tensors.items():
        end = at + 2 * size[0] * (size[1] if len(size) > 1 else 1)
        header[name + ".weight"] = {"dtype": "BF16", "shape": size, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header).encode()
    block = random.Random(0).randbytes(1 << 24)
    (folder / "config.json").write_text(json.dumps(shape))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, at, len(block)):
            file.write(block[: at - begin])
        os.fsync(file.fileno())
    return at


def load_seconds(folder: Path) -> float:
    """Time to bring a folder's weights into the decoder's form on the GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source, begun = SafetensorsModel(folder), time.monotonic()
    reader = DeviceReader(device)
    source.read_into(reader)
    decoder = load_decoder(source, device=device, dtype=torch.bfloat16, quantization="None", max_length=1024)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.monotonic() - begun
    reader.close()
    del decoder
    return seconds


def forget_files() -> bool:
    """Empties the page cache; False where that is not allowed."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def read_file(path: Path, readers: int = 8) -> None:
    """Reads a file from its disk, so many parts at once."""
    part = -(-path.stat().st_size // readers)

    def read(number: int) -> None:
        room = bytearray(1 << 24)
        with path.open("rb", buffering=0) as file:
            file.seek(number * part)
            left = part
            while left > 0 and (count := file.readinto(room)):
                left -= count

    with ThreadPoolExecutor(readers) as threads:
        list(threads.map(read, range(readers)))
