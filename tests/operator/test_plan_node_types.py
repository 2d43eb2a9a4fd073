"""Which nodes a placement admits and what happens when nodes change: the least that is right."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_operator.api.placement_section import PlacementSection
from octavo_operator.plan import CatalogueImage, PlanSettings
from octavo_operator.plan.accelerators import read_accelerators
from octavo_operator.plan.affinity import affinity, vendor_tolerations
from octavo_operator.plan.inventory import alone, classes, view
from octavo_operator.plan.node_types import KnownType, TypeKey
from octavo_operator.plan.resolution import resolve, resolve_blindly
from octavo_operator.plan.server_contract import PRODUCT_OVERRIDE_LABEL

from tests.operator.test_plan_rollout import CPU, CU128, CU130, SETTINGS, labels, settled, spec, uids
from tests.operator.world import Operator, World, _matches, condition, run

IMAGES = (CPU, CU128)


def node(name="g1", found=None, taints=(), **resources):
    amounts = {"cpu": "64", **({"nvidia.com/gpu": "8"} if found is not None and not resources else {}), **resources}
    return view(
        {
            "metadata": {"name": name, "labels": found or {}},
            "spec": {"taints": list(taints)},
            "status": {"allocatable": amounts},
        }
    )


def placement(**fields):
    return PlacementSection.model_validate(fields)


def products(place, nodes, known=()):
    return [item.key.product for item in resolve(place, nodes, IMAGES, None, known).types]


def test_cpu_nodes_serve_only_where_no_accelerator_fits():
    nodes = [node("c1"), node("g1", labels())]
    found = {mode: products(placement(cpu=mode), nodes) for mode in ("Allowed", "Required", "Forbidden")}
    assert found == {"Allowed": ["NVIDIA-H100"], "Required": ["CPU"], "Forbidden": ["NVIDIA-H100"]}
    assert products(placement(), nodes[:1]) == ["CPU"]
    assert products(placement(cpu="Forbidden"), nodes[:1]) == []


def test_an_h200_is_never_taken_for_another_product_and_memory_and_capability_count():
    nodes = [node("g1", labels("NVIDIA-H200", **{"nvidia.com/gpu.memory": "143771"}))]
    assert not products(placement(accelerators=[{"products": ["NVIDIA-H100"]}]), nodes)
    assert products(placement(accelerators=[{"minMemoryGiB": 141}]), nodes)
    assert not products(placement(accelerators=[{"minMemoryGiB": 180}]), nodes)
    assert products(placement(accelerators=[{"minComputeCapability": "9.0"}]), nodes)
    assert not products(placement(accelerators=[{"minComputeCapability": "10.0"}]), nodes)


def test_a_product_that_no_table_knows_is_taken_for_what_its_capability_says():
    nodes = [node("g1", labels("NVIDIA-Z9000-PROTOTYPE"))]
    assert products(placement(accelerators=[{"minComputeCapability": "9.0"}]), nodes) == ["NVIDIA-Z9000-PROTOTYPE"]


def test_a_shared_accelerator_is_used_only_when_it_is_asked_for_by_name():
    nodes = [node("g1", labels("NVIDIA-L4-SHARED"))]
    assert products(placement(), nodes) == []
    assert products(placement(accelerators=[{"products": ["NVIDIA-L4-SHARED"]}]), nodes) == ["NVIDIA-L4-SHARED"]


def test_the_cheapest_type_comes_first_and_at_one_price_whole_accelerators_before_slices():
    nodes = [
        node("g1", labels("NVIDIA-A100-MIG-1g.10gb")),
        node("g2", labels("NVIDIA-H100")),
        node("g3", labels("NVIDIA-L4")),
    ]
    costs = [{"products": ["NVIDIA-L4"], "costWeight": 10}, {"vendor": "NVIDIA"}]
    assert products(placement(accelerators=costs), nodes) == ["NVIDIA-L4", "NVIDIA-H100", "NVIDIA-A100-MIG-1g.10gb"]


def test_a_tainted_node_fits_only_a_service_that_tolerates_it_and_its_vendors_taint_is_always_tolerated():
    team = {"key": "team", "value": "a", "effect": "NoSchedule"}
    vendor = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    assert not products(placement(), [node("g1", labels(), [team])])
    assert products(placement(tolerations=[{"key": "team", "value": "a"}]), [node("g1", labels(), [team])])
    assert products(placement(), [node("g1", labels(), [vendor])])
    key = resolve(placement(), [node("g1", labels(), [vendor])], IMAGES, None).types[0].key
    assert vendor_tolerations(key) == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert vendor_tolerations(TypeKey("CPU")) == []


def test_amd_is_seen_and_refused_with_the_way_out():
    amd = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "191G"}
    nodes = [node("a1", amd, **{"amd.com/gpu": "8"})]
    found = resolve(placement(accelerators=[{"vendor": "AMD"}]), nodes, IMAGES, None)
    assert (found.types, found.image_reason) == ((), "VendorNotBuilt")
    assert "ROCm" in found.image_message
    [pinned] = resolve(
        placement(accelerators=[{"vendor": "AMD"}]), nodes, IMAGES, CatalogueImage("p", "r/rocm:1")
    ).types
    assert (pinned.key.resource, pinned.choice.fit) == ("amd.com/gpu", "Pinned")


def test_two_drivers_of_one_product_share_a_type_where_one_image_serves_both_alike():
    nodes = [
        node("g1", labels(driver="570.86.15", cuda="12.8")),
        node("g2", labels(driver="575.57.08", cuda="12.9")),
        node("g3", labels(driver="535.183.06", cuda="12.2")),
        node("g4", labels(driver="525.60.13", cuda="12.0")),
    ]
    native, minor = sorted(resolve(placement(), nodes, IMAGES, None).types, key=lambda item: item.nodes)
    assert (native.nodes, native.choice.fit, native.driver) == (("g1", "g2"), "Native", "570.86.15")
    assert (minor.nodes, minor.choice.fit, minor.cuda) == (("g3", "g4"), "MinorVersion", "12.0")
    assert minor.choice.fallback


def test_a_placement_that_nothing_fits_says_what_was_asked_what_exists_and_what_could_not_be_read():
    nodes = [node("c1"), node("g1", labels("NVIDIA-L4")), node("g2", {"nvidia.com/gpu.product": "NVIDIA-H100"})]
    found = resolve(placement(accelerators=[{"products": ["NVIDIA-H100"]}]), nodes, IMAGES, None)
    for word in ("NVIDIA-H100", "3 nodes exist (CPU, NVIDIA-L4)", "g2", "nvidia.com/gpu.compute.major"):
        assert word in found.message


def test_without_access_to_nodes_products_and_image_must_be_named():
    assert resolve_blindly(placement(), IMAGES, None).reason == "NodesNotReadable"
    named = placement(accelerators=[{"products": ["NVIDIA-H100", "NVIDIA-H200"]}])
    assert resolve_blindly(named, IMAGES, None).types == ()
    pin = CatalogueImage("pinned", "r/i:1", "12.8")
    assert {item.key.product for item in resolve_blindly(named, IMAGES, pin).types} == {"NVIDIA-H100", "NVIDIA-H200"}
    assert [item.key.product for item in resolve_blindly(placement(cpu="Required"), IMAGES, None).types] == ["CPU"]


# Affinity


def admits(key, found):
    terms = affinity(key)["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return any(all(_matches(rule, found) for rule in term["matchExpressions"]) for term in terms)


@pytest.mark.parametrize(
    ("fit", "cuda", "driver", "admitted"),
    [
        ("Native", "12.8", "12.8", True),
        ("Native", "12.8", "12.9", True),
        ("Native", "12.8", "13.0", True),
        ("Native", "12.8", "12.6", False),
        ("Native", "12.8", "11.8", False),
        ("MinorVersion", "12.8", "12.0", True),
        ("MinorVersion", "12.8", "13.0", True),
        ("MinorVersion", "12.8", "11.8", False),
        ("Native", "13.0", "13.0", True),
        ("Native", "13.0", "12.9", False),
    ],
)
@pytest.mark.parametrize("spelling", ["nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime"])
def test_affinity_admits_drivers_that_run_the_image_under_every_spelling(fit, cuda, driver, admitted, spelling):
    key = TypeKey("NVIDIA-H100", "NVIDIA", "9.0", "", "nvidia.com/gpu", "x", fit, cuda)
    major, minor = driver.split(".")
    found = {"nvidia.com/gpu.product": "NVIDIA-H100", f"{spelling}.major": major, f"{spelling}.minor": minor}
    found |= {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}
    assert admits(key, found) == admitted
    assert not admits(key, {**found, "nvidia.com/gpu.product": "NVIDIA-H200"})


def test_affinity_follows_the_override_and_leaves_overridden_nodes_to_their_own_type():
    key = TypeKey("pool-a", "NVIDIA", "9.0", "", "nvidia.com/gpu", "x", "Native", "12.8")
    plain = labels("NVIDIA-H100")
    assert admits(key, {**plain, PRODUCT_OVERRIDE_LABEL: "pool-a"})
    assert not admits(key, plain)
    own = TypeKey("NVIDIA-H100", "NVIDIA", "9.0", "", "nvidia.com/gpu", "x", "Native", "12.8")
    assert admits(own, plain)
    assert not admits(own, {**plain, PRODUCT_OVERRIDE_LABEL: "pool-a"})


def test_affinity_of_a_slice_on_a_mixed_node_names_the_whole_product():
    found = labels("NVIDIA-H100")
    resources = {"nvidia.com/mig-1g.10gb": "4"}
    [facts], _ = read_accelerators({"metadata": {"name": "n", "labels": found}, "status": {"allocatable": resources}})
    wanted = placement(accelerators=[{"products": [facts.product]}])
    [slices] = resolve(wanted, [node("g1", found, **resources)], IMAGES, None).types
    assert slices.key.resource == "nvidia.com/mig-1g.10gb"
    assert admits(slices.key, found)


def test_cpu_pods_keep_off_labelled_accelerators():
    key = TypeKey("CPU", variant="cpu", fit="CPU")
    assert admits(key, {})
    for found in (labels(), {"amd.com/gpu.product-name": "x"}, {PRODUCT_OVERRIDE_LABEL: "x"}):
        assert not admits(key, found)


DRIVERS = st.sampled_from(
    [("525.60.13", "12.0"), ("560.35.03", "12.6"), ("570.86.15", "12.8"), ("580.65.06", "13.0"), ("520.1.1", "11.8")]
)
PRODUCTS = st.sampled_from(["NVIDIA-H100", "NVIDIA-L4", "NVIDIA-A100-MIG-1g.10gb", "NVIDIA-L4-SHARED"])


def discovered(product, driver, override, spelling, capability, strategy, stale):
    """Labels of a node as feature discovery of one time or another writes them."""
    found = labels(product, *driver)
    found["nvidia.com/gpu.compute.major"], found["nvidia.com/gpu.compute.minor"] = capability.split(".")
    if product.endswith("-SHARED"):
        found["nvidia.com/gpu.sharing-strategy"] = strategy
    if "-MIG-" in product:
        found["nvidia.com/gpu.slices.gi"] = "1"
    if override:
        found[PRODUCT_OVERRIDE_LABEL] = override
    old = dict(zip(("nvidia.com/cuda.runtime.major", "nvidia.com/cuda.runtime.minor"), stale.split("."), strict=True))
    if spelling == "both":
        return found | old
    if spelling == "deprecated":
        plain = {key: value for key, value in found.items() if "/cuda." not in key}
        major, minor = driver[1].split(".")
        return plain | {"nvidia.com/cuda.runtime.major": major, "nvidia.com/cuda.runtime.minor": minor}
    return found


LABELS = st.builds(
    discovered,
    PRODUCTS,
    DRIVERS,
    st.sampled_from(["", "", "pool"]),
    st.sampled_from(["current", "deprecated", "both"]),
    st.sampled_from(["9.0", "9.0", "8.0"]),
    st.sampled_from(["time-slicing", "mps"]),
    st.sampled_from(["11.8", "13.0"]),
)


@given(st.lists(LABELS, min_size=1, max_size=6), st.booleans())
def test_a_type_admits_every_node_that_it_counts_and_no_label_stands_for_two_types(found, named):
    nodes = [node(f"g{number}", each) for number, each in enumerate(found)]
    wanted = placement(
        accelerators=[{"products": sorted({view.accelerators[0].product for view in nodes})}] if named else []
    )
    types = resolve(wanted, nodes, (*IMAGES, CU130), None).types
    assert len({item.label for item in types}) == len(types)
    for item in types:
        for name in item.nodes:
            assert admits(item.key, found[int(name[1:])]), (item.key, found[int(name[1:])])


@settings(max_examples=300)
@given(st.lists(LABELS, min_size=1, max_size=6))
def test_no_pod_of_a_type_can_land_on_a_node_that_its_image_or_sharing_does_not_suit(found):
    nodes = [node(f"g{number}", each) for number, each in enumerate(found)]
    wanted = placement(accelerators=[{"products": sorted({each.accelerators[0].product for each in nodes})}])
    for item in resolve(wanted, nodes, (*IMAGES, CU130), None).types:
        for read, each in zip(nodes, found, strict=True):
            # Under one word of an administrator a replica for a part may get a whole accelerator, never the other way.
            whole_for_part = item.key.sharing and any(facts.sharing == "" for facts in read.accelerators)
            if admits(item.key, each) and not (PRODUCT_OVERRIDE_LABEL in each and whole_for_part):
                assert any(item.key.runs_on(facts) for facts in read.accelerators), (item.key, each)


def test_one_word_for_two_capabilities_keeps_each_image_where_it_runs():
    hopper = labels(driver="560.35.03", cuda="12.6") | {PRODUCT_OVERRIDE_LABEL: "fast"}
    blackwell = labels(driver="570.86.15", cuda="12.8") | {PRODUCT_OVERRIDE_LABEL: "fast"}
    blackwell["nvidia.com/gpu.compute.major"] = "10"
    images = (CatalogueImage("a", "r/a", "12.6", ("9.0",)), CatalogueImage("b", "r/b", "12.8", ("9.0", "10.0")))
    nodes = [node("h", hopper), node("b", blackwell)]
    types = {item.choice.image.name: item for item in resolve(placement(), nodes, images, None).types}
    assert (types["a"].nodes, types["b"].nodes) == (("h",), ("b",))
    assert admits(types["a"].key, hopper)
    assert not admits(types["a"].key, blackwell), "its image has no code for compute capability 10.0"


@given(st.lists(LABELS, min_size=1, max_size=5), st.lists(LABELS, max_size=3))
def test_nodes_that_arrive_change_no_type_that_pods_run_on(found, more):
    nodes = [node(f"g{number}", each) for number, each in enumerate(found)]
    before = resolve(placement(), nodes, IMAGES, None)
    known = [KnownType(i.label, i.key, i.choice.image.image, True, True) for i in before.types if not i.key.is_cpu]
    later = [*nodes, *(node(f"h{number}", each) for number, each in enumerate(more))]
    after = resolve(placement(), later, (*IMAGES, CU130), None, known)
    assert {item.label for item in known} <= {item.label for item in after.types}
    assert after.held == ()


@given(st.lists(LABELS, min_size=1, max_size=5), st.data())
def test_a_live_type_whose_nodes_vanish_is_held_and_never_lost(found, data):
    nodes = [node(f"g{number}", each) for number, each in enumerate(found)]
    before = resolve(placement(), nodes, IMAGES, None)
    known = [KnownType(i.label, i.key, i.choice.image.image, True, True) for i in before.types if not i.key.is_cpu]
    left = data.draw(st.lists(st.sampled_from(nodes), unique_by=lambda item: item.name))
    after = resolve(placement(), sorted(left, key=lambda item: item.name), IMAGES, None, known)
    assert {item.label for item in known} <= {*(item.label for item in after.types), *after.held}


# What node changes do to running pods

SPARE = {"n1": 2, "n2": 2}


async def unmoved(world, operator, ticks=20):
    before = uids(world)
    await run(operator, ticks)
    return uids(world) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.change_node("n1", labels=labels(driver="590.1.1", cuda="13.1")),
        lambda world: world.change_node("n1", labels=labels(driver="575.57.08", cuda="12.9")),
        lambda world: world.change_node("n1", spec={"unschedulable": True}),
        lambda world: world.change_node("n1", labels={}),
        lambda world: world.change_node("n1", labels={**labels(), "nvidia.com/gpu.compute.major": ""}),
        lambda world: world.change_node("n1", labels=labels("NVIDIA-H200")),
        lambda world: world.change_node("n1", labels={**labels(), PRODUCT_OVERRIDE_LABEL: "pool"}),
        lambda world: world.change_node("n1", labels=labels(driver="520.61.05", cuda="11.8")),
        lambda world: world.add_node("n3", labels("NVIDIA-L4"), gpu="8"),
        lambda world: world.add_node("n3", labels(), gpu="8"),
        lambda world: world.add_node("n3", {"nvidia.com/gpu.product": ""}, gpu="8"),
    ],
    ids=["driver up", "driver within", "cordon", "no labels", "odd label", "other product", "override",
         "driver too old", "other node", "same node", "odd node"],
)  # fmt: skip
async def test_a_change_of_a_node_moves_no_pod_that_runs(change):
    world, operator = await settled(SPARE, spec(2), driver="570.86.15", cuda="12.8")
    change(world)
    assert await unmoved(world, operator)
    assert condition(world, "chat", "Available")["status"] == "True"


async def test_a_type_whose_labels_vanish_is_held_said_and_comes_back():
    world, operator = await settled({"n1": 2}, spec(2))
    kept = world.objects["Node", "", "n1"]["metadata"]["labels"]
    world.change_node("n1", labels={})
    assert await unmoved(world, operator)
    said = condition(world, "chat", "NodeTypesResolved")
    assert (said["status"], said["reason"]) == ("False", "TypeHeld")
    assert " on n1: " in said["message"], "the node is named on which the replica is held"
    assert "no label nvidia.com/gpu.product" in said["message"] or "bring the nodes" in said["message"]
    assert condition(world, "chat", "Ready")["status"] == "True", "its pods serve the wanted template"
    world.user_applies("chat", spec(1))
    await run(operator, 5)
    assert world.ready() == 1, "a held type still heeds its count"
    world.change_node("n1", labels=kept)
    await run(operator, 5)
    assert condition(world, "chat", "NodeTypesResolved")["status"] == "True"


async def test_replicas_outlive_the_loss_of_their_stored_template_and_of_their_nodes_labels():
    world, operator = await settled({"n1": 2}, spec(2))
    from octavo_operator.cluster.resources import BY_KIND

    world.change_node("n1", labels={})
    for item in world.of_kind("ControllerRevision"):
        world.remove(BY_KIND["ControllerRevision"], "team", item["metadata"]["name"])
    assert await unmoved(world, operator)
    assert condition(world, "chat", "Available")["status"] == "True"


async def test_pods_of_a_node_that_is_gone_go_to_another_type_with_room():
    products_of = {"n1": "NVIDIA-H100", "n2": "NVIDIA-H200"}
    costs = [{"products": ["NVIDIA-H100"], "costWeight": 1}, {"products": ["NVIDIA-H200"], "costWeight": 2}]
    world, operator = await settled({"n1": 1, "n2": 1}, spec(1, accelerators=costs), products=products_of)
    [pod] = world.pods()
    assert pod["spec"]["nodeName"] == "n1"
    from octavo_operator.cluster.resources import NODES, PODS

    world.remove(NODES, "", "n1")
    world.remove(PODS, "team", pod["metadata"]["name"])
    await run(operator, 30)
    assert [item["spec"]["nodeName"] for item in world.pods()] == ["n2"]
    assert condition(world, "chat", "Ready")["status"] == "True"


async def test_no_accelerator_free_says_which_one_is_waited_for():
    world = World()
    world.add_node("n1", labels(), gpu="1")
    world.user_applies("chat", spec(2))
    operator = await Operator(world, SETTINGS).start()
    await run(operator, 20)
    said = condition(world, "chat", "Ready")
    assert said["reason"] == "WaitingForAccelerator"
    assert "NVIDIA-H100" in said["message"]
    written = len(operator.api.writes)
    await run(operator, 200)
    assert len(operator.api.writes) == written, "waiting is no reason to write"


async def test_a_driver_too_old_is_refused_before_a_pod_is_made():
    world = World()
    world.add_node("n1", labels(driver="520.61.05", cuda="11.8"), gpu="1")
    world.user_applies("chat", spec(1))
    operator = await Operator(world, SETTINGS).start()
    await run(operator, 5)
    said = condition(world, "chat", "ImageResolved")
    assert (said["status"], said["reason"]) == ("False", "DriverTooOld")
    assert "520.61.05" in said["message"]
    assert "12.8" in said["message"]
    assert world.pods() == []


async def test_slower_kernels_are_stated_in_status_and_the_service_runs():
    world, _ = await settled({"n1": 1}, spec(1), driver="535.183.06", cuda="12.2")
    said = condition(world, "chat", "ImageResolved")
    assert (said["status"], said["reason"]) == ("True", "KernelFallback")
    [found] = world.get("InferenceService", "chat")["status"]["nodeTypes"]
    assert found["imageMode"] == "MinorVersion"
    assert "12.6" in found["kernelFallback"]


async def test_fast_kernels_come_first_at_one_price_and_only_what_is_used_is_called_slow():
    world = World()
    world.add_node("n1", labels("NVIDIA-A10", driver="535.183.06", cuda="12.2"), gpu="1")
    world.add_node("n2", labels("NVIDIA-H100", driver="570.86.15", cuda="12.8"), gpu="1")
    world.user_applies("chat", spec(1))
    operator = await Operator(world, SETTINGS).start()
    await run(operator, 12)
    assert [pod["spec"]["nodeName"] for pod in world.pods()] == ["n2"]
    assert condition(world, "chat", "ImageResolved")["reason"] == "Resolved"
    world.user_applies("chat", spec(2))
    await run(operator, 12)
    said = condition(world, "chat", "ImageResolved")
    assert said["reason"] == "KernelFallback"
    assert said["message"].startswith("NVIDIA-A10: "), "the slow one is named"


async def test_a_held_type_is_told_with_its_product_and_what_a_new_start_would_meet():
    world, operator = await settled({"n1": 1}, spec(1))
    world.change_node("n1", labels=labels(driver="520.61.05", cuda="11.8"))
    assert await unmoved(world, operator)
    said = condition(world, "chat", "NodeTypesResolved")
    assert said["reason"] == "TypeHeld"
    for word in ("NVIDIA-H100", "started anew they would not run", "520.61.05", "525.60.13"):
        assert word in said["message"]
    world.change_node("n1", labels={**labels(), "nvidia.com/cuda.runtime-version.major": "x"})
    assert await unmoved(world, operator)
    said = condition(world, "chat", "NodeTypesResolved")
    assert "node n1 (NVIDIA-H100) has no usable label nvidia.com/cuda.runtime-version.major" in said["message"]


async def test_a_service_on_cpus_stays_there_when_an_accelerator_arrives():
    world = World()
    world.add_node("c1")
    world.user_applies("chat", {**spec(1), "placement": {}})
    operator = await Operator(world, SETTINGS).start()
    await run(operator, 12)
    assert condition(world, "chat", "Ready")["status"] == "True"
    world.add_node("n1", labels(), gpu="1")
    assert await unmoved(world, operator)


async def test_without_nodes_access_a_service_that_names_everything_runs():
    world = World()
    world.add_node("n1", labels(), gpu="1")
    place = {"accelerators": [{"products": ["NVIDIA-H100"]}]}
    image = {"policy": "Pinned", "reference": "r/i:1", "cudaVersion": "12.8"}
    world.user_applies("chat", {**spec(1), "placement": place, "image": image})
    blind = PlanSettings(images=IMAGES, reads_nodes=False, image_prefixes=("r/",))
    operator = await Operator(world, blind).start()
    operator.indexes.views = lambda: ()
    await run(operator, 12)
    assert condition(world, "chat", "Ready")["status"] == "True"


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(0, 2), LABELS, st.booleans()), max_size=6))
async def test_whatever_labels_a_running_service_sees_no_pod_is_ended_for_it(changes):
    world, operator = await settled({"n1": 2, "n2": 1, "n3": 1}, spec(2))
    before = uids(world)
    for number, found, cordoned in changes:
        world.change_node(f"n{number + 1}", labels=found, spec={"unschedulable": cordoned})
        await run(operator, 2)
    assert uids(world) == before


@given(st.lists(LABELS, min_size=1, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8))
def test_nodes_taken_by_class_resolve_as_each_alone_does(found, plain):
    team = [{"key": "team", "effect": "NoSchedule"}]
    nodes = [node(f"g{n}", None if plain[n] else each, team if n % 3 == 2 else ()) for n, each in enumerate(found)]
    for place in (
        placement(),
        placement(cpu="Required"),
        placement(tolerations=[{"key": "team", "operator": "Exists"}]),
    ):
        grouped = resolve(place, nodes, IMAGES, None, (), classes(nodes))
        one_by_one = resolve(place, nodes, IMAGES, None, (), alone(nodes))
        assert {item.label: item.nodes for item in grouped.types} == {
            item.label: item.nodes for item in one_by_one.types
        }
        assert (grouped.reason, grouped.message) == (one_by_one.reason, one_by_one.message)
