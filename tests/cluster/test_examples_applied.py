"""Every manifest in examples/ is taken by a real API server, with all kinds that it names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NO_MANIFESTS = {"prometheus-adapter-values.yaml": "values of another project's chart"}
KEDA = ROOT / "tests" / "scaling" / "keda" / "scaledobjects.yaml"
FILES = sorted(path for path in EXAMPLES.glob("*.yaml") if path.name not in NO_MANIFESTS)
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kubectl(control_plane):
    """Octavo's kinds and KEDA's are served, as on a cluster where both are installed."""

    def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(control_plane.program("kubectl")), "--kubeconfig", str(control_plane.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    for words in (("-k", str(ROOT / "crds")), ("-f", str(KEDA))):
        done = run("apply", "--server-side", "--force-conflicts", *words)
        assert done.returncode == 0, done.stderr
    done = run("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    assert done.returncode == 0, done.stderr
    return run


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_api_server_takes_every_object_of_the_example(kubectl, path):
    objects = [item for item in yaml.safe_load_all(path.read_text()) if item]
    assert objects
    done = kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", str(path))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_misspelt_field_of_the_example_would_be_refused(kubectl, path):
    """Else the test above would pass whatever stands there."""
    text = path.read_text()
    assert text.count("  model:\n") == 1
    wrong = text.replace("  model:\n", "  modell: {}\n  model:\n")
    done = kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=wrong)
    assert done.returncode != 0
    assert "modell" in done.stderr
