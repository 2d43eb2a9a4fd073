"""`make demo`: from nothing to a real model's streamed answer through a real Kubernetes API server.

Each stage is what a person would type (octavo-localcluster up, helm upgrade --install, kubectl apply, an HTTP request),
timed and told. Running it again on a running demo goes through the same stages and finds most of them done.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, write_result
from scripts.demo_chat import Answer, ChatFailed, stream_chat
from scripts.demo_cluster import DemoCluster, StepFailed

NAMESPACE = "demo"
SERVICE = "smollm2"
EXAMPLE = "examples/smollm2-cpu.yaml"
QUESTION = "What is a paged key-value cache good for? Answer in two sentences."
READY_SECONDS = 180.0


class Stages:
    """Tells what is being done and keeps how long it took."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self.seconds: dict[str, float] = {}
        self.current = ""
        self._say = say

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """One stage; its time is kept when it ends well, its title when it does not."""
        self.current = title
        self._say(f"\n● {title}")
        started = time.monotonic()
        yield
        self.seconds[title] = time.monotonic() - started
        self._say(f"  done in {self.seconds[title]:.1f} s")


def say(text: str) -> None:
    print(text, flush=True)


def run_demo(cluster: DemoCluster, stages: Stages) -> Answer:
    """All stages up to the answer."""
    with stages.stage("Programs of the control plane: found here, or built once (about 8 min on 2 cores)"):
        cluster.find_programs()
    with stages.stage("Cluster: etcd, API server, scheduler, controller manager, one node"):
        cluster.up()
    with stages.stage("Operator, from charts/octavo into namespace octavo-system"):
        cluster.install_chart()
    with stages.stage(f"kubectl apply -f {EXAMPLE} into namespace {NAMESPACE}, which enforces restricted pods"):
        cluster.create_namespace(NAMESPACE)
        cluster.kubectl("apply", "--namespace", NAMESPACE, "--filename", EXAMPLE)
    with stages.stage(f"InferenceService {SERVICE} becomes Ready"):
        cluster.wait_ready(NAMESPACE, SERVICE, READY_SECONDS)
        say(indent(cluster.kubectl("get", "ois", "--namespace", NAMESPACE)))
    address = cluster.service_address(NAMESPACE, SERVICE)
    with stages.stage(f"Question to the Service's address {address}/v1/chat/completions"):
        say(f"  “{QUESTION}”\n")
        answer = stream_chat(address, SERVICE, QUESTION, on_text=lambda text: print(text, end="", flush=True))
        say("\n")
    return answer


def label(title: str) -> str:
    """A stage's title without what differs from run to run."""
    return title.partition(" http")[0].partition(": ")[0]


def figures(stages: Stages, answer: Answer) -> list[Row]:
    """What was measured, as rows of a result."""
    rows = [Row(label(title), "s", round(value, 2), "lower") for title, value in stages.seconds.items()]
    rows.append(Row("all stages", "s", round(sum(stages.seconds.values()), 2), "lower"))
    rows.append(Row("time to first token", "s", round(answer.first_token_seconds, 3), "lower"))
    rows.append(Row("answer", "tokens/s", round(answer.tokens_per_second, 1), "higher"))
    return rows


def epilogue(cluster: DemoCluster, address: str) -> str:
    """How to go on."""
    body = '{"model":"%s","messages":[{"role":"user","content":"Hello"}],"stream":true}' % SERVICE  # noqa: UP031
    return f"""
Go on:
  export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))} PATH={shlex.quote(str(cluster.folder / "bin"))}:"$PATH"
  kubectl get ois,pods -n {NAMESPACE}                 what runs
  kubectl describe ois {SERVICE} -n {NAMESPACE}        conditions and events
  curl -N {address}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'
  make demo-down                              remove all of it"""


def indent(text: str) -> str:
    return "\n".join("  " + line for line in text.rstrip().splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="take the cluster down after the answer")
    parser.add_argument("--down", action="store_true", help="take the demo's cluster down and remove its folder")
    parser.add_argument("--record", action="store_true", help="write the times to benchmarks/results/demo.json")
    options = parser.parse_args()
    cluster = DemoCluster(say=lambda text: say(indent(text)))
    if options.down:
        cluster.down()
        say("The demo is gone.")
        return 0
    stages = Stages(say)
    try:
        answer = run_demo(cluster, stages)
    except (StepFailed, ChatFailed, OSError) as error:
        print(f"\nThe demo stopped at: {stages.current}\n{error}", file=sys.stderr)
        print(cluster.explain(NAMESPACE, SERVICE), file=sys.stderr)
        if options.once:
            cluster.down()
        elif cluster.folder.exists():
            print("\nThe cluster is left for a look; 'make demo-down' removes it.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; 'make demo-down' removes what runs.", file=sys.stderr)
        return 130
    rows = figures(stages, answer)
    say("Figures")
    for row in rows:
        say(f"  {row.value:8.2f} {row.unit:9s} {row.name}")
    say(f"  {answer.prompt_tokens} tokens asked, {answer.completion_tokens} answered, ended by {answer.finish_reason}")
    if options.record:
        path = write_result("demo", rows, command="make bench-demo")
        say(f"  written to {path.name}")
    if options.once:
        cluster.down()
        say("\nThe cluster is down (ONCE=1).")
    else:
        say(epilogue(cluster, cluster.service_address(NAMESPACE, SERVICE)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
