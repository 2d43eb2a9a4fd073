"""`octavo-server check`: what this machine offers, and whether the kernels run on it.

The one command beside the engine that imports torch: it is for a person, or a node's log, not for the serving path.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

from octavo_server.compatibility import fallbacks_here, has_machine_code
from octavo_server.contract import ExitCode
from octavo_server.metrics import build_facts
from octavo_server.version import __version__

_INTERESTING = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """All that the command shows."""

    version: str
    device: str
    compute_capability: str
    memory_bytes: int
    driver: str
    driver_cuda: str
    torch: str
    torch_cuda: str
    triton: str
    kernels: str
    launches: str
    """Where the kernels' launch configurations come from without --launch-table."""
    cpu: str
    cpu_features: list[str]
    fallbacks: list[str] = field(default_factory=list)
    """Why slower kernels may run; no problem, but nothing to keep silent about."""
    problems: list[str] = field(default_factory=list)


def check(*, as_json: bool) -> ExitCode:
    """Prints the findings; 0 when the server can run here, 2 when a problem stands in its way."""
    findings = find()
    if as_json:
        print(json.dumps(asdict(findings)))
    else:
        for name, value in asdict(findings).items():
            if name not in ("problems", "fallbacks"):
                shown = ", ".join(value) if isinstance(value, list) else value
                print(f"{name.replace('_', ' '):20}{shown}")
        for fallback in findings.fallbacks:
            print(f"{'slower kernels':20}{fallback}")
        for problem in findings.problems:
            print(f"{'problem':20}{problem}")
    return ExitCode.REFUSED if findings.problems else ExitCode.ENDED


def find() -> Findings:
    """Asks torch, the driver and the kernels."""
    import torch

    facts = build_facts()
    problems: list[str] = []
    device, capability, memory, driver_cuda = "CPU", "none", 0, "none"
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        device, memory = properties.name, properties.total_memory
        capability = f"{properties.major}.{properties.minor}"
        level = int(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]
        driver_cuda = f"{level // 1000}.{level % 1000 // 10}"
        problems += gpu_problems(capability, torch.cuda.get_arch_list(), driver_cuda, facts["cuda"])
    elif facts["driver"] != "none":
        problems.append(
            f"driver {facts['driver']} is installed and torch ({facts['torch']}, CUDA {facts['cuda']}) finds no GPU; "
            "install a newer driver or an image with an older CUDA version"
        )
    kernels = _kernels(problems, "cuda" if torch.cuda.is_available() else "cpu")
    cpu, features = _cpu()
    slower = [f"{item.reason}: {item.message}" for item in fallbacks_here()]
    return Findings(
        __version__, device, capability, memory, facts["driver"], driver_cuda, facts["torch"], facts["cuda"],
        facts["triton"], kernels, _launches(), cpu, features, slower, problems,
    )  # fmt: skip


def gpu_problems(capability: str, architectures: list[str], driver_cuda: str, torch_cuda: str) -> list[str]:
    """Why kernels can't run on a GPU, each with the remedy; empty when they can."""
    problems = []
    compiles = any(name.startswith("compute_") for name in architectures)
    if not has_machine_code(capability, architectures) and not compiles:
        problems.append(
            f"torch was built for {', '.join(architectures)} and the GPU is sm_{capability.replace('.', '')}; "
            "use an image built for it"
        )
    if torch_cuda != "none" and _level(driver_cuda)[0] < _level(torch_cuda)[0]:
        problems.append(
            f"the driver supports CUDA {driver_cuda} and torch was built for {torch_cuda}; "
            f"install a driver for CUDA {torch_cuda} or use an image for CUDA {driver_cuda}"
        )
    return problems


def _level(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit()) or (0,)


def _kernels(problems: list[str], device: str) -> str:
    """Runs one small attention; the backend's name, or what went wrong."""
    import torch
    from octavo_kernels import AttentionShape, AttentionVariant, PagedAttention

    dtype = torch.float16 if device == "cuda" else torch.float32
    try:
        shape = AttentionShape(query_heads=2, kv_heads=1, head_size=64, page_size=16, dtype=dtype, kv_dtype=dtype)
        attention = PagedAttention(
            shape, AttentionVariant(), device=torch.device(device), backend="Auto", max_tokens=4, max_sequences=1
        )
        starts, lengths, pages = (
            torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 1], [1], [[1]])
        )
        attention.plan(starts, lengths, pages, None)
        q = torch.ones(1, 2, 64, dtype=dtype, device=device)
        kv = torch.ones(2, 2, 1, 16, 64, dtype=dtype, device=device)
        out = torch.zeros_like(q)
        attention.run(q, kv, out)
        if not torch.allclose(out, torch.ones_like(out), atol=1e-2):
            problems.append("the attention kernel runs and gives a wrong result; report this machine with this output")
    except (RuntimeError, ValueError, ImportError, NotImplementedError) as error:
        problems.append(f"the attention kernel does not run: {' '.join(str(error).split())[:300]}")
        return "none"
    return str(attention.backend)


def _launches() -> str:
    import torch
    from octavo_kernels.launch_table import capability_of, name_of, shipped

    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table = shipped(capability_of(place), name_of(place))
    return table.reason or f"{len(table.rows)} that come with the kernels, measured on {table.device}"


def _cpu() -> tuple[str, list[str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine(), []
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set((values.get("flags") or values.get("Features") or "").split())
    return values.get("model name", platform.machine()), [name for name in _INTERESTING if name in flags]
