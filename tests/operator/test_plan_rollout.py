"""Rollouts in a simulated cluster: no gap where a spare accelerator exists, no deadlock where none does."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_operator.api.operation_section import RolloutSection
from octavo_operator.plan import CatalogueImage, PlanSettings
from octavo_operator.plan import server_contract as contract
from octavo_operator.plan.rollout import Scene, hand_over, surges

from tests.operator.world import START, Operator, World, condition, run

CPU = CatalogueImage("cpu", "r/octavo-server:1-cpu")
CU128 = CatalogueImage("cuda12.8", "r/octavo-server:1-cuda12.8", "12.8", ("8.0", "9.0"))
CU130 = CatalogueImage("cuda13.0", "r/octavo-server:1-cuda13.0", "13.0", ("8.0", "9.0"))
SETTINGS = PlanSettings(images=(CPU, CU128))
WAIT_TICKS = 600 // 5


def labels(product="NVIDIA-H100", driver="580.65.06", cuda="13.0", **more):
    major, minor = cuda.split(".")
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/cuda.driver-version.full": driver,
        "nvidia.com/cuda.runtime-version.full": cuda,
        "nvidia.com/cuda.runtime-version.major": major,
        "nvidia.com/cuda.runtime-version.minor": minor,
        **more,
    }


def spec(replicas=1, *, name="m", rollout=None, accelerators=None, **more):
    body = {
        "model": {"uri": "pvc://models/a.gguf", "servedName": name},
        "placement": {"accelerators": accelerators or [{"vendor": "NVIDIA"}]},
        "scaling": {"mode": "Fixed"},
        "replicas": replicas,
        **more,
    }
    if rollout:
        body["rollout"] = rollout
    return body


async def settled(gpus: dict[str, int], body, settings=SETTINGS, products=None, **node_labels):
    """A world with nodes of so many accelerators, and a service that is Ready on them."""
    world = World()
    for name, count in gpus.items():
        product = (products or {}).get(name, "NVIDIA-H100")
        world.add_node(name, labels(product, **node_labels), gpu=str(count))
    world.user_applies("chat", body)
    operator = await Operator(world, settings).start()
    await run(operator, 12)
    assert condition(world, "chat", "Ready")["status"] == "True", condition(world, "chat", "Ready")
    return world, operator


def served(world):
    """Served names of the pods that are ready."""
    return {
        pod["spec"]["containers"][0]["args"][pod["spec"]["containers"][0]["args"].index("--served-name") + 1]
        for pod in world.pods()
    }


@pytest.mark.parametrize("replicas", [1, 2, 4])
async def test_with_a_spare_accelerator_no_replica_is_missed_for_a_moment(replicas):
    world, operator = await settled({"n1": replicas + 1}, spec(replicas))
    world.user_applies("chat", spec(replicas, name="next"))
    least = []
    await run(operator, 40, lambda: least.append(world.ready()))
    assert served(world) == {"next"}
    assert min(least) == replicas
    assert condition(world, "chat", "Ready")["status"] == "True"


@pytest.mark.parametrize("replicas", [2, 4])
async def test_with_every_accelerator_in_use_replicas_are_replaced_one_by_one(replicas):
    world, operator = await settled({"n1": replicas}, spec(replicas))
    world.user_applies("chat", spec(replicas, name="next"))
    least = []
    await run(operator, 60, lambda: least.append(world.ready()))
    assert served(world) == {"next"}
    assert min(least) == replicas - 1


async def test_a_single_replica_without_a_spare_waits_then_gives_way_and_the_gap_is_announced():
    world, operator = await settled({"n1": 1}, spec(1))
    world.user_applies("chat", spec(1, name="next"))
    await run(operator, 4)
    said = condition(world, "chat", "Progressing")
    assert (said["status"], said["reason"]) == ("False", "WaitingForAccelerator")
    assert "rollout.waitSeconds 600" in said["message"]
    assert "nothing serves until" in said["message"]
    assert world.ready() == 1
    statuses = []
    await run(operator, WAIT_TICKS - 10, lambda: statuses.append(condition(world, "chat", "Progressing")["message"]))
    assert world.ready() == 1, "it still serves shortly before the time is over"
    assert set(statuses) == {said["message"]}, "a wait writes no status again and again"
    await run(operator, 12)
    assert condition(world, "chat", "Progressing")["reason"] in ("Replacing", "Complete")
    await run(operator, 12)
    assert served(world) == {"next"}
    assert condition(world, "chat", "Ready")["status"] == "True"


async def test_an_accelerator_that_gets_free_while_it_waits_is_taken_and_nothing_is_missed():
    world, operator = await settled({"n1": 1}, spec(1))
    world.user_applies("chat", spec(1, name="next"))
    await run(operator, 10)
    world.add_node("n2", labels(), gpu="1")
    least = []
    await run(operator, 20, lambda: least.append(world.ready()))
    assert served(world) == {"next"}
    assert min(least) == 1


async def test_wait_seconds_of_zero_replaces_at_once():
    world, operator = await settled({"n1": 1}, spec(1, rollout={"waitSeconds": 0}))
    world.user_applies("chat", spec(1, name="next", rollout={"waitSeconds": 0}))
    await run(operator, 12)
    assert served(world) == {"next"}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        (lambda _world: {"resources": {"requests": {"cpu": "500", "memory": "8Gi"}}}, "cpu"),
        (lambda _world: {"resources": {"requests": {"cpu": "1", "memory": "9Ti"}}}, "memory"),
        (lambda world: world.change_node("n1", spec={"unschedulable": True}) or {}, "nodes that are open for pods"),
    ],
    ids=["cpu", "memory", "cordon"],
)
async def test_what_serves_never_ends_for_a_replica_that_would_find_no_node_even_then(replicas, change, lacks):
    world, operator = await settled({"n1": replicas}, spec(replicas))
    body = spec(replicas, name="next")
    body["placement"] |= change(world)
    world.user_applies("chat", body)
    least = []
    await run(operator, WAIT_TICKS + 20, lambda: least.append(world.ready()))
    assert min(least) == replicas
    said = condition(world, "chat", "Progressing")
    assert (said["status"], said["reason"]) == ("False", "Unschedulable")
    assert f"too little {lacks};" in said["message"]
    world.user_applies("chat", spec(replicas))
    await run(operator, 20)
    assert condition(world, "chat", "Ready")["status"] == "True", "the way back is open"


async def test_a_replica_that_waited_in_vain_gives_way_once_a_node_could_hold_its_successor():
    world, operator = await settled({"n1": 1}, spec(1))
    body = spec(1, name="next")
    body["placement"]["resources"] = {"requests": {"cpu": "100", "memory": "8Gi"}}
    world.user_applies("chat", body)
    await run(operator, WAIT_TICKS + 20)
    assert world.ready() == 1, "the old one serves"
    assert condition(world, "chat", "Progressing")["reason"] == "Unschedulable"
    node = world.objects["Node", "", "n1"]
    world.change_node("n1", status={"allocatable": {**node["status"]["allocatable"], "cpu": "128"}})
    await run(operator, 40)
    assert served(world) == {"next"}
    assert condition(world, "chat", "Ready")["status"] == "True"


async def test_a_move_to_a_product_without_a_free_accelerator_ends_nothing_that_serves():
    products = {"n1": "NVIDIA-H100", "n2": "NVIDIA-H200"}
    only = [{"products": ["NVIDIA-H100"]}]
    world, operator = await settled({"n1": 1, "n2": 0}, spec(1, accelerators=only), products=products)
    world.user_applies("chat", spec(1, accelerators=[{"products": ["NVIDIA-H200"]}]))
    least = []
    await run(operator, WAIT_TICKS + 20, lambda: least.append(world.ready()))
    assert min(least) == 1
    said = condition(world, "chat", "Progressing")
    assert said["reason"] == "Unschedulable"
    assert "nvidia.com/gpu" in said["message"]
    world.add_node("n3", labels("NVIDIA-H200"), gpu="1")
    await run(operator, 30)
    assert [pod["spec"]["nodeName"] for pod in world.pods()] == ["n3"]
    assert condition(world, "chat", "Ready")["status"] == "True"


async def test_a_broken_single_replica_gives_way_at_once():
    world, operator = await settled({"n1": 1}, spec(1))
    [pod] = world.pods()
    sick = copy.deepcopy(pod)
    sick["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.serves = lambda other: other["metadata"]["uid"] != pod["metadata"]["uid"]
    from octavo_operator.cluster.resources import PODS

    world.put(PODS, sick)
    world.user_applies("chat", spec(1, name="next"))
    await run(operator, 12)
    assert served(world) == {"next"}, "there was nothing to lose"


@pytest.mark.parametrize(("strategy", "least"), [("Surge", 2), ("Replace", 1)])
async def test_a_stuck_rollout_keeps_serving_and_names_its_cause(strategy, least):
    body = spec(2, rollout={"strategy": strategy})
    world, operator = await settled({"n1": 3}, body)
    world.serves = lambda pod: "bad" not in pod["spec"]["containers"][0]["args"]
    world.user_applies("chat", spec(2, name="bad", rollout={"strategy": strategy}))
    seen = []
    await run(operator, 60, lambda: seen.append(world.ready()))
    assert min(seen) == least
    assert condition(world, "chat", "Available")["status"] == "True"
    assert condition(world, "chat", "Ready")["status"] == "False"
    world.user_applies("chat", body)
    await run(operator, 30)
    assert served(world) == {"m"}
    assert condition(world, "chat", "Ready")["status"] == "True"


async def test_quick_successive_edits_converge_to_the_last_one():
    world, operator = await settled({"n1": 3}, spec(2))
    for number in range(6):
        world.user_applies("chat", spec(2, name=f"edit-{number}"))
        await run(operator, number % 3)
    await run(operator, 40)
    assert served(world) == {"edit-5"}
    assert condition(world, "chat", "Ready")["status"] == "True"
    assert len(world.of_kind("ControllerRevision")) <= 5


async def test_an_older_spec_goes_back_to_its_stored_template_although_the_catalogue_has_moved_on():
    world, operator = await settled({"n1": 3}, spec(2))
    [first] = {pod["metadata"]["labels"][contract.TEMPLATE_LABEL] for pod in world.pods()}
    world.user_applies("chat", spec(2, name="next"))
    await run(operator, 30)
    operator.stop()
    operator = await Operator(world, PlanSettings(images=(CPU, CU128, CU130))).start()
    world.user_applies("chat", spec(2))
    await run(operator, 40)
    assert {pod["metadata"]["labels"][contract.TEMPLATE_LABEL] for pod in world.pods()} == {first}


def uids(world):
    return {pod["metadata"]["uid"] for pod in world.pods()}


NEWER = PlanSettings(images=(CPU, CatalogueImage("cuda12.8", "r/octavo-server:2-cuda12.8", "12.8", ("9.0",)), CU130))


async def test_a_new_catalogue_with_a_better_variant_moves_no_pod_and_is_told():
    world, operator = await settled({"n1": 4}, spec(2))
    before = uids(world)
    operator.stop()
    operator = await Operator(world, NEWER).start()
    await run(operator, 30)
    assert uids(world) == before
    said = condition(world, "chat", "Tuned")
    assert said["reason"] == "UpdateAvailable"
    assert CU130.image in said["message"]
    assert condition(world, "chat", "Ready")["status"] == "True"


@pytest.mark.parametrize(("gpus", "least"), [(3, 2), (2, 1)])
async def test_the_next_rollout_hands_over_to_the_better_variant_without_a_deadlock(gpus, least):
    world, operator = await settled({"n1": gpus}, spec(2))
    operator.stop()
    operator = await Operator(world, NEWER).start()
    world.user_applies("chat", spec(2, name="next"))
    seen = []
    await run(operator, 60, lambda: seen.append(world.ready()))
    assert served(world) == {"next"}
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods()} == {CU130.image}
    assert min(seen) == least
    assert len(world.of_kind("Deployment")) == 1, "the variant that was left is pruned"


async def test_a_single_replica_waits_for_its_time_before_it_hands_over_to_another_variant():
    world, operator = await settled({"n1": 1}, spec(1))
    operator.stop()
    operator = await Operator(world, NEWER).start()
    world.user_applies("chat", spec(1, name="next"))
    await run(operator, WAIT_TICKS - 10)
    assert world.ready() == 1
    assert condition(world, "chat", "Progressing")["reason"] == "WaitingForAccelerator"
    await run(operator, 30)
    assert served(world) == {"next"}
    assert world.ready() == 1


async def test_adoption_at_once_rolls_over_to_the_better_variant():
    body = spec(2, rollout={"adopt": "Immediately"})
    world, operator = await settled({"n1": 3}, body)
    operator.stop()
    operator = await Operator(world, NEWER).start()
    seen = []
    await run(operator, 60, lambda: seen.append(world.ready()))
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods()} == {CU130.image}
    assert min(seen) == 2


async def test_a_placement_that_leaves_a_product_moves_its_replicas_without_a_gap():
    products = {"n1": "NVIDIA-H100", "n2": "NVIDIA-H200"}
    body = spec(2, accelerators=[{"products": ["NVIDIA-H100"]}])
    world, operator = await settled({"n1": 2, "n2": 2}, body, products=products)
    world.user_applies("chat", spec(2, accelerators=[{"products": ["NVIDIA-H200"]}]))
    seen = []
    await run(operator, 40, lambda: seen.append(world.ready()))
    assert {pod["spec"]["nodeName"] for pod in world.pods()} == {"n2"}
    assert min(seen) == 2


async def test_the_operators_counts_are_its_own_and_the_rest_is_steady():
    _, operator = await settled({"n1": 4}, spec(3))
    written = len(operator.api.writes)
    await run(operator, 200)
    assert len(operator.api.writes) == written


@given(
    st.sampled_from(["Auto", "Surge", "Replace"]),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(0, 1200)),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
def test_auto_waits_no_longer_than_it_says_except_in_vain_and_surge_never_gives_way(
    strategy, replicas, spare, old_ready, waited, before, in_vain
):
    section = RolloutSection.model_validate({"strategy": strategy})
    since = None if waited is None else START - timedelta(seconds=waited)
    found = surges(section, Scene(replicas, spare, old_ready, since, START, in_vain), before)
    if strategy != "Auto":
        assert found == (strategy == "Surge")
    elif in_vain and old_ready:
        assert found
    elif waited is not None and waited >= section.wait_seconds:
        assert not found


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.booleans())
def test_a_hand_over_keeps_within_one_of_the_total(total, leaving, arrived, surge):
    stay, wanted = hand_over(total, leaving, arrived, surge)
    assert 0 <= stay <= leaving
    assert wanted <= total
    assert stay + wanted <= total + (1 if surge else 0) or stay == 0
    assert stay + arrived >= min(total - (0 if surge else 1), leaving + arrived)


@given(st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_a_hand_over_ends_with_everything_on_the_new_types(total, leaving, surge):
    arrived = 0
    for _ in range(total + leaving + 2):
        leaving, arrived = hand_over(total, leaving, arrived, surge)
    assert (leaving, arrived) == (0, total)
