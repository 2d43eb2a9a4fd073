"""What the operator says of an image on a node, the server says of itself there: both gates give the same answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from octavo_operator.plan import CatalogueImage
from octavo_operator.plan.image_choice import FAST_KERNELS_CAPABILITY, FAST_KERNELS_CUDA, choose_cuda, covers
from octavo_server import compatibility

ROOT = Path(__file__).resolve().parents[2]
VALUES = yaml.safe_load((ROOT / "charts" / "octavo" / "values.yaml").read_text())
IMAGES = [CatalogueImage.parse(entry) for entry in VALUES["serverImages"]]
DRIVERS = [
    ("525.60.13", "12.0"),
    ("550.54.15", "12.4"),
    ("560.35.03", "12.6"),
    ("570.86.15", "12.8"),
    ("580.65.06", "13.0"),
]
CAPABILITIES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "15.0"]


def wheel(image: CatalogueImage) -> list[str]:
    """As torch would list what this image holds."""
    sass = [f"sm_{text.replace('.', '')}" for text in image.architectures]
    return sass + [f"compute_{text.replace('.', '')}" for text in image.ptx]


def test_both_promise_the_fast_kernels_from_the_same_version_on():
    assert compatibility.FAST_KERNELS_CUDA == FAST_KERNELS_CUDA
    assert compatibility.FAST_KERNELS_CAPABILITY == FAST_KERNELS_CAPABILITY


@pytest.mark.parametrize(("driver", "cuda"), DRIVERS)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_fallback_that_one_side_states_the_other_states_too(capability, driver, cuda):
    choice = choose_cuda(IMAGES, capability, cuda, driver)
    if choice.image is None:
        assert not any(covers(image, capability) == "SASS" and image.cuda <= cuda for image in IMAGES if image.cuda)
        return
    found = compatibility.fallbacks(capability, wheel(choice.image), cuda, choice.image.cuda or "")
    assert bool(found) == bool(choice.fallback), (choice, found)
