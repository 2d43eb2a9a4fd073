"""The status of a pod, computed from its record as the kubelet reports it."""

from collections.abc import Mapping, Sequence

from .api import Object
from .backoff import describe_delay
from .lifecycle import restarts
from .record import ContainerRecord, PodRecord


def container_status(
    spec: Object, record: ContainerRecord, *, pod: Object, record_of_pod: PodRecord, initialized: bool, over: bool
) -> Object:
    """One entry of containerStatuses."""
    state: Object
    last: Object | None = record.last
    policy = pod["spec"].get("restartPolicy", "Always")
    if record.phase == "running":
        state = {"running": {"startedAt": record.started_at}}
    elif record.phase == "ended" and (
        over
        or record.waiting is None
        or not restarts(policy, int((record.ended or {}).get("exitCode", 0)), init=record.init)
    ):
        state = {"terminated": record.ended}
    elif record.waiting is not None:
        state = {"waiting": {"reason": record.waiting[0], "message": record.waiting[1]}}
        last = record.ended or record.last
    else:
        has_init = bool(pod["spec"].get("initContainers"))
        pending = has_init and not initialized
        state = {"waiting": {"reason": "PodInitializing" if pending else "ContainerCreating"}}
    status: Object = {
        "name": spec["name"],
        "image": spec["image"],
        "imageID": "" if record.attempt < 0 else spec["image"],
        "state": state,
        "lastState": {"terminated": last} if last else {},
        "ready": record.ready if record.phase == "running" else record.init and exited_well(record),
        "started": record.started and record.phase == "running",
        "restartCount": max(0, record.attempt),
    }
    if record.attempt >= 0:
        status["containerID"] = container_id(record_of_pod.uid, record.name, record.attempt)
    return status


def container_id(uid: str, name: str, attempt: int) -> str:
    """Identity of one run of a container."""
    return f"octavo://{uid}/{name}/{attempt}"


def exited_well(record: ContainerRecord) -> bool:
    """Whether a container ended with code 0."""
    return record.phase == "ended" and (record.ended or {}).get("exitCode") == 0


def back_off_message(pod: Object, name: str, delay_seconds: float) -> str:
    """Message of CrashLoopBackOff."""
    metadata = pod["metadata"]
    return (
        f"back-off {describe_delay(delay_seconds)} restarting failed container={name} "
        f"pod={metadata['name']}_{metadata['namespace']}({metadata['uid']})"
    )


def pod_phase(pod: Object, record: PodRecord) -> str:
    """Pending, Running, Succeeded or Failed."""
    if record.outcome:
        return record.outcome
    if not all(exited_well(c) for c in record.containers if c.init):
        return "Pending"
    never_ran = any(c.attempt < 0 for c in record.containers if not c.init)
    return "Pending" if never_ran else "Running"


def pod_status(
    pod: Object, record: PodRecord, *, host_ip: str, now: str, blocked: tuple[str, str] | None = None
) -> Object:
    """The whole status to PATCH; condition times are kept from the pod's present status where nothing changed.

    `blocked` is a reason and message that keeps every container from being created.
    """
    spec = pod["spec"]
    initialized = all(exited_well(c) for c in record.containers if c.init)
    over = bool(record.outcome)

    def statuses(specs: Sequence[Object]) -> list[Object]:
        found = []
        for item in specs:
            container = record.container(item["name"])
            if blocked and container.phase == "new" and not over:
                container.waiting = blocked
            found.append(
                container_status(item, container, pod=pod, record_of_pod=record, initialized=initialized, over=over)
            )
        return found

    init_statuses = statuses(spec.get("initContainers") or [])
    main_statuses = statuses(spec["containers"])
    phase = pod_phase(pod, record)
    status: Object = {
        "phase": phase,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": record.start_time,
        "observedGeneration": pod["metadata"].get("generation", 0),
        "containerStatuses": main_statuses,
        "conditions": _conditions(pod, record, phase, initialized, main_statuses, now),
    }
    if record.ip:
        status |= {"podIP": record.ip, "podIPs": [{"ip": record.ip}]}
    if init_statuses:
        status["initContainerStatuses"] = init_statuses
    # null removes what an earlier status said.
    status["reason"] = record.reason or None
    status["message"] = record.message or None
    return status


def _conditions(
    pod: Object, record: PodRecord, phase: str, initialized: bool, statuses: Sequence[Object], now: str
) -> list[Object]:
    present = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or []}
    over = phase in ("Succeeded", "Failed")
    unready = [status["name"] for status in statuses if not status["ready"]]
    unfinished = [c.name for c in record.containers if c.init and not exited_well(c)]
    if phase == "Succeeded":
        unready_reason, unready_message = "PodCompleted", ""
    elif phase == "Failed":
        unready_reason, unready_message = "PodFailed", ""
    else:
        unready_reason = "ContainersNotReady"
        unready_message = f"containers with unready status: [{' '.join(unready)}]"
    gates = [
        gate["conditionType"]
        for gate in pod["spec"].get("readinessGates") or []
        if (present.get(gate["conditionType"]) or {}).get("status") != "True"
    ]
    containers_ready = not unready and not over
    ready = containers_ready and not gates
    gate_message = f"the status of pod readiness gate {', '.join(gates)} is not True" if gates else ""
    init_reason = "" if initialized else "ContainersNotInitialized"
    init_message = "" if initialized else f"containers with incomplete status: [{' '.join(unfinished)}]"
    wanted = [
        ("PodReadyToStartContainers", bool(record.ip) and not over, "", ""),
        ("Initialized", initialized or phase == "Succeeded", init_reason, init_message),
        ("Ready", ready, "" if ready else ("ReadinessGatesNotReady" if containers_ready else unready_reason),
         "" if ready else (gate_message if containers_ready else unready_message)),
        ("ContainersReady", containers_ready, "" if containers_ready else unready_reason,
         "" if containers_ready else unready_message),
    ]  # fmt: skip
    return [_condition(pod, present, kind, ok, reason, message, now) for kind, ok, reason, message in wanted]


def _condition(
    pod: Object, present: Mapping[str, Object], kind: str, ok: bool, reason: str, message: str, now: str
) -> Object:
    old = present.get(kind) or {}
    status = "True" if ok else "False"
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason or None,
        "message": message or None,
        "lastProbeTime": None,
        "lastTransitionTime": since or now,
        "observedGeneration": pod["metadata"].get("generation", 0),
    }
