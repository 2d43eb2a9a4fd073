"""`make dist`: a release is complete, its wheels work by themselves, and two builds are the same bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from octavo_localcluster.programs import PROGRAMS, ensure_programs

from scripts.dist import crd_bundle
from scripts.versions import PACKAGES, python_version, version

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "octavo_operator": ("octavo-operator",),
    "octavo_server": ("octavo-server",),
    "octavo_cli": ("octavo", "kubectl-octavo"),
    "octavo_localcluster": ("octavo-localcluster",),
    "octavo_kernels": (),
}


@dataclass(frozen=True)
class Built:
    folder: Path
    told: str


def run(*command: str, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def build(folder: Path, **environment: str) -> Built:
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse"], capture_output=True, check=False).returncode:
        pytest.skip("a release is built from a git checkout, and this is none")
    script = str(ROOT / "scripts" / "dist.py")
    return Built(folder, run(sys.executable, script, "--output", str(folder), **environment))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("release") / "dist")


def wheel(built: Built, module: str) -> Path:
    [path] = built.folder.glob(f"{module}-*.whl")
    return path


def test_a_release_holds_five_wheels_a_chart_the_images_context_the_crds_and_checksums_that_hold(built):
    now = version()
    wheels = {f"{module}-{python_version(now)}-py3-none-any.whl" for module in COMMANDS}
    others = {f"octavo-{now}.tgz", f"octavo-images-{now}.tar.gz", f"octavo-crds-{now}.yaml", "SHA256SUMS"}
    names = {path.name for path in built.folder.iterdir()}
    assert names == wheels | others
    assert all(re.search(rf"^dist: .*{re.escape(name)}$", built.told, re.MULTILINE) for name in names)
    checked = run("sha256sum", "--check", "--strict", "SHA256SUMS", folder=built.folder)
    assert checked.count(": OK") == len(names) - 1


def test_two_builds_on_machines_that_differ_are_the_same_bytes(built, tmp_path):
    old = os.umask(0o077)
    try:
        again = build(tmp_path / "dist", TZ="Asia/Tokyo", LC_ALL="C", TMPDIR=str(tmp_path))
    finally:
        os.umask(old)
    assert (again.folder / "SHA256SUMS").read_text() == (built.folder / "SHA256SUMS").read_text()


@pytest.mark.parametrize("module", COMMANDS)
def test_a_wheel_in_a_fresh_environment_runs_its_programs(built, module, tmp_path):
    """Its dependencies are those of this environment, whose own copies of Octavo are not found from there."""
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"))
    pip = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(python)]
    needed = {"octavo_cli": ["octavo_operator"], "octavo_server": ["octavo_kernels"]}.get(module, [])
    run(*pip, *(str(wheel(built, name)) for name in (module, *needed)))
    folder = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (folder / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    place = run(str(python), "-c", f"import {module}; print({module}.__file__)", folder=tmp_path).strip()
    assert Path(place).is_relative_to(tmp_path)
    for command in COMMANDS[module]:
        program = str(python.with_name(command))
        assert "usage:" in run(program, "--help", folder=tmp_path)
        assert run(program, "--version", folder=tmp_path).split()[1] == python_version(version())


def test_helm_takes_the_packaged_chart_and_it_renders_as_the_sources_do(built):
    helm = str(ensure_programs(print, [PROGRAMS["helm"]])["helm"])
    packed = str(built.folder / f"octavo-{version()}.tgz")
    about = yaml.safe_load(run(helm, "show", "chart", packed))
    assert (about["version"], about["appVersion"]) == (version(), version())
    rendered = [run(helm, "template", "octavo", chart) for chart in (packed, str(ROOT / "charts" / "octavo"))]
    assert rendered[0] == rendered[1]
    assert "kind: CustomResourceDefinition" in rendered[0]


def test_the_images_context_holds_what_the_dockerfiles_copy_and_no_more_than_builders_may_read(built, tmp_path):
    with tarfile.open(built.folder / f"octavo-images-{version()}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    [root] = tmp_path.iterdir()
    assert root.name == f"octavo-images-{version()}"
    for dockerfile in ("operator/Dockerfile", "server_image/Dockerfile"):
        for source in re.findall(r"^COPY (?!--from)(\S+) ", (root / dockerfile).read_text(), re.MULTILINE):
            assert (root / source).exists(), f"{dockerfile} copies {source}"
    assert (root / "server_image" / "docker-bake.json").is_file()
    allowed = re.findall(r"^!(\S+)", (root / ".dockerignore").read_text(), re.MULTILINE)
    assert {path.name for path in root.iterdir() if path.is_dir()} == set(allowed)


def test_a_build_leaves_alone_what_it_did_not_make_and_replaces_what_it_did(built, tmp_path):
    kept, gone = tmp_path / "notes.txt", tmp_path / "octavo_cli-0.0.1-py3-none-any.whl"
    for path in (kept, gone):
        path.write_text("x")
    build(tmp_path)
    assert kept.exists()
    assert not gone.exists()


def test_a_time_that_is_none_is_refused_in_one_line(tmp_path):
    script = str(ROOT / "scripts" / "dist.py")
    done = subprocess.run([sys.executable, script, "--output", str(tmp_path)], capture_output=True, text=True,
                          env={**os.environ, "SOURCE_DATE_EPOCH": "yesterday"}, check=False)  # fmt: skip
    assert done.returncode == 1
    assert "SOURCE_DATE_EPOCH=yesterday: must be seconds" in done.stderr


@pytest.mark.cluster
def test_the_api_server_takes_the_crd_bundle(control_plane, tmp_path):
    bundle = tmp_path / "crds.yaml"
    bundle.write_text(crd_bundle())
    command = [str(control_plane.program("kubectl")), "--kubeconfig", str(control_plane.kubeconfig)]
    told = run(*command, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(bundle))
    names = {item["metadata"]["name"] for item in yaml.safe_load_all(bundle.read_text())}
    assert names == {"inferenceservices.serving.octavo.dev", "tuningprofiles.serving.octavo.dev"}
    assert all(name in told for name in names)


def test_every_package_of_the_workspace_is_in_a_release():
    workspace = re.search(r"members = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    assert workspace is not None
    assert set(PACKAGES) == set(re.findall(r'"(\w+)"', workspace[1]))
