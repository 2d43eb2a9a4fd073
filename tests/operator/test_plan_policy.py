"""What users may choose, whom they may not displace, and what generated pods can do."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.placement_section import ImageSection, PlacementSection, Toleration
from octavo_operator.cluster.resources import BY_KIND
from octavo_operator.plan import CatalogueImage, Egress, PlanSettings
from octavo_operator.plan.admission import accepts_taint
from octavo_operator.plan.defaults import with_defaults
from octavo_operator.plan.policy import begins_with, is_reference, refusals, repository, tolerates_only

from tests.operator.test_plan_rollout import SETTINGS, labels, settled, spec
from tests.operator.world import Operator, World, condition, run

ALLOWED = PlanSettings(
    images=SETTINGS.images,
    image_prefixes=("r.example/team", "mirror/"),
    token_endpoints=("https://hub.example/mirror/",),
    argument_prefixes=("--max-",),
    priority_classes=("serving",),
    tolerations=("team", "dedicated=llm"),
    resources=("rdma/shared",),
    file_prefixes=("/models", "/opt/m"),
)
DIGEST = "@sha256:" + "0" * 64


PLAIN = InferenceServiceSpec.model_validate(spec(1))


@pytest.mark.parametrize(
    ("reference", "prefix", "allowed"),
    [
        ("r.example/team/x:1", "r.example/team", True),
        ("r.example/team:1", "r.example/team", True),
        ("r.example/team@sha256:0", "r.example/team", True),
        ("r.example/team:1@sha256:0", "r.example/team", True),
        ("r.example/team-of-others/x:1", "r.example/team", False),
        ("r.example.evil/team/x", "r.example", False),
        ("r.example.evil.com/team/x", "r.example/team", False),
        ("evil.com/r.example/team/x", "r.example/team", False),
        ("r.example:5000/x", "r.example:5000/", True),
        ("r.example:5000/x", "r.example", False),
        ("r.example:5000/x", "r.example:5000", True),
        ("r.example:50001/x", "r.example:5000", False),
        ("r.example@evil.com/x", "r.example", False),
        ("r.example/x", "r.example", True),
        ("anything", "*", True),
        ("anything", "", False),
    ],
)
def test_a_prefix_ends_where_a_name_does(reference, prefix, allowed):
    assert begins_with(reference, prefix) == allowed


@given(st.sampled_from(["r/i", "h:5000/r/i", "i"]), st.sampled_from(["", ":1", "@sha256:00", ":1@sha256:00"]))
def test_a_repository_is_the_name_without_tag_and_digest(name, rest):
    assert repository(name + rest) == name


@pytest.mark.parametrize(
    "reference",
    [
        "octavo/octavo-server",
        "r.example/a/b_c/d-e.f:1.2_x",
        "R.Example:5000/a",
        "a",
        "a:1",
        f"a:1{DIGEST}",
        f"h/a{DIGEST}",
    ],
)
def test_an_images_name_is_recognised(reference):
    assert is_reference(reference)


@pytest.mark.parametrize(
    "reference",
    [
        "r/octavo-server@evil.com/x",
        "r/octavo-server:1@evil.com/x:2",
        "mirror/../evil/x",
        "mirror//x",
        "mirror/x:1:2",
        "mirror/x@sha256:0",
        "mirror/x:1@sha256:" + "0" * 64 + "@sha256:" + "1" * 64,
        "mirror/.x",
        "mirror/X",
        "mirror/x/",
        "r.example:port/x",
        "-x",
        "mirror/x:" + "t" * 129,
    ],
)
def test_what_is_no_images_name_is_allowed_below_no_prefix(reference):
    assert not is_reference(reference)
    everything = PlanSettings(images=SETTINGS.images, image_prefixes=("*", "mirror/", "r/octavo-server", "r.example"))
    wanted = InferenceServiceSpec.model_construct(
        **{**dict(PLAIN), "image": ImageSection.model_construct(reference=reference)}
    )
    assert "is no image's name" in refusals(wanted, everything)[0]


CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def placed(**more):
    return {"placement": {"accelerators": [{"vendor": "NVIDIA"}], **more}}


def pinned(reference):
    return {"policy": "Pinned", "reference": reference, "cudaVersion": "12.8"}


def mirrored(endpoint, secret=True, uri="hf://org/name"):
    more = {"secretRef": {"name": "robot-token"}} if secret else {}
    return {"model": {"uri": uri, "endpoint": endpoint, **more}}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (mirrored("https://evil.com"), "https://evil.com would be sent the token of Secret robot-token"),
        (mirrored("https://hub.example"), "policy.tokenEndpoints: https://hub.example/mirror/"),
        (mirrored("https://hub.example/mirrors"), "hub.example/mirrors"),
        (mirrored("https://hub.example/mirror/../others"), "hub.example/mirror/../others"),
        (mirrored("http://hub.example/mirror"), "http://hub.example"),
        (mirrored("https://hub.example:8443/mirror"), ":8443"),
        (mirrored("https://hub.example.evil.com/mirror"), "evil.com"),
        ({"image": pinned("elsewhere/x:1")}, "elsewhere/x:1"),
        ({"engine": {"extraArgs": ["--chat-template", "/etc/passwd"]}}, "--chat-template"),
        ({"engine": {"extraArgs": ["--max-sequences", "4", "-x"]}}, "-x"),
        ({"image": pinned("r.example.evil.com/team/x:1")}, "r.example.evil.com/team/x:1"),
        ({"image": pinned("r/octavo-server@evil.com/x")}, "no image's name"),
        ({"model": {"uri": "file:///etc/passwd"}}, "file:///etc/passwd (policy.filePrefixes: /models, /opt/m)"),
        ({"model": {"uri": "file:///models-of-others/m"}}, "file:///models-of-others/m"),
        ({"model": {"uri": "file:///models/../etc/m"}}, "file:///models/../etc/m"),
        (placed(priorityClassName="system-node-critical"), "policy.priorityClasses: serving"),
        (placed(priorityClassName="serving-2"), "priorityClassName serving-2"),
        (placed(tolerations=[{"operator": "Exists"}]), "every taint"),
        (placed(tolerations=[{"key": CONTROL_PLANE, "operator": "Exists"}]), CONTROL_PLANE),
        (placed(tolerations=[{"key": "dedicated", "value": "other"}]), "dedicated=other"),
        (placed(tolerations=[{"key": "dedicated", "operator": "Exists"}]), "policy.tolerations: team, dedicated=llm"),
        (placed(tolerations=[{"key": "team", "operator": "Exists"}, {"key": "other", "operator": "Exists"}]), "other"),
        (placed(resources={"requests": {"devices.kubevirt.io/kvm": "1"}}), "devices.kubevirt.io/kvm"),
        (placed(resources={"limits": {"cpu": "4", "example.com/fuse": "1"}}), "policy.resources: rdma/shared"),
    ],
)
async def test_what_the_administrator_does_not_allow_starts_nothing_and_says_so(more, word):
    world = World()
    world.add_node("n1", labels(), gpu="1")
    world.user_applies("chat", spec(1, **more))
    operator = await Operator(world, ALLOWED).start()
    await run(operator, 5)
    said = condition(world, "chat", "SpecHonoured")
    assert said["reason"] == "NotAllowed"
    assert word in said["message"]
    assert world.pods() == []
    assert world.of_kind("Job") == []


@pytest.mark.parametrize(
    "more",
    [
        mirrored("https://hub.example/mirror"),
        mirrored("https://hub.example/mirror/eu"),
        mirrored("https://elsewhere.example", secret=False),
        mirrored("https://minio.example:9000", uri="s3://bucket/model"),
        {"image": pinned("r.example/team/x:1")},
        {"image": pinned(f"mirror/a/b{DIGEST}")},
        {"image": pinned("r/octavo-server:9-cuda12.8")},
        {"engine": {"extraArgs": ["--max-sequences", "4", "--max-batched-tokens", "-1"]}},
        {"model": {"uri": "file:///models/m"}},
        {"model": {"uri": "file:///opt/m"}},
        placed(priorityClassName="serving"),
        placed(
            tolerations=[{"key": "team", "value": "a"}, {"key": "team", "operator": "Exists", "effect": "NoExecute"}]
        ),
        placed(tolerations=[{"key": "dedicated", "value": "llm"}]),
        placed(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        placed(resources={"requests": {"cpu": "4", "hugepages-2Mi": "0"}, "limits": {"memory": "8Gi"}}),
    ],
)
async def test_what_is_allowed_runs(more):
    await settled({"n1": 1}, spec(1, **more), ALLOWED)


GIVEN = replace(ALLOWED, cache_claim="store", hub_endpoint="https://hub.example", priority_class="online")


def defaulted(**more):
    return with_defaults(InferenceServiceSpec.model_validate(spec(1, **more)), GIVEN)


def test_defaults_reach_what_a_spec_leaves_open_and_nothing_that_it_says():
    found = defaulted(model={"uri": "hf://a/b"})
    assert (found.model.cache_claim, found.model.endpoint) == ("store", "https://hub.example")
    assert found.placement.priority_class_name == "online"
    own = {"uri": "hf://a/b", "cacheClaim": "mine", "endpoint": "https://other.example"}
    found = defaulted(model=own, **placed(priorityClassName="serving"))
    assert (found.model.cache_claim, found.model.endpoint) == ("mine", "https://other.example")
    assert found.placement.priority_class_name == "serving"


@pytest.mark.parametrize(
    ("uri", "claim"), [("s3://bucket/m", "store"), ("pvc://c/m", None), ("file:///models/m", None)]
)
def test_a_default_goes_where_the_field_would_be_taken(uri, claim):
    found = defaulted(model={"uri": uri}).model
    assert (found.cache_claim, found.endpoint) == (claim, None)


def test_without_defaults_the_spec_is_the_same():
    plain = InferenceServiceSpec.model_validate(spec(1, model={"uri": "hf://a/b"}))
    assert with_defaults(plain, ALLOWED) is plain


async def test_pods_get_the_default_priority_that_no_user_may_name_and_the_status_has_no_complaint():
    world, _ = await settled({"n1": 1}, spec(1), GIVEN)
    assert {pod["spec"].get("priorityClassName") for pod in world.pods()} == {"online"}
    assert condition(world, "chat", "SpecHonoured")["reason"] == "Honoured"


async def test_a_policy_that_becomes_stricter_ends_nothing_and_says_so():
    world, operator = await settled({"n1": 2}, spec(2, **placed(priorityClassName="serving")), ALLOWED)
    before = {pod["metadata"]["name"] for pod in world.pods()}
    operator.stop()
    stricter = await Operator(world, SETTINGS).start()
    await run(stricter, 12)
    assert {pod["metadata"]["name"] for pod in world.pods()} == before
    assert condition(world, "chat", "SpecHonoured")["reason"] == "NotAllowed"
    assert condition(world, "chat", "Available")["status"] == "True"


@given(st.sampled_from(["system-node-critical", "system-cluster-critical"]))
def test_every_priority_class_means_none_of_kubernetes_own(name):
    wanted = InferenceServiceSpec.model_validate({**spec(1), **placed(priorityClassName=name)})
    assert refusals(wanted, PlanSettings(priority_classes=("*",)))
    assert not refusals(wanted, PlanSettings(priority_classes=("*", name)))


TOLERATION = st.fixed_dictionaries(
    {"operator": st.sampled_from(["Equal", "Exists"])},
    optional={"key": st.sampled_from(["a", "b", "a/b"]), "effect": st.sampled_from(["NoSchedule", "NoExecute"])},
)


@given(TOLERATION, st.sampled_from(["x", "y", ""]), st.lists(st.sampled_from(["a", "b=x", "b", "a/b="]), unique=True))
def test_no_allowed_toleration_accepts_a_taint_that_is_not_allowed(written, value, allowed):
    toleration = Toleration.model_validate({**written, **({"value": value} if written["operator"] == "Equal" else {})})
    if not tolerates_only(toleration, allowed):
        return
    placement = PlacementSection.model_construct(tolerations=(toleration,))
    for key in ("a", "b", "a/b", "c"):
        for taint_value in ("x", "y", ""):
            taint = {"key": key, "value": taint_value, "effect": toleration.effect or "NoSchedule"}
            if accepts_taint(taint, placement):
                assert key in allowed or f"{key}={taint_value}" in allowed


@pytest.mark.parametrize("kind", ["ServiceAccount", "Service", "PodDisruptionBudget", "NetworkPolicy"])
async def test_an_object_of_somebody_else_is_never_taken_over_and_its_end_heals(kind):
    world = World()
    world.add_node("n1", labels(), gpu="1")
    foreign = world.put(BY_KIND[kind], {"metadata": {"name": "chat", "namespace": "team"}, "spec": {"mine": True}})
    world.user_applies("chat", spec(1))
    operator = await Operator(world, SETTINGS).start()
    await run(operator, 10)
    assert world.get(kind, "chat") == foreign
    said = condition(world, "chat", "Ready")
    assert (said["status"], said["reason"]) == ("False", "NameTaken")
    assert kind in said["message"]
    written = len(operator.api.writes)
    await run(operator, 50)
    assert len(operator.api.writes) == written
    world.remove(BY_KIND[kind], "team", "chat")
    await run(operator, 12)
    assert condition(world, "chat", "Ready")["status"] == "True"


async def test_an_object_whose_owner_reference_was_removed_is_taken_back():
    world, operator = await settled({"n1": 1}, spec(1))
    live = copy.deepcopy(world.get("Service", "chat"))
    del live["metadata"]["ownerReferences"]
    world.put(BY_KIND["Service"], live)
    await run(operator, 2)
    assert world.get("Service", "chat")["metadata"]["ownerReferences"]


async def pod_and_policy(body, settings=SETTINGS):
    world, _ = await settled({"n1": 2}, body, settings)
    return world.pods()[0]["spec"], world.get("NetworkPolicy", "chat")["spec"]


async def test_pods_of_a_filled_claim_reach_nothing_but_names():
    _, policy = await pod_and_policy(spec(1))
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [53]
    assert all("to" not in rule or rule["to"] for rule in policy["egress"])


async def test_pods_that_fetch_reach_https_and_what_is_configured_and_callers_are_named():
    chosen = PlanSettings(
        images=SETTINGS.images,
        operator_namespace="octavo",
        monitoring_namespace="monitoring",
        gateway_namespace="gateway",
        egress=(Egress("10.1.2.3/32", 3128),),
    )
    _, policy = await pod_and_policy({**spec(1), "model": {"uri": "hf://org/name"}}, chosen)
    assert policy["egress"][1:] == [
        {"ports": [{"port": 443, "protocol": "TCP"}]},
        {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 3128, "protocol": "TCP"}]},
    ]
    [ingress] = policy["ingress"]
    spaces = [each["namespaceSelector"]["matchLabels"] for each in ingress["from"][1:]]
    assert [next(iter(each.values())) for each in spaces] == ["gateway", "monitoring", "octavo"]
    assert ingress["from"][0] == {"podSelector": {}}


@pytest.mark.parametrize("uri", ["pvc://models/a.gguf", "hf://org/name", "file:///model"])
async def test_a_pod_is_restricted_holds_no_token_and_asks_for_what_it_needs_alone(uri):
    pod, _ = await pod_and_policy({**spec(1), "model": {"uri": uri}})
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= {
        "emptyDir",
        "persistentVolumeClaim",
    }
    [server] = pod["containers"]
    for container in [server, *pod.get("initContainers", ())]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        # What Triton and temporary files need is writable.
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        cache = next(entry["value"] for entry in container["env"] if entry["name"] == "TRITON_CACHE_DIR")
        assert any(cache.startswith(path) and not mount.get("readOnly") for path, mount in mounts.items())
        assert not mounts["/tmp"].get("readOnly")
    for container in pod.get("initContainers", ()):
        assert "nvidia.com/gpu" not in container["resources"].get("limits", {}), "fetching takes no accelerator"
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert {each["topologyKey"] for each in pod["topologySpreadConstraints"]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }


async def test_shared_memory_follows_parallelism_and_cpu_pods_have_none():
    from octavo_operator.api.inference_service import InferenceServiceSpec
    from octavo_operator.plan.image_choice import ImageChoice
    from octavo_operator.plan.node_types import NodeType, TypeKey
    from octavo_operator.plan.pod_template import Replica, render

    def shm(key, ranks):
        wanted = InferenceServiceSpec.model_validate({**spec(1), "engine": {"parallelism": {"tensor": ranks}}})
        choice = ImageChoice(CatalogueImage("x", "r/i:1"), "CPU", "Resolved", "")
        pod = render(Replica("chat", wanted, NodeType(key, choice, 1, ()), "r/i:1", 16))["spec"]
        return [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm"]

    gpu = TypeKey("NVIDIA-H100", "NVIDIA", "9.0", "", "nvidia.com/gpu", "x")
    assert shm(gpu, 1) == [{"medium": "Memory", "sizeLimit": "1Gi"}]
    assert shm(gpu, 8) == [{"medium": "Memory", "sizeLimit": "8Gi"}]
    assert shm(TypeKey("CPU"), 1) == []


async def test_priority_class_and_own_tolerations_reach_the_pod():
    placement = {"accelerators": [{"vendor": "NVIDIA"}], "priorityClassName": "high"}
    placement["tolerations"] = [{"key": "team", "operator": "Exists"}]
    chosen = PlanSettings(images=SETTINGS.images, priority_classes=("high",), tolerations=("team",))
    pod, _ = await pod_and_policy({**spec(1), "placement": placement}, chosen)
    assert pod["priorityClassName"] == "high"
    assert [each["key"] for each in pod["tolerations"]] == ["team", "nvidia.com/gpu"]


@pytest.mark.parametrize(
    "evil",
    [
        {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        {"hostNetwork": True},
        {"hostPID": True},
        {"containers": [{"name": "server", "image": "x", "securityContext": {"privileged": True}}]},
        {"containers": [{"name": "server", "image": "x"}]},
    ],
)
async def test_a_stored_template_that_somebody_wrote_to_reach_the_host_is_never_applied(evil):
    world, operator = await settled({"n1": 2}, spec(1))
    for name in ("next", "m"):
        world.user_applies("chat", spec(1, name=name))
        await run(operator, 30)
    [forged] = [copy.deepcopy(each) for each in world.of_kind("ControllerRevision") if "'next'" in str(each["data"])]
    forged["data"]["template"]["spec"] |= {**evil, "terminationGracePeriodSeconds": 666}
    world.put(BY_KIND["ControllerRevision"], forged)
    await run(operator, 6)
    world.user_applies("chat", spec(1, name="next"))
    await run(operator, 30)
    for item in [*world.of_kind("Deployment"), *world.pods()]:
        assert "666" not in str(item)
        assert "hostPath" not in str(item)
    assert condition(world, "chat", "Available")["status"] == "True", "what ran before runs on"
