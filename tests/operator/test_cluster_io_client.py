"""Which API server the operator's commands talk to."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from octavo_operator.cluster.client import ApiError, connect


def kubeconfig(file: Path, server: str) -> Path:
    file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                "clusters": [{"name": "here", "cluster": {"server": server}}],
                "users": [{"name": "me", "user": {"token": "secret"}}],
            }
        )
    )
    return file


async def test_the_kubeconfig_is_the_one_named_when_connecting_not_when_importing(tmp_path, monkeypatch):
    for name in ("first", "second"):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / name, f"https://{name}.example:6443")))
        async with connect(tmp_path / "no-account") as client:
            assert client._api.configuration.host == f"https://{name}.example:6443"


@pytest.mark.parametrize("value", ["absent", "absent:gone"])
async def test_a_missing_kubeconfig_is_told_with_its_path_and_the_way_out(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", value)
    with pytest.raises(ApiError, match=f"no kubeconfig at {value}; set KUBECONFIG"):
        async with connect(tmp_path / "no-account"):
            pass


async def test_without_the_variable_the_default_place_is_read(tmp_path, monkeypatch):
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config", "https://home.example:6443")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    async with connect(tmp_path / "no-account") as client:
        assert client._api.configuration.host == "https://home.example:6443"
