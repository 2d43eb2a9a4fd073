"""Every panel and every rule on a real Prometheus that scrapes the real operator and server under load.

Prometheus finds its targets through the API server and relabels them as the chart's PodMonitors say.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dashboards.alerts import RECORDINGS
from dashboards.boards import BOARDS
from dashboards.panels import every_panel

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "octavo-system"
pytestmark = pytest.mark.cluster

NOT_ON_CPU = {
    "Replicas with slower kernels": "octavo_kernel_fallback",
    "Errors by reason": "octavo_operator_reconcile_errors_total",
}
"""Panels that are empty when all is well: a family without a series. The family itself must be served."""


@dataclass
class Scene:
    """A running system: Prometheus's address, and how kubectl is asked."""

    prometheus: str
    kubectl: Callable[..., str]

    def query(self, expression: str) -> list[dict[str, Any]]:
        filled = expression.replace("$__rate_interval", "30s").replace("$namespace", ".*").replace("$service", ".*")
        answer = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": filled}, timeout=30)
        assert answer.status_code == 200, f"{filled}: {answer.text}"
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result


def until(condition: Callable[[], Any], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.5)


def snake(text: str) -> str:
    return re.sub(r"([A-Z])", lambda found: "_" + found[1].lower(), text)


def written(name: str) -> str:
    """A name as Prometheus writes it in labels of its own."""
    return re.sub("[^a-zA-Z0-9]", "_", name)


