"""The small pure decisions: spread, quantities, image choice, facts from labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.api.placement_section import PlacementSection
from octavo_operator.plan.facts import CatalogueImage
from octavo_operator.plan.image_choice import choose_cuda
from octavo_operator.plan.node_types import read_accelerator, resolve
from octavo_operator.plan.quantities import canonical, quantity
from octavo_operator.plan.spread import spread

IMAGES = [
    CatalogueImage("cu124", "i:cu124", "12.4", ("8.0", "9.0")),
    CatalogueImage("cu128", "i:cu128", "12.8", ("8.0", "9.0", "10.0")),
    CatalogueImage("cpu", "i:cpu"),
]
H200 = {
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.memory": "143771",
    "nvidia.com/cuda.runtime-version.full": "12.8",
    "nvidia.com/cuda.driver-version.full": "570.86.15",
}
types = st.sampled_from("abcd")
counts = st.dictionaries(types, st.integers(0, 6))


@given(st.integers(0, 20), counts, counts, st.dictionaries(types, st.integers(1, 9), min_size=1))
def test_spread_keeps_the_total_and_moves_as_little_as_it_can(total, current, free, cost):
    shares = spread(total, current, free, cost)
    assert sum(shares.values()) == total
    moved = sum(abs(shares.get(name, 0) - current.get(name, 0)) for name in {*shares, *current})
    assert moved == abs(total - sum(current.values()))


@given(counts, st.dictionaries(types, st.integers(1, 9), min_size=2))
def test_spread_removes_from_the_dearest_type(current, cost):
    before = {name: count for name, count in current.items() if count and name in cost}
    if before:
        after = spread(sum(before.values()) - 1, before, {}, cost)
        smaller = next(name for name in before if after.get(name, 0) < before[name])
        assert cost[smaller] == max(cost[name] for name in before)


def test_spread_fills_the_cheapest_free_type_first_and_leaves_the_rest_pending_there():
    assert spread(5, {}, {"a": 2, "b": 1}, {"a": 1, "b": 2}) == {"a": 4, "b": 1}


@pytest.mark.parametrize(
    ("written", "spelling"),
    [("1000m", "1"), ("0.5", "500m"), ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), (2, "2"), ("1000M", "1G"), ("0", "0")],
)
def test_a_quantity_is_spelled_as_the_api_server_would(written, spelling):
    assert canonical(written) == spelling


@given(st.integers(0, 10**6), st.sampled_from(["", "m", "k", "M", "Gi", "Ki"]))
def test_a_canonical_quantity_has_the_same_value(number, unit):
    assert quantity(canonical(f"{number}{unit}")) == quantity(f"{number}{unit}")


@pytest.mark.parametrize(
    ("capability", "cuda", "driver", "name", "fit"),
    [
        ("9.0", "12.8", "570.86.15", "cu128", "Native"),
        ("9.0", "12.6", "560.35.03", "cu124", "Native"),
        ("10.0", "12.6", "560.35.03", "cu128", "MinorVersion"),
        ("9.0", "13.0", "580.65.06", "cu128", "Native"),
    ],
)
def test_the_newest_image_that_the_driver_runs_is_chosen(capability, cuda, driver, name, fit):
    choice = choose_cuda(IMAGES, capability, cuda, driver)
    assert choice.image is not None
    assert (choice.image.name, choice.fit) == (name, fit)


def test_an_image_newer_than_the_driver_is_refused_with_both_versions():
    choice = choose_cuda(IMAGES, "9.0", "11.8", "520.61.05")
    assert choice.reason == "DriverTooOld"
    assert "520.61.05" in choice.message
    assert "12.4" in choice.message


def test_a_capability_that_no_image_covers_is_refused():
    assert choose_cuda(IMAGES, "7.0", "12.8", "570.86.15").reason == "ArchitectureNotBuilt"


def gpu(labels, name="g1", count="8"):
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": count}}}


def test_current_and_deprecated_labels_are_read_alike():
    facts, _ = read_accelerator(gpu(H200))
    old = {key: value for key, value in H200.items() if "version" not in key}
    old |= {"nvidia.com/cuda.runtime.major": "12", "nvidia.com/cuda.runtime.minor": "8"}
    old |= {
        f"nvidia.com/cuda.driver.{part}": value for part, value in (("major", "570"), ("minor", "86"), ("rev", "15"))
    }
    again, _ = read_accelerator(gpu(old))
    assert facts is not None
    assert again == facts


@pytest.mark.parametrize(
    ("product", "sharing"),
    [("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "1g.10gb"), ("NVIDIA-L4-SHARED", "SHARED"), ("NVIDIA-L4", "")],
)
def test_sharing_is_read_from_the_product(product, sharing):
    facts, _ = read_accelerator(gpu({**H200, "nvidia.com/gpu.product": product}))
    assert facts is not None
    assert facts.sharing == sharing


@pytest.mark.parametrize(
    "label", ["nvidia.com/gpu.product", "nvidia.com/gpu.compute.major", "nvidia.com/cuda.runtime-version.full"]
)
@pytest.mark.parametrize("value", [None, "", "MIG-INVALID"])
def test_a_missing_or_odd_label_is_a_reason_and_never_an_exception(label, value):
    labels = {key: text for key, text in {**H200, label: value}.items() if text is not None}
    facts, reason = read_accelerator(gpu(labels))
    assert facts is None
    assert "g1" in reason


def placement(**fields):
    return PlacementSection.model_validate(fields)


def test_cpu_nodes_serve_only_where_no_accelerator_fits():
    cpu = {"metadata": {"name": "c1", "labels": {}}, "status": {"allocatable": {"cpu": "4"}}}
    nodes = [cpu, gpu(H200)]
    products = {
        mode: [t.hardware.product for t in resolve(placement(cpu=mode), nodes, IMAGES, None).types]
        for mode in ("Allowed", "Required", "Forbidden")
    }
    assert products == {"Allowed": ["NVIDIA-H200"], "Required": ["CPU"], "Forbidden": ["NVIDIA-H200"]}
    assert [t.hardware.product for t in resolve(placement(), [cpu], IMAGES, None).types] == ["CPU"]
    assert resolve(placement(cpu="Forbidden"), [cpu], IMAGES, None).types == ()


def test_an_h200_is_not_taken_for_another_product_and_memory_counts():
    nodes = [gpu(H200)]
    assert not resolve(placement(accelerators=[{"products": ["NVIDIA-H100"]}]), nodes, IMAGES, None).types
    assert resolve(placement(accelerators=[{"minMemoryGiB": 141}]), nodes, IMAGES, None).types
    assert not resolve(placement(accelerators=[{"minMemoryGiB": 180}]), nodes, IMAGES, None).types


def test_a_tainted_node_fits_only_a_service_that_tolerates_it():
    node = {
        "metadata": {"name": "c1", "labels": {}},
        "spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]},
    }
    assert not resolve(placement(cpu="Required"), [node], IMAGES, None).types
    accepted = placement(cpu="Required", tolerations=[{"key": "team", "value": "a"}])
    assert resolve(accepted, [node], IMAGES, None).types


def test_a_node_that_arrives_changes_no_key():
    one = resolve(placement(), [gpu(H200)], IMAGES, None).types
    two = resolve(placement(), [gpu(H200), gpu({**H200, "nvidia.com/gpu.memory": "1"}, "g2")], IMAGES, None).types
    assert [t.label for t in one] == [t.label for t in two]
