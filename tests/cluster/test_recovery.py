"""What is killed comes back, and nothing is lost: engine process, operator, API server."""

from __future__ import annotations

import threading

import pytest

from scripts.demo_chat import Answer, ChatFailed, stream_chat

pytestmark = pytest.mark.cluster
NAME = "steady"
SELECTOR = f"serving.octavo.dev/service={NAME},serving.octavo.dev/role=server"
QUESTION = "Write a long story about a lighthouse keeper and a storm."


@pytest.fixture(scope="module")
def steady(octavo, namespace):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "local-models",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    wanted = {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"uri": "pvc://models/SmolLM2-135M-Instruct.Q4_1.gguf"},
            "placement": {"cpu": "Required"},
        },
    }
    octavo.apply(claim, wanted, namespace=namespace)
    octavo.wait_ready(NAME, namespace)
    return octavo.address(NAME, namespace)


def server_pods(octavo, namespace) -> dict[str, str]:
    """UID of each server pod by name."""
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in octavo.items("pods", namespace, SELECTOR)}


def test_a_killed_engine_comes_back_and_the_stream_it_served_is_finished(octavo, namespace, steady):
    begun = threading.Event()
    result: list[Answer | Exception] = []

    def ask() -> None:
        try:
            result.append(stream_chat(steady, NAME, QUESTION, max_tokens=160, on_text=lambda text: begun.set()))
        except (ChatFailed, OSError) as error:
            result.append(error)

    undisturbed = stream_chat(steady, NAME, QUESTION, max_tokens=160)
    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    assert begun.wait(60)
    octavo.kill("octavo_server.engine")
    asker.join(120)
    [answer] = result
    assert isinstance(answer, Answer), f"the stream broke off: {answer!r}"
    assert answer.text == undisturbed.text
    assert answer.completion_tokens == undisturbed.completion_tokens
    octavo.wait_ready(NAME, namespace)


def test_an_operator_killed_in_the_middle_of_a_rollout_finishes_it_after_its_return(octavo, namespace, steady):
    before = set(server_pods(octavo, namespace))
    patch = '{"spec": {"engine": {"kvCache": {"blockSize": 64}}}}'
    octavo.kubectl("patch", "ois", NAME, "-n", namespace, "--type=merge", "-p", patch)
    octavo.wait(lambda: set(server_pods(octavo, namespace)) - before, "the new pod appears", 60, (NAME, namespace))
    octavo.kill("octavo-operator", "run")
    assert stream_chat(steady, NAME, QUESTION, max_tokens=8).completion_tokens == 8, "serving needs no operator"
    octavo.wait(
        lambda: octavo.is_ready(NAME, namespace) and not before & set(server_pods(octavo, namespace)),
        "the rollout ends",
        150,
        (NAME, namespace),
    )
    assert len(server_pods(octavo, namespace)) == 1


def test_a_killed_api_server_interrupts_no_answer_and_loses_no_object(octavo, namespace, steady):
    before = server_pods(octavo, namespace)
    service = octavo.get("ois", NAME, namespace)
    octavo.cluster.kill_component("kube-apiserver")
    assert stream_chat(steady, NAME, QUESTION, max_tokens=16).completion_tokens == 16
    octavo.wait(lambda: octavo.get("ois", NAME, namespace), "the API server answers again", 90)
    patch = '{"metadata": {"labels": {"after": "restart"}}}'
    octavo.kubectl("patch", "ois", NAME, "-n", namespace, "--type=merge", "-p", patch)
    octavo.wait_ready(NAME, namespace)
    assert octavo.get("ois", NAME, namespace)["metadata"]["uid"] == service["metadata"]["uid"]
    assert server_pods(octavo, namespace) == before, "a restart of the API server restarted model pods"


def test_a_deleted_deployment_is_repaired(octavo, namespace, steady):
    [deployment] = octavo.items("deployments", namespace, f"serving.octavo.dev/service={NAME}")
    octavo.kubectl("delete", "deployment", deployment["metadata"]["name"], "-n", namespace)

    def repaired() -> bool:
        found = octavo.items("deployments", namespace, f"serving.octavo.dev/service={NAME}")
        return bool(found) and found[0]["metadata"]["uid"] != deployment["metadata"]["uid"]

    octavo.wait(repaired, "the operator makes the Deployment again", 30, (NAME, namespace))
