"""Kernels compiled by processes before their launches, without a GPU: what the launches then find in Triton's cache.

With the installed Triton and with the oldest that is supported. The interpreter, which other tests choose, compiles
nothing: this runs in processes of its own.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os
import sys
from dataclasses import replace
from pathlib import Path

if len(sys.argv) > 1:
    # torch comes from the environment of the tests, behind what the small one holds.
    sys.path.append(sys.argv[1])
import torch
from octavo_kernels.compile_ahead import Target, compile_ahead, recording, usable_cache_folder, use_target
from octavo_kernels.triton_fused import launch_gated, launch_rms_norm
from triton import knobs

target = Target("cuda", 80, 32)
use_target(target)


def step():
    x, out = torch.ones(4, 64, dtype=torch.bfloat16), torch.full((4, 64), 7.0, dtype=torch.bfloat16)
    launch_rms_norm(x, x[0], 1e-5, None, out)
    launch_rms_norm(x, x[0], 1e-5, x, out)
    launch_rms_norm(x[:2], x[0], 1e-5, x[:2], out[:2])
    launch_gated(torch.ones(4, 128, dtype=torch.bfloat16), out, "silu")
    return out


with recording() as launches:
    out = step()
assert (out == 7).all(), "a kernel ran while it was recorded"
assert [launch.name for launch in launches] == ["_rms_norm", "_rms_norm", "_gated_mul"], launches

seen = []
broken = replace(launches[0], name="_no_such_kernel")
done = compile_ahead([*launches, broken], target, processes=2, progress=lambda *count: seen.append(count))
assert (done.compiled, done.known, len(done.failures)) == (3, 0, 1), done
assert done.failures[0].startswith("_no_such_kernel: AttributeError"), done
assert sorted(seen) == [(1, 4), (2, 4), (3, 4), (4, 4)], seen
again = compile_ahead(launches, target, processes=2)
assert (again.compiled, again.known, again.failures) == (0, 3, []), again
other = [launch.mark(Target("cuda", 90, 32)) for launch in launches]
assert not {launch.mark(target) for launch in launches} & set(other)

# The launches themselves find what was compiled: they fail only where there is no device to launch on.
hits = []
knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
for launch in (
    lambda: launch_rms_norm(torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16), 1e-5, None,
                            torch.ones(4, 64, dtype=torch.bfloat16)),
    lambda: launch_gated(torch.ones(4, 128, dtype=torch.bfloat16), torch.ones(4, 64, dtype=torch.bfloat16), "silu"),
):
    try:
        launch()
    except AttributeError as error:
        assert "launcher_cls" in str(error), error
assert hits == [True, True], hits

# Time that is over ends the processes; whoever launches compiles.
cut = compile_ahead([replace(launches[0], data="{}")], target, processes=1, limit_seconds=0.0)
assert (cut.compiled, len(cut.failures)) == (0, 1), cut

file = Path(os.environ["TRITON_CACHE_DIR"]) / "a file"
file.write_text("")
os.environ["TRITON_CACHE_DIR"] = str(file / "below")
folder = usable_cache_folder()
assert os.environ["TRITON_CACHE_DIR"] == str(folder) and folder.is_dir() and folder.name.startswith("octavo-kernels-")
folder.rmdir()
print("ahead")
"""


def ran(python: Path | str, folder: Path, *arguments: str) -> None:
    program = folder / "ahead.py"
    program.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT / "kernels"), "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [str(python), str(program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.endswith("ahead\n")


def test_launches_find_what_processes_compiled_ahead_and_faults_change_nothing(tmp_path):
    ran(sys.executable, tmp_path)


def test_the_oldest_triton_does_the_same(tmp_path, oldest_python):
    ran(oldest_python, tmp_path, sysconfig.get_paths()["purelib"])
