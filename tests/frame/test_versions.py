"""The file VERSION is the one place of the version: whatever else tells one tells the same."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import version as installed
from pathlib import Path

import pytest
import yaml

from scripts.versions import PACKAGES, python_version, version

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "octavo"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_of_the_version_and_so_is_what_is_installed(package):
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    assert project["version"] == python_version(version())
    assert installed(project["name"]) == project["version"]


def test_the_chart_and_its_app_are_of_the_version():
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (version(), version())


def test_every_image_that_is_built_or_named_by_the_chart_carries_the_version():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["image"]["tag"] == "", "empty stands for the chart's appVersion"
    bake = json.loads((ROOT / "server_image" / "docker-bake.json").read_text())["target"]
    tags = [tag for target in bake.values() for tag in target["tags"]]
    tags += [item["image"] for item in values["serverImages"]]
    assert len(tags) >= 9
    assert [tag for tag in tags if not re.fullmatch(rf"[\w/-]+:{re.escape(version())}(-[\w.]+)?", tag)] == []
    assert {target["args"]["VERSION"] for target in bake.values()} == {version()}


def test_the_changelog_begins_with_the_version_and_the_readme_tells_it():
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == version()
    assert f"The version is {version()}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("text", "wanted"), [("1.2.3", "1.2.3"), ("1.0.0-rc.2", "1.0.0rc2"),
                                              ("0.3.0-beta.1", "0.3.0b1")])  # fmt: skip
def test_a_version_is_spelled_as_python_wants_it(text, wanted):
    assert python_version(text) == wanted


def test_a_version_of_another_form_is_refused_by_name(tmp_path):
    (tmp_path / "VERSION").write_text("v1\n")
    with pytest.raises(ValueError, match="VERSION holds 'v1'"):
        version(tmp_path)
