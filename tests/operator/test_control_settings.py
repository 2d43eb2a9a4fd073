"""Flags and environment of octavo-operator: each wrong value ends with one line and exit code 2."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from octavo_operator.__main__ import _parser, _settings, main
from octavo_operator.installed import SELECTOR, Installed, find_installed
from octavo_operator.settings import SettingsError

CATALOGUE = "images:\n- {name: cpu, image: octavo/octavo-server:1, cuda: '', computeCapabilities: []}\n"


@pytest.fixture
def catalogue(tmp_path):
    path = tmp_path / "images.yaml"
    path.write_text(CATALOGUE)
    return str(path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "99999"], "--port 99999: must lie between 1 and 65535"),
        (["--port", "many"], "--port: invalid int value: 'many'"),
        (["--workers", "0"], "--workers 0: must lie between 1 and 64"),
        (["--resync-seconds", "nan"], "--resync-seconds nan"),
        (["--lease-seconds", "5"], "each must be longer than the next"),
        (["--log-level", "loud"], "invalid choice: 'loud'"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_a_wrong_flag_ends_with_one_line_and_exit_code_2(flags, said, catalogue, capsys):
    try:
        code = main(["run", "--catalogue", catalogue, *flags])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr().err
    assert code == 2
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("images: [", "can't be read as YAML"),
        ("pictures: []", "holds no list `images`"),
        ("images:\n- {name: cpu}", "lacks 'image'"),
    ],
)
def test_a_wrong_catalogue_is_named_with_its_fault(text, said, tmp_path, capsys):
    path = tmp_path / "images.yaml"
    if text is not None:
        path.write_text(text)
    assert main(["run", "--catalogue", str(path)]) == 2
    told = capsys.readouterr().err
    assert str(path) in told
    assert said in told


def test_a_missing_catalogue_is_asked_for(capsys):
    assert main(["run"]) == 2
    assert "--catalogue is missing" in capsys.readouterr().err


class Cluster:
    """Deployments and one ConfigMap behind the client's two verbs."""

    def __init__(self, *deployments):
        self.deployments = deployments

    async def list(self, resource, namespace=None, *, selector=""):
        assert (resource.kind, selector) == ("Deployment", SELECTOR)
        return list(self.deployments)

    async def get(self, resource, namespace, name):
        assert (resource.kind, namespace, name) == ("ConfigMap", "ops", "octavo-images")
        return {"data": {"images.yaml": CATALOGUE}}


def operator(name, *arguments):
    pod = {"containers": [{"args": ["run", *arguments]}], "volumes": [{"configMap": {"name": "octavo-images"}}]}
    return {"metadata": {"namespace": "ops", "name": name}, "spec": {"template": {"spec": pod}}}


async def test_explain_takes_the_flags_and_images_of_the_operator_that_is_installed():
    flags = (
        "--host",
        "$(POD_IP)",
        "--catalogue",
        "/etc/octavo/images.yaml",
        "--workers",
        "9",
        "--argument-prefixes=--x",
    )
    found = await find_installed(Cluster(operator("octavo", *flags)))
    assert found == Installed("ops/octavo", ("--workers", "9", "--argument-prefixes=--x"), CATALOGUE)


@pytest.mark.parametrize(("names", "said"), [([], "no operator is installed"), (["a", "b"], "(ops/a, ops/b)")])
async def test_explain_without_one_operator_asks_for_the_catalogue(names, said):
    with pytest.raises(SettingsError) as refused:
        await find_installed(Cluster(*map(operator, names)))
    assert said in str(refused.value)
    assert "give --catalogue FILE" in str(refused.value)


def test_a_reader_that_has_seen_enough_causes_no_traceback():
    command = f"set -o pipefail; {sys.executable} -m octavo_operator crds | head -n 1"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""
    assert ended.stdout.count("\n") == 1


def test_the_environment_sets_a_flag_and_the_flag_wins(monkeypatch, catalogue):
    monkeypatch.setenv("OCTAVO_OPERATOR_WORKERS", "7")
    monkeypatch.setenv("OCTAVO_OPERATOR_NAMESPACES", "a,b")
    monkeypatch.setenv("OCTAVO_OPERATOR_CATALOGUE", catalogue)
    monkeypatch.setenv("POD_NAMESPACE", "ops")
    found = _settings(_parser().parse_args(["run"]))
    assert (found.workers, found.namespaces, found.lease.namespace) == (7, ("a", "b"), "ops")
    assert _settings(_parser().parse_args(["run", "--workers", "3"])).workers == 3


def test_a_wrong_value_in_the_environment_is_refused_by_its_name(monkeypatch, capsys):
    monkeypatch.setenv("OCTAVO_OPERATOR_NODES_ACCESS", "maybe")
    with pytest.raises(SystemExit) as end:
        main(["run"])
    assert end.value.code == 2
    assert "OCTAVO_OPERATOR_NODES_ACCESS=maybe" in capsys.readouterr().err


def test_two_processes_of_one_pod_name_are_two_identities(catalogue):
    flags = _parser().parse_args(["run", "--catalogue", catalogue])
    assert _settings(flags).lease.identity != _settings(flags).lease.identity


def test_crds_prints_all_crds_as_yaml(capsys):
    assert main(["crds"]) == 0
    names = [item["metadata"]["name"] for item in yaml.safe_load_all(capsys.readouterr().out)]
    assert names == ["inferenceservices.serving.octavo.dev", "tuningprofiles.serving.octavo.dev"]