def discovered(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Prometheus's discovery tells of pods, for Debian's build, which has none for Kubernetes."""
    found = []
    for pod in pods:
        meta, address = pod["metadata"], pod.get("status", {}).get("podIP")
        labels = {"namespace": meta["namespace"], "pod_name": meta["name"], "pod_node_name": pod["spec"]["nodeName"]}
        for name, value in (meta.get("labels") or {}).items():
            labels |= {f"pod_label_{written(name)}": value, f"pod_labelpresent_{written(name)}": "true"}
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", ()):
                own = labels | {"pod_container_name": container["name"], "pod_container_port_name": port["name"]}
                target = f"{address}:{port['containerPort']}"
                found.append(
                    {"targets": [target], "labels": {f"__meta_kubernetes_{key}": value for key, value in own.items()}}
                )
    return found


def scrape_config(monitor: dict[str, Any], targets: Path) -> dict[str, Any]:
    """What Prometheus Operator makes of a PodMonitor, in the parts that ours use."""
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    selector = monitor["spec"]["selector"]
    keep = [
        ([f"__meta_kubernetes_pod_label_{written(name)}"], value)
        for name, value in selector.get("matchLabels", {}).items()
    ]
    keep += [
        ([f"__meta_kubernetes_pod_labelpresent_{written(item['key'])}"], "true")
        for item in selector.get("matchExpressions", [])
    ]
    keep.append((["__meta_kubernetes_pod_container_port_name"], endpoint["port"]))
    rules = [{"source_labels": names, "regex": value, "action": "keep"} for names, value in keep]
    rules += [{snake(key): value for key, value in rule.items()} for rule in endpoint.get("relabelings", [])]
    return {
        "job_name": monitor["metadata"]["name"],
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint.get("honorLabels", False),
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "2s"}],
        "relabel_configs": rules,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def send(url: str, stop: threading.Event) -> None:
    """Requests one after another, with a common beginning so that the prefix cache has something to find."""
    prompt = "You are a patient clerk who answers in short sentences. " * 4
    number = 0
    while not stop.is_set():
        number += 1
        body = {"model": "smollm2", "prompt": f"{prompt} Question {number}: what is paper?", "max_tokens": 24}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, prometheus_programs: dict[str, str]) -> Iterator[Scene]:
    from octavo_localcluster import Cluster, ClusterOptions

    folder = tmp_path_factory.mktemp("scene")
    options = ClusterOptions(folder=folder / "cluster", nodes_file=ROOT / "localcluster" / "nodes" / "cpu.yaml")
    with Cluster.start(options, report=print) as cluster:

        def call(program: str, *arguments: str, stdin: str | None = None) -> str:
            command = [str(cluster.program(program)), "--kubeconfig", str(cluster.kubeconfig), *arguments]
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{program} {arguments}: {done.stderr}"
            return done.stdout

        def kubectl(*arguments: str, stdin: str | None = None) -> str:
            return call("kubectl", *arguments, stdin=stdin)

        chart = str(ROOT / "charts" / "octavo")
        call("helm", "install", "octavo", chart, "-n", SYSTEM, "--create-namespace", "--wait", "--timeout", "120s")
        documents = list(yaml.safe_load_all((ROOT / "examples" / "smollm2-cpu.yaml").read_text()))
        documents[-1]["spec"]["scaling"] = {"mode": "Operator", "minReplicas": 1, "maxReplicas": 2}
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
        kubectl("wait", "ois/smollm2", "--for=condition=Ready", "--timeout=180s")
        address = kubectl("get", "service", "smollm2", "-o", "jsonpath={.spec.clusterIP}")

        rendered = call("helm", "template", "octavo", chart, "-n", SYSTEM, "--set", "podMonitor.enabled=true")
        monitors = [item for item in yaml.safe_load_all(rendered) if item and item["kind"] == "PodMonitor"]
        settings = {
            "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
            "rule_files": [str(ROOT / "dashboards" / "rules" / "octavo.rules.yaml")],
            "scrape_configs": [scrape_config(item, folder / "targets.json") for item in monitors],
        }
        pods = json.loads(kubectl("get", "pods", "-A", "--field-selector=status.phase=Running", "-o", "json"))["items"]
        (folder / "targets.json").write_text(json.dumps(discovered(pods)))
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        port = free_port()
        command = [prometheus_programs["prometheus"], f"--config.file={folder}/prometheus.yaml",
                   f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
        stop = threading.Event()
        sender = threading.Thread(target=send, args=(f"http://{address}", stop))
        with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            sender.start()
            try:
                yield Scene(f"http://127.0.0.1:{port}", kubectl)
            finally:
                stop.set()
                sender.join(120)
                process.terminate()


def answers(scene: Scene, expression: str) -> list[dict[str, Any]]:
    """What a query returns once there is something to return."""
    found: list[dict[str, Any]] = []

    def asked() -> bool:
        found[:] = [item for item in scene.query(expression) if item["value"][1] != "NaN"]
        if not found:
            # The operator has work only when something changes.
            scene.kubectl("annotate", "ois", "smollm2", f"octavo.test/asked={time.monotonic()}", "--overwrite")
        return bool(found)

    until(asked, f"data for {expression}", 90)
    return found


def family_is_served(scene: Scene, name: str) -> bool:
    """Whether a scrape told name and type of this family; OpenMetrics names counters without _total."""
    answer = httpx.get(f"{scene.prometheus}/api/v1/metadata").json()["data"]
    return name in answer or name.removesuffix("_total") in answer


@pytest.fixture(scope="module")
def scraped(scene: Scene) -> Scene:
    """The scene once Prometheus runs and has seen both programs and a scaling decision."""

    def up() -> bool:
        try:
            return len(scene.query("up == 1")) == 2 and bool(scene.query("octavo_desired_replicas"))
        except httpx.TransportError:
            return False

    until(up, "Prometheus scrapes the operator and the model's pod")
    return scene


@pytest.mark.parametrize("panel", every_panel(BOARDS), ids=lambda panel: panel.title.replace(" ", "-"))
def test_every_query_of_the_panel_returns_data(scraped, panel):
    if panel.title in NOT_ON_CPU:
        assert family_is_served(scraped, NOT_ON_CPU[panel.title]), panel.title
        assert scraped.query(panel.queries[0][0]) == []
        return
    for query, legend in panel.queries:
        series = answers(scraped, query)
        for label in re.findall(r"{{(\w+)}}", legend):
            assert all(label in item["metric"] for item in series), f"{query} has no label {label} for its legend"
        if panel.high is not None:
            assert all(0 <= float(item["value"][1]) <= panel.high for item in series), series


def test_series_of_models_carry_the_names_by_which_boards_and_rules_group(scraped):
    [series] = answers(scraped, "octavo_kv_cache_capacity_tokens")
    labels = series["metric"]
    assert (labels["namespace"], labels["service"]) == ("default", "smollm2")
    assert labels["pod"].startswith("smollm2-")
    assert labels["node_type"]
    [wanted] = answers(scraped, "octavo_desired_replicas")
    assert (wanted["metric"]["namespace"], wanted["metric"]["service"]) == ("default", "smollm2")


@pytest.mark.parametrize("recording", [item for item in RECORDINGS if not item.record.endswith(("1h", "6h"))],
                         ids=lambda item: item.record)  # fmt: skip
def test_the_recording_rule_has_a_value(scraped, recording):
    answers(scraped, recording.record)


def test_no_alert_is_raised_while_all_is_well_and_no_rule_fails(scraped):
    groups = httpx.get(f"{scraped.prometheus}/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    assert firing == set(), json.dumps(groups)
