"""Which image runs where: a table over drivers, accelerators and catalogues, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.api.placement_section import Vendor
from octavo_operator.plan import CatalogueImage
from octavo_operator.plan.accelerators import AcceleratorFacts, version
from octavo_operator.plan.image_choice import (
    FAST_KERNELS_CAPABILITY,
    FAST_KERNELS_CUDA,
    choose,
    choose_cpu,
    choose_cuda,
    covers,
)

ROOT = Path(__file__).resolve().parents[2]
VALUES = yaml.safe_load((ROOT / "charts" / "octavo" / "values.yaml").read_text())
BUILT = tuple(CatalogueImage.parse(entry) for entry in VALUES["serverImages"])
WITHOUT_128 = tuple(image for image in BUILT if image.name != "cuda12.8")
ONLY_126 = tuple(image for image in BUILT if image.name in ("cpu", "cuda12.6"))
ONLY_130 = tuple(image for image in BUILT if image.name == "cuda13.0")
OLD = (CatalogueImage("cuda12.4", "i:cuda12.4", "12.4", ("8.0", "9.0")),)
TWO = (*OLD, CatalogueImage("cuda11.8", "i:cuda11.8", "11.8", ("7.0", "8.0")))
PTX = (CatalogueImage("ptx", "i:ptx", "12.8", ("8.0",), ("8.0",)),)
WITH_PTX = tuple(replace(image, ptx=("12.0",)) if image.name == "cuda13.0" else image for image in BUILT)
ONLY_131 = (CatalogueImage("cuda13.1", "i:cuda13.1", "13.1", ("9.0", "12.0"), ("12.0",)),)
NONE: tuple[CatalogueImage, ...] = ()

NATIVE, MINOR, NO = "Native", "MinorVersion", ""
FINE, SLOW, DRIVER, ARCH = "Resolved", "KernelFallback", "DriverTooOld", "ArchitectureNotBuilt"

TABLE = [
    # catalogue, compute capability, driver's CUDA, driver → image, mode, reason
    # H100 and H200, from the newest driver down to the border of minor-version compatibility
    (BUILT, "9.0", "13.2", "595.45.04", "cuda13.0", NATIVE, FINE),
    (BUILT, "9.0", "13.0", "580.65.06", "cuda13.0", NATIVE, FINE),
    (BUILT, "9.0", "12.9", "575.57.08", "cuda12.8", NATIVE, FINE),
    (BUILT, "9.0", "12.8", "570.86.15", "cuda12.8", NATIVE, FINE),
    (BUILT, "9.0", "12.7", "565.57.01", "cuda12.6", NATIVE, FINE),
    (BUILT, "9.0", "12.6", "560.35.03", "cuda12.6", NATIVE, FINE),
    (BUILT, "9.0", "12.5", "555.42.06", "cuda12.8", MINOR, SLOW),
    (BUILT, "9.0", "12.4", "550.54.15", "cuda12.8", MINOR, SLOW),
    (BUILT, "9.0", "12.2", "535.183.06", "cuda12.8", MINOR, SLOW),
    (BUILT, "9.0", "12.0", "525.60.13", "cuda12.8", MINOR, SLOW),
    (BUILT, "9.0", "12.0", "525.60.12", None, NO, DRIVER),
    (BUILT, "9.0", "12.0", "525.60", None, NO, DRIVER),
    (BUILT, "9.0", "12.0", "", None, NO, DRIVER),
    (BUILT, "9.0", "11.8", "520.61.05", None, NO, DRIVER),
    (BUILT, "9.0", "11.4", "470.256.02", None, NO, DRIVER),
    # Three parts in the CUDA version, as some drivers tell it
    (BUILT, "9.0", "12.8.1", "570.124.06", "cuda12.8", NATIVE, FINE),
    # A100, A10, L4, L40S: machine code of the same major and a lower minor runs
    (BUILT, "8.0", "13.0", "580.65.06", "cuda13.0", NATIVE, FINE),
    (BUILT, "8.0", "12.4", "550.163.01", "cuda12.8", MINOR, SLOW),
    (BUILT, "8.6", "12.8", "570.172.08", "cuda12.8", NATIVE, FINE),
    (BUILT, "8.9", "12.8", "570.172.08", "cuda12.8", NATIVE, FINE),
    (BUILT, "8.9", "12.6", "560.35.03", "cuda12.6", NATIVE, FINE),
    # Turing on 13.x still has code, but no tensor cores in it; Volta and Pascal have none
    (BUILT, "7.5", "13.0", "580.65.06", "cuda13.0", NATIVE, SLOW),
    (BUILT, "7.5", "12.6", "560.35.03", "cuda12.6", NATIVE, SLOW),
    (ONLY_130, "7.5", "13.0", "580.65.06", "cuda13.0", NATIVE, SLOW),
    (ONLY_130, "7.5", "12.8", "570.86.15", None, NO, DRIVER),
    (ONLY_130, "7.0", "13.0", "580.65.06", None, NO, ARCH),
    (BUILT, "7.0", "13.0", "580.65.06", None, NO, ARCH),
    (BUILT, "7.0", "12.6", "560.35.03", None, NO, ARCH),
    (BUILT, "6.0", "12.8", "570.86.15", None, NO, ARCH),
    # B200: 12.6 has no code for it
    (BUILT, "10.0", "12.8", "570.86.15", "cuda12.8", NATIVE, FINE),
    (BUILT, "10.0", "13.0", "580.65.06", "cuda13.0", NATIVE, FINE),
    (BUILT, "10.0", "12.6", "560.35.03", "cuda12.8", MINOR, FINE),
    (BUILT, "10.3", "13.0", "580.65.06", "cuda13.0", NATIVE, FINE),
    (WITHOUT_128, "10.0", "12.8", "570.86.15", None, NO, DRIVER),
    (WITHOUT_128, "10.0", "13.0", "580.65.06", "cuda13.0", NATIVE, FINE),
    (ONLY_126, "10.0", "12.8", "570.86.15", None, NO, ARCH),
    # RTX 50 and RTX PRO 6000
    (BUILT, "12.0", "12.8", "570.86.15", "cuda12.8", NATIVE, FINE),
    (BUILT, "12.0", "12.6", "560.35.03", "cuda12.8", MINOR, FINE),
    (BUILT, "12.1", "13.0", "580.82.09", "cuda13.0", NATIVE, FINE),
    (ONLY_126, "12.0", "13.0", "580.65.06", None, NO, ARCH),
    # An accelerator of the future: code to compile on a driver of 13.x, nothing on 12.x, nothing without such code
    (WITH_PTX, "15.0", "13.0", "580.65.06", "cuda13.0", NATIVE, SLOW),
    (WITH_PTX, "15.0", "13.2", "595.45.04", "cuda13.0", NATIVE, SLOW),
    (WITH_PTX, "15.0", "12.8", "570.86.15", None, NO, DRIVER),
    (BUILT, "15.0", "13.2", "595.45.04", None, NO, ARCH),
    # The border of minor-version compatibility within 13.x
    (ONLY_131, "9.0", "13.1", "590.44.01", "cuda13.1", NATIVE, FINE),
    (ONLY_131, "9.0", "13.0", "580.65.06", "cuda13.1", MINOR, FINE),
    (ONLY_131, "9.0", "13.0", "580.65.05", None, NO, DRIVER),
    (ONLY_131, "9.0", "12.9", "575.57.08", None, NO, DRIVER),
    (ONLY_131, "15.0", "13.0", "580.65.06", None, NO, DRIVER),
    # One image for 13.x alone: 12.x drivers of no age run it
    (ONLY_130, "9.0", "12.9", "575.57.08", None, NO, DRIVER),
    (ONLY_130, "9.0", "13.0", "580.65.06", "cuda13.0", NATIVE, FINE),
    # Images older than the fast kernels, and two majors
    (OLD, "9.0", "12.8", "570.86.15", "cuda12.4", NATIVE, SLOW),
    (OLD, "9.0", "12.2", "535.183.06", "cuda12.4", MINOR, SLOW),
    (TWO, "8.0", "11.8", "520.61.05", "cuda11.8", NATIVE, SLOW),
    (TWO, "8.0", "12.0", "525.60.13", "cuda11.8", NATIVE, SLOW),
    (TWO, "7.0", "12.8", "570.86.15", "cuda11.8", NATIVE, SLOW),
    # Code to compile needs a native driver
    (PTX, "9.0", "12.8", "570.86.15", "ptx", NATIVE, SLOW),
    (PTX, "9.0", "12.6", "560.35.03", None, NO, DRIVER),
    (PTX, "7.5", "12.8", "570.86.15", None, NO, ARCH),
    # Nothing to choose from
    (NONE, "9.0", "12.8", "570.86.15", None, NO, ARCH),
]


@pytest.mark.parametrize(("images", "capability", "cuda", "driver", "name", "fit", "reason"), TABLE)
def test_the_image_the_mode_and_the_reason_are_those_of_the_table(images, capability, cuda, driver, name, fit, reason):
    found = choose_cuda(images, capability, cuda, driver)
    assert (found.image.name if found.image else None, found.fit, found.reason) == (name, fit, reason), found.message


def test_the_table_holds_at_least_forty_different_rows():
    assert len({(*row[1:], tuple(image.name for image in row[0])) for row in TABLE}) >= 40


@pytest.mark.parametrize(("images", "capability", "cuda", "driver", "name", "fit", "reason"), TABLE)
def test_what_is_not_best_names_an_upgrade_and_following_it_helps(images, capability, cuda, driver, name, fit, reason):
    found = choose_cuda(images, capability, cuda, driver)
    if (fit, reason) == (NATIVE, FINE):
        assert found.upgrade == ""
        return
    assert found.upgrade
    if reason == DRIVER:
        wanted = found.upgrade.split("the driver to ")[1].split()[0]
        if wanted == "one":
            assert "supports CUDA 13.1" in found.upgrade, "no first driver is known for it"
            return
        assert version(driver) < version(wanted)
        major = {"525": "12.0", "570": "12.8", "580": "13.0"}[wanted.split(".")[0]]
        assert choose_cuda(images, capability, major, wanted).image is not None


def test_a_refusal_names_both_versions():
    message = choose_cuda(BUILT, "9.0", "11.8", "520.61.05").message
    assert "520.61.05" in message
    assert "12.6" in message
    assert "525.60.13" in message


def test_a_fallback_is_said_with_its_cause_and_the_way_out():
    found = choose_cuda(BUILT, "9.0", "12.4", "550.54.15")
    assert found.fallback
    assert "12.4" in found.message
    assert "560.28.03" in found.message


CAPABILITIES = st.sampled_from(["7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "15.0"])
LEVELS = st.sampled_from(["11.8", "12.0", "12.2", "12.4", "12.6", "12.8", "12.9", "13.0", "13.2", ""])
DRIVERS = st.sampled_from(["470.1.1", "525.60.12", "525.60.13", "570.26", "580.65.06", "595.1.1", ""])
CATALOGUES = st.lists(st.sampled_from([*BUILT, *TWO, *PTX]), unique=True)


@given(CATALOGUES, CAPABILITIES, LEVELS, DRIVERS)
def test_no_choice_ever_needs_more_than_the_driver_gives(images, capability, cuda, driver):
    found = choose_cuda(images, capability, cuda, driver)
    if found.image is None:
        assert found.reason in (DRIVER, ARCH)
        return
    needs, has = version(found.image.cuda), version(cuda)
    assert needs <= has if found.fit == NATIVE else needs[0] == has[0]
    assert covers(found.image, capability) == "SASS" or found.fit == NATIVE
    below = needs < version(FAST_KERNELS_CUDA) or has < version(FAST_KERNELS_CUDA)
    slow = covers(found.image, capability) == "PTX" or version(capability) < version(FAST_KERNELS_CAPABILITY)
    assert bool(found.fallback) == (below or slow)


@given(CATALOGUES, CAPABILITIES, LEVELS, DRIVERS, st.randoms())
def test_the_order_of_the_catalogue_decides_nothing(images, capability, cuda, driver, random):
    turned = list(images)
    random.shuffle(turned)
    assert choose_cuda(turned, capability, cuda, driver) == choose_cuda(images, capability, cuda, driver)


def accelerator(vendor=Vendor.NVIDIA, capability="9.0", cuda="12.8", driver="570.86.15"):
    product = "NVIDIA-H100-80GB-HBM3" if vendor == Vendor.NVIDIA else "AMD_Instinct_MI300X_OAM"
    return AcceleratorFacts(vendor, product, product, capability, "", "nvidia.com/gpu", 0, driver, cuda, 8)


def test_a_pinned_image_is_compared_with_the_driver_alone():
    pin = CatalogueImage("pinned", "r/i:1", "12.8")
    assert choose(BUILT, pin, accelerator()).fit == NATIVE
    assert choose(BUILT, pin, accelerator(cuda="12.4", driver="550.54.15")).fit == MINOR
    assert choose(BUILT, CatalogueImage("pinned", "r/i:1", "13.0"), accelerator()).reason == DRIVER


def test_no_catalogue_image_runs_on_amd_and_a_pinned_one_is_taken_at_its_owners_word():
    amd = accelerator(Vendor.AMD, "", "", "6.10.5")
    refused = choose(BUILT, None, amd)
    assert (refused.image, refused.reason) == (None, "VendorNotBuilt")
    assert "MI300X" in refused.message
    assert choose(BUILT, CatalogueImage("pinned", "r/rocm:1"), amd).fit == "Pinned"


def test_a_catalogue_without_a_cpu_image_says_so():
    found = choose_cpu(ONLY_130)
    assert found.reason == "NoCPUImage"
    assert found.message.endswith(found.upgrade)
    assert "serverImages" in found.upgrade
    assert choose_cpu(BUILT).image == BUILT[0]


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "x"},
        {"image": "r/i"},
        {"name": "x", "image": "r/i", "cuda": "twelve"},
        {"name": "x", "image": "", "cuda": ""},
    ],
)
def test_a_catalogue_entry_that_makes_no_sense_is_refused_with_its_words(entry):
    with pytest.raises(ValueError, match="image catalogue"):
        CatalogueImage.parse(entry)
