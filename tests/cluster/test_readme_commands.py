"""Every command block of the READMEs is executed as it stands, in its order, on one cluster: the demo's own.

A block that nothing here can execute fails: a README does not get commands that nobody has run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.chart.monitoring_kinds import monitoring_crds
from tests.frame.pages import blocks

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CHART_README = ROOT / "charts" / "octavo" / "README.md"
MONITORING = ROOT / "docs" / "how-to" / "monitor.md"
QUIET = {"text", "yaml", "promql"}
"""Languages of blocks that hold no commands; a fence without a language is taken for commands."""
INDIRECT = {"make test": "what .ci/run calls, and with it whoever runs this"}
PLACEHOLDERS = {"<yours>": "octavo/octavo-operator"}
RUNS = ("make demo", "curl ", "helm ", "kubectl ")
"""Beginnings of commands that a shell executes here as they stand."""
MAKES_OWN = {"ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ONCE"}
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def commands(block: str) -> list[str]:
    """Commands of a block: joined where a line goes on, without comments."""
    joined = re.sub(r"\\\n\s*", "", block)
    lines = [" ".join(shlex.split(line, comments=True)) and line for line in joined.splitlines()]
    return [re.sub(r"\s+#\s.*$", "", line).strip() for line in lines if line]


def told(path: Path) -> list[str]:
    return [line for block in blocks(path) if block.language not in QUIET for line in commands(block.text)]


def is_executed(command: str) -> bool:
    return command in INDIRECT or command.startswith(RUNS)


@dataclass
class Shell:
    """A user's shell beside the demo's cluster."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, command: str) -> str:
        """Output of a command that must end well."""
        for placeholder, value in PLACEHOLDERS.items():
            command = command.replace(placeholder, value)
        # Settings of a make that runs the tests are not those of the make that is tested.
        around = {name: value for name, value in os.environ.items() if name not in MAKES_OWN}
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, env={**around, **self.environment},
                              capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def reach(self) -> None:
        """What the demo says to type: its kubeconfig and programs. And the cluster's names, which pods would know."""
        demo = self.environment["OCTAVO_DEMO_DIR"]
        self.environment["KUBECONFIG"] = f"{demo}/kubeconfig"
        self.environment["PATH"] = f"{demo}/bin:{os.environ['PATH']}"
        address = self.run("kubectl get service smollm2 -n demo -o jsonpath='{.spec.clusterIP}:{.spec.ports[0].port}'")
        (self.folder / ".curlrc").write_text(f'connect-to = "smollm2:80:{address}"\n')
        self.environment["CURL_HOME"] = str(self.folder)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("readme")
    made = Shell(folder, {"OCTAVO_DEMO_DIR": str(folder / "demo")})
    try:
        yield made
    finally:
        made.run("make demo-down")
    assert not (folder / "demo").exists()


def test_the_commands_of_the_readme_do_what_it_says(shell):
    lines = told(README)
    assert lines[0] == "make demo", "the README begins with the demo, on whose cluster the rest is run"
    output = shell.run("make demo")
    assert "Figures" in output
    assert "tokens asked" in output
    shell.reach()
    ran = []
    for command in lines[1:]:
        if command in INDIRECT:
            continue
        if command.startswith("helm install octavo"):
            # The demo has installed it already.
            shell.run("helm uninstall octavo --namespace octavo-system --wait")
        answer = shell.run(command)
        ran.append(command)
        if command.startswith("curl"):
            assert answer.count("data: {") > 3, "the answer is streamed"
            assert "data: [DONE]" in answer
        if command.startswith("helm install"):
            shell.run("kubectl rollout status deployment/octavo-operator -n octavo-system --timeout=120s")
    assert {command.split()[0] for command in ran} >= {"curl", "helm"}


def test_the_readmes_inference_service_is_taken_by_the_api_server(shell):
    [text] = [block.text for block in blocks(README) if block.language == "yaml"]
    assert yaml.safe_load(text)["kind"] == "InferenceService"
    (shell.folder / "service.yaml").write_text(text)
    shell.run(f"kubectl apply --server-side --dry-run=server --validate=strict -f {shell.folder}/service.yaml")


def test_the_commands_of_the_charts_readme_work(shell):
    lines = told(CHART_README)
    assert len(lines) >= 2
    for command in lines:
        answer = shell.run(command)
        if command.startswith("helm test"):
            assert "Succeeded" in answer


def test_the_command_of_the_page_on_monitoring_works_where_prometheus_operator_is(shell):
    (shell.folder / "kinds.yaml").write_text(monitoring_crds())
    shell.run(f"kubectl apply -f {shell.folder}/kinds.yaml")
    shell.run("kubectl wait --for=condition=Established crd --all --timeout=60s")
    for command in told(MONITORING):
        shell.run(command)
    made = shell.run("kubectl get podmonitors,prometheusrules,configmaps -n octavo-system -o name")
    assert made.count("podmonitor") == 2
    assert made.count("prometheusrule") == 1
    assert made.count("configmap/octavo-operator-") == 6


@pytest.mark.parametrize("path", [README, CHART_README, MONITORING], ids=["README", "chart", "monitoring"])
def test_every_command_of_a_readme_is_one_that_is_executed_here(path):
    assert [command for command in told(path) if not is_executed(command)] == []


def test_a_block_of_another_kind_would_be_seen(tmp_path):
    page = tmp_path / "README.md"
    written = ("bash\npip install \\\n  octavo   # or so\n", "text\na picture\n", "\nmake nothing\n")
    page.write_text("".join(f"```{block}```\n" for block in written))
    assert told(page) == ["pip install octavo", "make nothing"]
    assert not any(is_executed(command) for command in told(page))


def test_the_test_verb_is_what_continuous_integration_runs():
    assert "exec make test" in (ROOT / ".ci" / "run").read_text()
