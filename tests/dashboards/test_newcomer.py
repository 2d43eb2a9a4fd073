"""What an administrator goes through who breaks a node's labels: an alert that names the service, a runbook whose
commands tell the cause, a remedy, and quiet again – with the replica serving all the while."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.operator_process import wait_until
from dashboards.scene import RULES, Scene, running

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
LABEL = "nvidia.com/gpu.product"
KEPT = {"l4-1", "cpu-1"}
pytestmark = pytest.mark.cluster
until = partial(wait_until, seconds=90)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, prometheus_programs: dict[str, str]) -> Iterator[Scene]:
    """A model on the one L4 of a cluster; rules as shipped, but for how long they wait."""
    folder = tmp_path_factory.mktemp("newcomer")
    nodes = yaml.safe_load((ROOT / "localcluster" / "nodes" / "mixed-gpu.yaml").read_text())
    # The others' labels are odd on purpose.
    nodes["nodes"] = [item for item in nodes["nodes"] if item["name"] in KEPT]
    nodes["persistentVolumes"] = [item for item in nodes["persistentVolumes"] if item["node"] in KEPT]
    (folder / "nodes.yaml").write_text(yaml.safe_dump(nodes))
    (folder / "rules.yaml").write_text(re.sub(r"for: \w+", "for: 4s", RULES.read_text()))
    spec = {
        "engine": {},
        "placement": {"accelerators": [{"vendor": "NVIDIA", "products": ["NVIDIA-L4"]}]},
        "scaling": {"mode": "Fixed"},
    }
    program = prometheus_programs["prometheus"]
    parts = {"spec": spec, "nodes": folder / "nodes.yaml", "rules": folder / "rules.yaml"}
    with running(folder, program, **parts) as made:
        yield made


def alerts(scene: Scene) -> dict[str, dict[str, Any]]:
    """Firing alerts by name."""
    try:
        found = scene.ask("alerts")["alerts"]
    except httpx.TransportError:
        return {}
    return {item["labels"]["alertname"]: item for item in found if item["state"] == "firing"}


def runbook(alert: dict[str, Any]) -> str:
    """The page that the alert's own link leads to."""
    link = alert["annotations"]["runbook_url"]
    return (ROOT / link.rstrip("/")).with_suffix(".md").read_text()


def looked(scene: Scene, page: str, alert: dict[str, Any]) -> str:
    """Output of every command of the runbook's part "Look", as a person types them."""
    [block] = re.findall(r"## Look\n\n```bash\n(.*?)```", page, re.DOTALL)
    labels = alert["labels"]
    names = {"SERVICE": labels.get("service", ""), "NAMESPACE": labels.get("namespace", ""), "NODE": "l4-1"}
    told = []
    for line in block.splitlines():
        words = [re.sub(r"\b(SERVICE|NAMESPACE|NODE)\b", lambda found: names[found[1]], word)
                 for word in shlex.split(line, comments=True)]  # fmt: skip
        if words[0] == "kubectl":
            told.append(scene.kubectl(*words[1:]))
            continue
        assert words[0] == "octavo", f"the runbook says to type {line}"
        done = subprocess.run([sys.executable, "-m", "octavo_cli", *words[1:]], capture_output=True, text=True,
                              env={**os.environ, "KUBECONFIG": str(scene.kubeconfig)}, check=False)  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stderr}"
        told.append(done.stdout)
    return "\n".join(told)


def pods(scene: Scene) -> str:
    selector = "serving.octavo.dev/role=server"
    path = "{range .items[*]}{.metadata.uid} {.status.containerStatuses[0].restartCount} {.spec.nodeName}{end}"
    return scene.kubectl("get", "pods", "-l", selector, "-o", f"jsonpath={path}")


def test_broken_labels_are_told_explained_and_mended_while_the_replica_serves(scene):
    until(lambda: scene.targets_up() == 3, "Prometheus scrapes")
    assert {"OctavoNodeTypesUnresolved", "OctavoNodesUnread"}.isdisjoint(alerts(scene))
    before = pods(scene)
    assert before.endswith(" 0 l4-1")

    scene.kubectl("label", "node", "l4-1", f"{LABEL}-")
    found = until(lambda: alerts(scene).get("OctavoNodeTypesUnresolved"), "the alert fires")
    assert (found["labels"]["namespace"], found["labels"]["service"]) == ("default", "smollm2")
    assert found["annotations"]["summary"] == "default/smollm2: no node fits: TypeHeld"
    # Of the node itself another one speaks, which wakes nobody.
    node = until(lambda: alerts(scene).get("OctavoNodesUnread"), "the alert of the node fires, too")
    assert node["labels"]["severity"] == "info"
    assert {"OctavoRolloutStuck", "OctavoReplicasMissing", "OctavoImageUnresolved"}.isdisjoint(alerts(scene))

    said = scene.kubectl(
        "get", "ois", "smollm2", "-o", "jsonpath={.status.conditions[?(@.reason=='TypeHeld')].message}"
    )
    assert "NVIDIA-L4" in said
    assert "on l4-1" in said
    assert LABEL in said, "the condition itself says which label is missing, and where"

    page = runbook(found)
    told = looked(scene, page, found)
    assert "TypeHeld" in told
    assert "l4-1" in told
    assert LABEL in told, "the missing label is named"
    assert "`TypeHeld`" in page
    other = looked(scene, runbook(node), node)
    assert "l4-1" in other
    assert LABEL in other

    # What the runbook's first remedy says.
    [remedy] = re.findall(r"`kubectl (label node NODE [^`]+)`", page)
    scene.kubectl(*remedy.replace("NODE", "l4-1").split())
    until(lambda: {"OctavoNodeTypesUnresolved", "OctavoNodesUnread"}.isdisjoint(alerts(scene)), "both alerts end")
    assert pods(scene) == before, "the replica was not restarted and did not move"
