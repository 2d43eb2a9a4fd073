"""Every constraint of the schema, on the real API server: what it refuses, with which words, and what it allows."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from octavo_operator.api.schema import render_crds

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"model": {"uri": "pvc://models/a.gguf"}}
DEADLINE_SECONDS = 60


def test_committed_crds_are_what_the_models_say():
    committed = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    assert committed == render_crds()


@pytest.fixture(scope="module")
def create(control_plane):
    """Creates an InferenceService in a dry run on the API server; returns its error, empty when accepted."""
    base = [str(control_plane.program("kubectl")), "--kubeconfig", str(control_plane.kubeconfig)]

    def run(*arguments, stdin=None):
        return subprocess.run([*base, *arguments], input=stdin, capture_output=True, text=True, check=False)

    applied = run("apply", "--server-side", "-k", str(ROOT / "crds"))
    assert applied.returncode == 0, applied.stderr

    def attempt(spec, name="chat"):
        body = {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }
        done = run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
        return "" if done.returncode == 0 else done.stderr

    deadline = time.monotonic() + DEADLINE_SECONDS
    while attempt(GOOD) and time.monotonic() < deadline:
        run("wait", "--for=condition=Established", "crd/inferenceservices.serving.octavo.dev", "--timeout=5s")
    return attempt


def merged(**change):
    return {**GOOD, **change}


ALLOWED = [
    GOOD,
    {"model": {"uri": "hf://org/name", "revision": "main", "secretRef": {"name": "hub"}}},
    {"model": {"uri": "s3://bucket/some/key"}},
    {"model": {"uri": "s3://bucket/some/key", "endpoint": "http://minio.store:9000", "cacheClaim": "files"}},
    {"model": {"uri": "hf://org/name", "endpoint": "https://hub.example/mirror"}},
    {"model": {"uri": "file:///opt/model"}},
    {"model": {"uri": "pvc://claim/..hidden/a"}},
    merged(scaling={"mode": "Fixed"}, replicas=3),
    merged(scaling={"minReplicas": 0}),
    merged(image={"policy": "Pinned", "reference": "r/i:1", "cudaVersion": "12.8"}),
    merged(image={"policy": "Pinned", "reference": "r/i:1"}, placement={"cpu": "Required"}),
    merged(engine={"extraArgs": ["--max-sequences", "64"]}),
    merged(placement={"resources": {"requests": {"cpu": 1, "memory": "1.5Gi"}}}),
    merged(placement={"tolerations": [{"operator": "Exists"}]}),
]

REFUSED = [
    ({}, "model"),
    ({"model": {"uri": "http://x/y"}}, "model.uri must start with hf://"),
    ({"model": {"uri": "hf://only-a-name"}}, "hf://<organisation>/<name>"),
    ({"model": {"uri": "s3://bucket"}}, "s3://<bucket>/<key>"),
    ({"model": {"uri": "s3://My_Bucket/key"}}, "3 to 63 small letters, digits, . and - that begins and ends with"),
    ({"model": {"uri": "pvc://claim"}}, "pvc://<claim>/<path inside the claim>"),
    ({"model": {"uri": "pvc://" + "m" * 254 + "/a"}}, "253 characters at most"),
    ({"model": {"uri": "pvc://claim/$(HOME)"}}, "pvc://<claim>/<path inside the claim>"),
    ({"model": {"uri": "pvc://claim/a/../b"}}, "'..'"),
    ({"model": {"uri": "file://relative"}}, "file:///<absolute path"),
    ({"model": {"uri": "pvc://models/" + "a" * 600}}, "512"),
    ({"model": {"uri": "pvc://models/a", "revision": "main"}}, "model.revision applies to hf://"),
    ({"model": {"uri": "pvc://models/a", "secretRef": {"name": "x"}}}, "model.secretRef applies to hf://"),
    ({"model": {"uri": "pvc://models/a", "endpoint": "https://x"}}, "model.endpoint applies to hf://"),
    ({"model": {"uri": "pvc://models/a", "cacheClaim": "x"}}, "model.cacheClaim applies to hf://"),
    ({"model": {"uri": "hf://o/n", "endpoint": "ftp://x"}}, "must be http:// or https://"),
    ({"model": {"uri": "hf://o/n", "endpoint": "https://user:pw@x"}}, "must be http:// or https://"),
    ({"model": {"uri": "pvc://models/a", "maxLength": -1}}, "maxLength"),
    ({"model": {"uri": "pvc://models/a", "format": "Pickle"}}, "model.format"),
    ({"model": {"uri": "pvc://models/a", "adapters": [{"name": "a", "uri": "ftp://x"}]}}, "must start with hf://"),
    ({"model": {"uri": "pvc://m/a", "adapters": [{"name": "a", "uri": "hf://o/n"}] * 2}}, "Duplicate"),
    (merged(engine={"runtime": "Other"}), "engine.runtime"),
    (merged(engine={"dtype": "Float8"}), "engine.dtype"),
    (merged(engine={"quantization": "Int3"}), "engine.quantization"),
    (merged(engine={"kvCache": {"blockSize": 12}}), "engine.kvCache.blockSize"),
    (merged(engine={"kvCache": {"memoryPercent": 99}}), "engine.kvCache.memoryPercent"),
    (merged(engine={"kvCache": {"memoryPercent": 90.5}}), "engine.kvCache.memoryPercent"),
    (merged(engine={"kvCache": {"prefixCaching": "On"}}), "engine.kvCache.prefixCaching"),
    (merged(engine={"parallelism": {"tensor": 0}}), "engine.parallelism.tensor"),
    (merged(engine={"extraArgs": ["value"]}), "engine.extraArgs must begin with a flag"),
    (merged(engine={"extraArgs": ["--x", "--port=1"]}), "engine.extraArgs must not repeat a flag"),
    (merged(placement={"cpu": "Maybe"}), "placement.cpu"),
    (merged(placement={"cpu": "Required", "accelerators": [{}]}), "placement.accelerators must be empty"),
    (merged(placement={"accelerators": [{"products": ["a", "a"]}]}), "Duplicate"),
    (merged(placement={"accelerators": [{"minComputeCapability": "nine"}]}), "must be a compute capability"),
    (merged(placement={"accelerators": [{"products": ["NVIDIA H200"]}]}), "as the node's label spells it"),
    ({"model": {"uri": "hf://o/n", "revision": "--x"}}, "must be a branch, tag or commit"),
    ({"model": {"uri": "hf://o/n", "servedName": "a b"}}, "such as org/model-1b"),
    ({"model": {"uri": "hf://o/n", "secretRef": {"name": "Bad"}}}, "must be a Kubernetes name"),
    (merged(image={"policy": "Pinned", "reference": "a b", "cudaVersion": "12.8"}), "registry.example/team/name:tag"),
    (merged(image={"policy": "Pinned", "reference": "r/i:1", "cudaVersion": "twelve"}), "must be a CUDA version"),
    (merged(access={"apiKeySecretRef": {"name": "n", "key": "a b"}}), "must be a key of a Secret"),
    (merged(placement={"resources": {"requests": {"cpu": -1}}}), "quantity that is not negative"),
    (merged(placement={"accelerators": [{"costWeight": 0}]}), "costWeight"),
    (merged(placement={"resources": {"limits": {"nvidia.com/gpu": 1}}}), "engine.parallelism.tensor"),
    (merged(placement={"resources": {"requests": {"cpu": "a lot"}}}), "must be a Kubernetes quantity"),
    (merged(placement={"tolerations": [{"value": "x"}]}), "key is required"),
    (merged(placement={"tolerations": [{"operator": "Exists", "value": "x"}]}), "must be absent"),
    (merged(placement={"tolerations": [{"key": "k", "tolerationSeconds": 1}]}), "NoExecute alone"),
    (merged(image={"policy": "Pinned"}), "image.reference must be given exactly when"),
    (merged(image={"reference": "r/i:1"}), "image.reference must be given exactly when"),
    (merged(image={"cudaVersion": "12.8"}), "image.cudaVersion applies to image.policy Pinned alone"),
    (merged(image={"policy": "Pinned", "reference": "r/i:1"}), "image.cudaVersion is required"),
    (merged(replicas=2), "set scaling.mode to External"),
    (merged(scaling={"mode": "Fixed"}, replicas=-1), "replicas"),
    (merged(scaling={"minReplicas": 3, "maxReplicas": 2}), "scaling.minReplicas must not exceed"),
    (merged(scaling={"targetUtilizationPercent": 100}), "scaling.targetUtilizationPercent"),
    (merged(rollout={"strategy": "Big"}), "rollout.strategy"),
    (merged(rollout={"drainSeconds": 4000}), "rollout.drainSeconds"),
    (merged(access={"networkPolicy": "No"}), "access.networkPolicy"),
    (merged(access={"apiKeySecretRef": {"name": "Not A Name"}}), "access.apiKeySecretRef.name: Invalid value"),
]


@pytest.mark.cluster
@pytest.mark.parametrize("spec", ALLOWED, ids=lambda spec: json.dumps(spec)[:60])
def test_the_api_server_accepts(create, spec):
    assert create(spec) == ""


@pytest.mark.cluster
@pytest.mark.parametrize(("spec", "words"), REFUSED, ids=[words[:40] + f"-{n}" for n, (_, words) in enumerate(REFUSED)])
def test_the_api_server_refuses_and_names_the_field(create, spec, words):
    assert words in create(spec)


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["a" * 49, "1st", "a.b"])
def test_a_name_that_no_service_can_have_is_refused(create, name):
    assert "metadata.name must be a DNS label of at most 48" in create(GOOD, name)


# TuningProfile

PROFILE = {
    "product": "NVIDIA-H200",
    "computeCapability": "9.0",
    "driverCuda": "12.8",
    "shape": {"layers": 30, "queryHeads": 9, "kvHeads": 3, "headSize": 64, "dtype": "BFloat16", "cacheDtype": "Auto"},
    "kernelsVersion": "0.1.0",
    "tritonVersion": "3.6.0",
}


@pytest.fixture(scope="module")
def create_profile(create, control_plane):
    """Creates a TuningProfile in a dry run; returns the API server's error, empty when accepted."""
    base = [str(control_plane.program("kubectl")), "--kubeconfig", str(control_plane.kubeconfig)]

    def attempt(spec):
        meta = {"name": "p", "namespace": "default"}
        body = {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "TuningProfile", "metadata": meta, "spec": spec}
        command = [*base, "create", "--dry-run=server", "-f", "-"]
        done = subprocess.run(command, input=json.dumps(body), capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr

    return attempt


@pytest.mark.cluster
def test_a_tuning_profile_with_its_whole_key_is_accepted(create_profile):
    assert create_profile(PROFILE) == ""


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"computeCapability": "nine"}, "spec.computeCapability"),
        ({"driverCuda": "12"}, "spec.driverCuda"),
        ({"product": ""}, "spec.product"),
        ({"shape": {**PROFILE["shape"], "headSize": 0}}, "spec.shape.headSize"),
        ({"shape": {**PROFILE["shape"], "dtype": "Float8"}}, "spec.shape.dtype"),
        ({"kernelsVersion": None}, "spec.kernelsVersion"),
        ({"shape": None}, "spec.shape"),
    ],
)
def test_a_tuning_profile_without_a_usable_key_is_refused_with_the_field(create_profile, change, field):
    spec = {key: value for key, value in {**PROFILE, **change}.items() if value is not None}
    assert field in create_profile(spec)


# kubectl scale


@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["Operator", "External", "Fixed"])
def test_kubectl_scale_works_in_the_modes_that_read_replicas_and_says_why_not_in_the_other(create, control_plane, mode):
    base = [str(control_plane.program("kubectl")), "--kubeconfig", str(control_plane.kubeconfig)]

    def run(*arguments, stdin=None):
        return subprocess.run([*base, *arguments], input=stdin, capture_output=True, text=True, check=False)

    name, counted = f"scaled-{mode.lower()}", {} if mode == "Operator" else {"replicas": 1}
    body = {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**GOOD, "scaling": {"mode": mode}, **counted},
    }
    assert run("create", "-f", "-", stdin=json.dumps(body)).returncode == 0
    try:
        done = run("scale", "ois", name, "--replicas=3")
        found = json.loads(run("get", "ois", name, "-o", "json").stdout)["spec"]
        if mode == "Operator":
            assert "scaling.mode" in done.stderr, done
            assert "replicas" not in found
        else:
            assert done.returncode == 0, done.stderr
            assert found["replicas"] == 3
    finally:
        run("delete", "ois", name, "--wait=false")
