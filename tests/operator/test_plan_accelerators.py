"""What labels and resources of a node say: every spelling is read, nothing odd is guessed, nothing raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.api.placement_section import Vendor
from octavo_operator.plan.accelerators import has_accelerator, read_accelerators
from octavo_operator.plan.inventory import view
from octavo_operator.plan.server_contract import PRODUCT_OVERRIDE_LABEL

H100 = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/cuda.driver-version.full": "580.65.06",
    "nvidia.com/cuda.runtime-version.full": "13.0",
    "nvidia.com/cuda.runtime-version.major": "13",
    "nvidia.com/cuda.runtime-version.minor": "0",
}
MI300X = {
    "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
    "amd.com/gpu.vram": "191G",
    "amd.com/gpu.family": "AI",
    "amd.com/gpu.driver-version": "6.10.5",
}


def gpu_node(labels, resources=None):
    return {
        "metadata": {"name": "n1", "labels": labels},
        "status": {"allocatable": resources if resources is not None else {"nvidia.com/gpu": "8"}},
    }


def the(labels, resources=None):
    [found], notes = read_accelerators(gpu_node(labels, resources))
    assert notes == ()
    return found


def test_the_current_labels_are_read():
    found = the(H100)
    assert (found.vendor, found.product, found.capability) == (Vendor.NVIDIA, "NVIDIA-H100-80GB-HBM3", "9.0")
    assert (found.driver, found.cuda, found.memory_mib, found.count) == ("580.65.06", "13.0", 81559, 8)
    assert (found.sharing, found.resource, found.is_shared) == ("", "nvidia.com/gpu", False)


DEPRECATED = {
    "nvidia.com/cuda.driver.major": "580",
    "nvidia.com/cuda.driver.minor": "65",
    "nvidia.com/cuda.driver.rev": "06",
    "nvidia.com/cuda.runtime.major": "13",
    "nvidia.com/cuda.runtime.minor": "0",
}
PARTS = {
    "nvidia.com/cuda.driver-version.major": "580",
    "nvidia.com/cuda.driver-version.minor": "65",
    "nvidia.com/cuda.driver-version.revision": "06",
    "nvidia.com/cuda.runtime-version.major": "13",
    "nvidia.com/cuda.runtime-version.minor": "0",
}


@pytest.mark.parametrize("spelling", [DEPRECATED, PARTS])
def test_every_spelling_of_the_versions_is_read_alike(spelling):
    plain = {key: value for key, value in H100.items() if "/cuda." not in key}
    assert the({**plain, **spelling}) == the(H100)


def test_the_current_spelling_counts_when_both_are_there_and_a_stale_one_remains():
    assert the({**H100, **DEPRECATED, "nvidia.com/cuda.runtime.major": "11"}).cuda == "13.0"


@pytest.mark.parametrize(
    ("labels", "resources", "sharing", "product", "resource"),
    [
        # MIG of the single strategy: the product tells the slice, the resource is a whole GPU's
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"},
            {"nvidia.com/gpu": "7"},
            "1g.10gb",
            "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
            "nvidia.com/gpu",
        ),
        # with time-slicing on top
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED"},
            {"nvidia.com/gpu": "14"},
            "1g.10gb-SHARED",
            "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED",
            "nvidia.com/gpu",
        ),
        # Time-slicing, with the suffix, by the number of replicas, and under a resource of its own
        ({"nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}, None, "SHARED", "NVIDIA-L4-SHARED", "nvidia.com/gpu"),
        ({"nvidia.com/gpu.replicas": "4"}, None, "SHARED", "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu"),
        ({}, {"nvidia.com/gpu.shared": "4"}, "SHARED", "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.shared"),
        # MPS
        (
            {"nvidia.com/gpu.product": "NVIDIA-L4-SHARED", "nvidia.com/gpu.sharing-strategy": "mps"},
            None,
            "MPS",
            "NVIDIA-L4-SHARED",
            "nvidia.com/gpu",
        ),
    ],
)
def test_slices_and_shares_are_told_from_whole_accelerators(labels, resources, sharing, product, resource):
    found = the({**H100, **labels}, resources)
    assert (found.sharing, found.product, found.resource) == (sharing, product, resource)


def test_a_node_of_the_mixed_strategy_offers_each_kind_of_slice_and_its_whole_accelerators():
    labels = {
        **H100,
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-1g.10gb.memory": "9728",
        "nvidia.com/mig-3g.40gb.memory": "40448",
    }
    resources = {"nvidia.com/gpu": "6", "nvidia.com/mig-1g.10gb": "4", "nvidia.com/mig-3g.40gb": "1"}
    found, notes = read_accelerators(gpu_node(labels, resources))
    assert notes == ()
    assert [(item.product, item.sharing, item.memory_mib, item.count) for item in found] == [
        ("NVIDIA-H100-80GB-HBM3", "", 81559, 6),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "1g.10gb", 9728, 4),
        ("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", "3g.40gb", 40448, 1),
    ]
    assert {item.label for item in found} == {"NVIDIA-H100-80GB-HBM3"}


def test_an_override_replaces_the_product_and_nothing_else():
    found = the({**H100, PRODUCT_OVERRIDE_LABEL: "pool-a"})
    assert (found.product, found.label, found.capability) == ("pool-a", "NVIDIA-H100-80GB-HBM3", "9.0")
    missing = {key: value for key, value in H100.items() if key != "nvidia.com/gpu.product"}
    assert the({**missing, PRODUCT_OVERRIDE_LABEL: "pool-a"}).product == "pool-a"


@pytest.mark.parametrize("stem", ["amd.com/gpu", "beta.amd.com/gpu"])
def test_both_spellings_of_amds_labeller_are_read(stem):
    labels = {key.replace("amd.com/gpu", stem): value for key, value in MI300X.items()}
    found = the(labels, {"amd.com/gpu": "8"})
    assert (found.vendor, found.product, found.driver) == (Vendor.AMD, "AMD_Instinct_MI300X_OAM", "6.10.5")
    assert (found.memory_mib, found.resource, found.capability, found.count) == (191 * 1024, "amd.com/gpu", "", 8)


@pytest.mark.parametrize(
    ("label", "value"),
    [
        *(("nvidia.com/gpu.product", value) for value in (None, "")),
        *(("nvidia.com/gpu.compute.major", value) for value in (None, "", "x", "²")),
        *(("nvidia.com/cuda.runtime-version.major", value) for value in (None, "", "x", "013", "²")),
        *(("nvidia.com/cuda.runtime-version.minor", value) for value in (None, "", "x")),
        ("nvidia.com/cuda.runtime-version.full", "12.8"),
    ],
)
def test_a_missing_empty_or_odd_label_is_a_reason_that_names_the_node(label, value):
    labels = {key: text for key, text in {**H100, label: value}.items() if text is not None}
    found, [reason] = read_accelerators(gpu_node(labels))
    assert found == ()
    assert "n1" in reason
    assert label.rpartition(".")[0] in reason


def test_a_version_that_the_scheduler_cannot_compare_is_not_counted_on():
    labels = {key: value for key, value in H100.items() if not key.endswith(("version.major", "version.minor"))}
    found, [reason] = read_accelerators(gpu_node(labels))
    assert found == ()
    assert "runtime-version.major and .minor" in reason
    half = {**labels, "nvidia.com/cuda.runtime-version.major": "13", "nvidia.com/cuda.runtime.major": "12"}
    assert read_accelerators(gpu_node(half))[0] == (), "half a current spelling is not completed from the older one"


def test_an_invalid_mig_configuration_is_a_reason():
    found, [reason] = read_accelerators(
        gpu_node({**H100, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID"})
    )
    assert found == ()
    assert "MIG" in reason


def test_labels_that_outlive_the_device_plugin_keep_the_type_and_say_so():
    [found], [reason] = read_accelerators(gpu_node(H100, {"nvidia.com/gpu": "0"}))
    assert found.count == 0
    assert "device plugin" in reason


def test_accelerators_without_a_label_are_seen():
    found, [reason] = read_accelerators(gpu_node({}, {"nvidia.com/gpu": "1"}))
    assert found == ()
    assert "feature discovery" in reason
    found, [reason] = read_accelerators(gpu_node({}, {"amd.com/gpu": "1"}))
    assert "labeller" in reason


def test_a_plain_node_has_nothing_to_say():
    plain = gpu_node({}, {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "0"})
    assert not has_accelerator(plain)
    assert read_accelerators(plain) == ((), ())


KEYS = st.sampled_from(
    [
        *H100,
        *MI300X,
        *DEPRECATED,
        *PARTS,
        PRODUCT_OVERRIDE_LABEL,
        "nvidia.com/mig-1g.10gb.memory",
        "nvidia.com/mig.strategy",
        "beta.amd.com/gpu.vram",
    ]
)
WORDS = st.one_of(
    st.sampled_from(
        ["", "0", "9", "13", "²", "٣", "-1", "1e3", "99999999999999999999", "NVIDIA-L4-SHARED", "NVIDIA-MIG-",
         "MIG-INVALID",
         "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "580.65.06", "13.0", "1.", ".1", "64G", "G", "none", "mps"]
    ),
    st.text(max_size=12),
)  # fmt: skip
RESOURCES = st.dictionaries(
    st.sampled_from(
        ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared",
         "nvidia.com/mig-", "amd.com/gpu", "cpu", "memory"]
    ),
    st.sampled_from(["0", "1", "8", "", "x", "1Gi", "-1", 3]),
)  # fmt: skip


@given(st.dictionaries(KEYS, WORDS), RESOURCES)
def test_no_combination_of_labels_raises_and_every_accelerator_is_whole_or_told(labels, resources):
    found = view(gpu_node(labels, resources))
    for item in found.accelerators:
        assert item.product
        assert item.vendor == Vendor.AMD or (item.capability and item.cuda)
    if not found.is_plain:
        assert found.accelerators or found.notes


@given(st.dictionaries(KEYS, WORDS), RESOURCES)
def test_a_node_is_read_the_same_each_time(labels, resources):
    assert view(gpu_node(labels, resources)) == view(gpu_node(dict(reversed(labels.items())), resources))
