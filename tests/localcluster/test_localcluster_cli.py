"""The command's input is checked, and wrong input ends with one line and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo_localcluster.__main__ import build_parser, describe, main
from octavo_localcluster.state import ClusterState, ComponentState, Crash


def test_help_names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for word in ("up", "down", "status", "kubeconfig", "logs", "programs", "exit codes"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--nodes", "{tmp}/missing.yaml"], "missing.yaml: No such file"),
        (["up", "--nodes", "{tmp}/bad.yaml"], "nodes[0].capacity.cpu: 'lots'"),
        (["up", "--folder", "{tmp}"], "choose an empty --folder"),
        (["up", "--simulation-stages", "{tmp}/none.yaml"], "none.yaml: no such file"),
        (["down", "--folder", "{tmp}"], "which is no cluster's"),
    ],
)
def test_wrong_input_ends_with_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text("nodes: [{name: a, capacity: {cpu: lots}}]")
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    if "--folder" not in given:
        given += ["--folder", str(tmp_path / "cluster")]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize("arguments", [[], ["sideways"], ["up", "--simulated-nodes", "-3"], ["logs", "-n", "many"]])
def test_an_unknown_command_or_number_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(arguments)
    assert ended.value.code == 2


def test_commands_that_need_a_cluster_say_when_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(tmp_path / "cluster")]
    assert main(["kubeconfig", *folder]) == 1
    assert main(["status", *folder]) == 1
    assert main(["logs", *folder]) == 1
    assert main(["down", *folder]) == 0
    shown = capsys.readouterr()
    assert "no cluster runs in" in shown.err
    assert "there is no cluster in" in shown.err
    assert "no cluster in" in shown.out
    assert not (tmp_path / "cluster").exists()


def test_status_shows_what_crashed_and_what_it_said_last() -> None:
    crash = Crash(at=0, exit="exit code 1", log_end="bad day\nsegmentation fault")
    components = {"etcd": ComponentState(pid=7), "agent": ComponentState(restarts=2, last_crash=crash)}
    text = describe(ClusterState(phase="ready", supervisor_pid=1, components=components), True, Path("/c"))
    assert "etcd                     process 7, restarts: 0" in text
    assert "agent                    not running, restarts: 2" in text
    assert "with exit code 1" in text
    assert "  bad day\n  segmentation fault" in text


def test_status_of_remains_does_not_claim_that_something_runs() -> None:
    state = ClusterState(phase="ready", supervisor_pid=1, components={"etcd": ComponentState(pid=7)})
    text = describe(state, False, Path("/c"))
    assert "not running: its processes ended without `down`" in text
    assert "process 7" not in text
