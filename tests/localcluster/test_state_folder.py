"""A state folder belongs to one cluster; nothing of anybody else is ever removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from octavo_localcluster.cluster import Cluster, ClusterError, stop_folder
from octavo_localcluster.processes import end_marked, marked_processes
from octavo_localcluster.state import ClusterOptions, ClusterState, Folder, FolderError, log_end, write_json


def make_remains(path: Path) -> Folder:
    folder = Folder(path)
    path.mkdir(parents=True)
    write_json(folder.options_file, ClusterOptions(folder=path))
    write_json(folder.state_file, ClusterState(phase="ready", supervisor_pid=os.getpid()))
    (path / "logs").mkdir()
    folder.log("etcd").write_text("one\ntwo\nthree\n")
    return folder


def test_a_folder_with_anything_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FolderError, match=r"holds 'thesis\.txt'"):
        Folder(tmp_path).check_usable()
    with pytest.raises(FolderError, match=r"thesis\.txt"):
        stop_folder(Folder(tmp_path))
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="is no folder"):
        Folder(tmp_path / "file").check_usable()


def test_remains_are_not_taken_for_a_running_cluster_even_when_the_process_number_lives(tmp_path: Path) -> None:
    folder = make_remains(tmp_path / "cluster")
    assert folder.is_cluster()
    assert not folder.is_alive()
    with pytest.raises(ClusterError, match="cleared by `up` or `down`"):
        Cluster.attach(folder.path)


def test_down_removes_remains_and_does_not_follow_links_out_of_the_folder(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.gguf").touch()
    folder = make_remains(tmp_path / "cluster")
    (folder.path / "pods").mkdir()
    (folder.path / "pods" / "volume").symlink_to(model)
    (folder.path / "link").symlink_to(model)
    assert stop_folder(folder)
    assert not folder.path.exists()
    assert (model / "weights.gguf").exists()
    assert not stop_folder(folder), "a second down finds nothing"


def test_only_one_supervisor_lives_in_a_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with folder.hold_supervisor_lock():
        assert folder.is_alive()
        with pytest.raises(FolderError, match="already running"):
            folder.hold_supervisor_lock()
    assert not folder.is_alive()


def test_processes_left_behind_are_found_by_their_mark_and_ended_and_no_others(tmp_path: Path) -> None:
    def sleeper(folder: Path) -> subprocess.Popen[bytes]:
        # Ignores SIGTERM, as a stuck pod would.
        code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
        environment = {**os.environ, "OCTAVO_CLUSTER_FOLDER": str(folder)}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    ours, other = sleeper(tmp_path / "a"), sleeper(tmp_path / "ab")
    try:
        assert marked_processes(tmp_path / "a") == [ours.pid]
        assert end_marked(tmp_path / "a", grace_seconds=0.2) == [ours.pid]
        assert ours.wait(10) == -9
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.communicate()


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    folder = make_remains(tmp_path / "cluster")
    assert log_end(folder.log("etcd"), lines=2) == "two\nthree"
    assert log_end(folder.log("none")) == ""
    assert folder.logs() == ["etcd"]
