"""Pods on a real node agent under a real control plane: they run, fail, wait, restart and end as on a real node."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from octavo_localcluster import Cluster

pytestmark = pytest.mark.cluster

DEADLINE_SECONDS = 60.0
IMAGE = "registry.example/octavo-server:test"
SERVE = ["python", "-u", "-m", "http.server", "8000", "--bind", "$(POD_IP)"]
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}

Object = dict[str, Any]


class Namespace:
    """kubectl in one namespace of a test's own."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *arguments: str, body: Object | None = None, check: bool = True) -> str:
        command = [
            str(self.cluster.program("kubectl")), "--kubeconfig", str(self.cluster.kubeconfig), "-n", self.name,
            *arguments,
        ]  # fmt: skip
        text = None if body is None else json.dumps(body)
        limit = DEADLINE_SECONDS + 10
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=limit, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": list(objects)})

    def pod(self, name: str) -> Object:
        return dict(json.loads(self.kubectl("get", "pod", name, "-o", "json")))

    def container(self, name: str) -> Object:
        statuses = self.pod(name).get("status", {}).get("containerStatuses") or [{"state": {}, "lastState": {}}]
        return dict(statuses[0])

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (found := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"{what} did not come within {DEADLINE_SECONDS} s:\n{self.kubectl('describe', 'pods')}")
            time.sleep(0.1)
        return found

    def until_phase(self, name: str, phase: str) -> Object:
        self.until(lambda: self.pod(name).get("status", {}).get("phase") == phase, f"phase {phase} of {name}")
        return self.pod(name)

    def until_ready(self, name: str) -> Object:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={DEADLINE_SECONDS:.0f}s")
        return self.pod(name)

    def until_waiting(self, name: str, reason: str) -> str:
        def message() -> str | None:
            waiting = self.container(name)["state"].get("waiting", {})
            return f"{waiting.get('message', '')} " if waiting.get("reason") == reason else None

        return str(self.until(message, f"waiting reason {reason} of {name}"))


def pod(
    name: str, command: list[str], *, labels: Object | None = None, spec: Object | None = None, **more: Any
) -> Object:
    container = {"name": "main", "image": IMAGE, "command": command, **more}
    whole = {"terminationGracePeriodSeconds": 2, "restartPolicy": "Never", "containers": [container], **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": whole}


def python(code: str) -> list[str]:
    return ["python", "-u", "-c", code]


@pytest.fixture(scope="module")
def ns(cluster: Cluster) -> Iterator[Namespace]:
    namespace = Namespace(cluster, f"agent-{uuid.uuid4().hex[:6]}")
    namespace.kubectl("create", "namespace", namespace.name)
    namespace.until(lambda: "default" in namespace.kubectl("get", "serviceaccounts"), "the default service account")
    yield namespace
    namespace.kubectl("delete", "namespace", namespace.name, "--wait=false")


def test_a_pod_that_ends_well_reports_success_and_keeps_its_log(ns: Namespace) -> None:
    ns.apply(pod("good", python("print('one'); print('two')")))
    state = ns.until_phase("good", "Succeeded")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (0, "Completed")
    assert ns.kubectl("logs", "good") == "one\ntwo\n"
    assert ns.kubectl("logs", "good", "--tail=1") == "two\n"
    assert ns.kubectl("logs", "good", "--timestamps").splitlines()[0].endswith("Z one")


def test_a_failing_pod_reports_exit_code_and_termination_message_cut_at_4096_bytes(ns: Namespace) -> None:
    ns.apply(
        pod("bad", python("open('/dev/termination-log','w').write('x' * 5000); raise SystemExit(7)")),
        pod("tail", python("print('why'); raise SystemExit(3)"), terminationMessagePolicy="FallbackToLogsOnError"),
    )
    state = ns.until_phase("bad", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"], state["message"]) == (7, "Error", "x" * 4096)
    state = ns.until_phase("tail", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["message"]) == (3, "why\n")


def test_logs_can_be_followed_while_the_pod_runs(ns: Namespace) -> None:
    code = "import time\nfor i in range(20): print(i); time.sleep(0.1)"
    ns.apply(pod("talk", python(code)))
    ns.until_phase("talk", "Running")
    assert ns.kubectl("logs", "-f", "talk").split() == [str(i) for i in range(20)]


def test_a_crashing_container_backs_off_and_shows_its_former_log(ns: Namespace) -> None:
    ns.apply(pod("crash", python("print('bye'); raise SystemExit(5)"), spec={"restartPolicy": "Always"}))
    assert "back-off 10s restarting failed container=main" in ns.until_waiting("crash", "CrashLoopBackOff")
    status = ns.container("crash")
    assert status["lastState"]["terminated"]["exitCode"] == 5
    assert status["restartCount"] == 1
    assert ns.kubectl("logs", "crash", "--previous") == "bye\n"
    ns.kubectl("delete", "pod", "crash", "--wait=false")


def test_init_containers_run_in_order_and_a_failed_one_ends_the_pod(ns: Namespace) -> None:
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mount = [{"name": "v", "mountPath": "/data"}]

    def init(name: str, code: str) -> Object:
        return {"name": name, "image": IMAGE, "command": python(code), "volumeMounts": mount}

    first = init("first", "open('/data/a', 'w').write('1')")
    second = init("second", "open('/data/b', 'w').write(open('/data/a').read() + '2')")
    ns.apply(
        pod("ordered", python("print(open('/data/b').read())"), volumeMounts=mount,
            spec=volume | {"initContainers": [first, second]}),
        pod("stuck", python("print('never')"),
            spec=volume | {"initContainers": [init("first", "raise SystemExit(4)")]}),
    )  # fmt: skip
    ns.until_phase("ordered", "Succeeded")
    assert ns.kubectl("logs", "ordered") == "12\n"
    status = ns.until_phase("stuck", "Failed")["status"]
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"


def test_a_missing_secret_is_said_and_the_pod_starts_once_it_is_there(ns: Namespace) -> None:
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "late", "key": "token"}}}
    optional = {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k", "optional": True}}}
    ns.apply(pod("needy", python("import os; print(os.environ['KEY'], 'NONE' in os.environ)"), env=[key, optional]))
    assert 'secret "late" not found' in ns.until_waiting("needy", "CreateContainerConfigError")
    ns.kubectl("create", "secret", "generic", "late", "--from-literal=token=abc")
    ns.until_phase("needy", "Succeeded")
    assert ns.kubectl("logs", "needy") == "abc False\n"


def test_what_the_node_can_not_do_becomes_a_waiting_reason(ns: Namespace) -> None:
    unknown = pod("unknown", ["true"])
    unknown["spec"]["containers"][0]["image"] = "nginx:1"
    ns.apply(unknown, pod("hostly", ["true"], spec={"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}))
    assert "spec.volumes[0].hostPath" in ns.until_waiting("hostly", "UnsupportedField")
    assert "no program of this local cluster stands for image 'nginx:1'" in ns.until_waiting("unknown", "ErrImagePull")
    ns.kubectl("delete", "pod", "unknown", "hostly", "--wait=false")


def test_the_projected_token_authenticates_as_the_pods_service_account(ns: Namespace) -> None:
    code = """
import json, os, ssl, urllib.request
folder = os.environ["OCTAVO_SERVICEACCOUNT_DIR"]
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
request = urllib.request.Request(url + "/apis/authentication.k8s.io/v1/selfsubjectreviews", json.dumps(body).encode(),
    {"Authorization": "Bearer " + open(folder + "/token").read(), "Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, context=ssl.create_default_context(cafile=folder + "/ca.crt")))
print(answer["status"]["userInfo"]["username"])
print(open("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read())
"""
    ns.apply(pod("who", python(code)))
    ns.until_phase("who", "Succeeded")
    assert ns.kubectl("logs", "who") == f"system:serviceaccount:{ns.name}:default\n{ns.name}\n"


def test_a_claim_shows_the_data_of_its_local_volume(ns: Namespace) -> None:
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"},
        "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "local-models",
                 "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    volumes = {"volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}]}
    show = python("import os, sys; print(*os.listdir(sys.argv[1].partition('=')[2]))")
    ns.apply(
        claim,
        pod("reader", show, args=["--model=/models/smollm2"], spec=volumes,
            volumeMounts=[{"name": "m", "mountPath": "/models/smollm2"}]),
    )  # fmt: skip
    ns.until_phase("reader", "Succeeded")
    assert ".gguf" in ns.kubectl("logs", "reader")


def test_a_container_that_fails_its_liveness_probe_is_restarted(ns: Namespace) -> None:
    code = "import os, time; print('up'); time.sleep(600)"
    probe = {"exec": {"command": ["python", "-c", "raise SystemExit(1)"]}, "periodSeconds": 1, "failureThreshold": 1,
             "timeoutSeconds": 20}  # fmt: skip
    ns.apply(pod("dull", python(code), spec={"restartPolicy": "Always"}, livenessProbe=probe))
    ns.until(lambda: ns.container("dull").get("restartCount", 0) >= 1, "a restart of dull")
    assert ns.container("dull")["lastState"]["terminated"]["exitCode"] == 143
    ns.kubectl("delete", "pod", "dull", "--wait=false")


def test_a_deleted_pod_may_use_its_grace_period_and_no_more(ns: Namespace) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"
    ns.apply(pod("stubborn", python(stubborn)))
    ns.until(lambda: "up" in ns.kubectl("logs", "stubborn", check=False), "output of stubborn")
    started = time.monotonic()
    ns.kubectl("delete", "pod", "stubborn")
    assert time.monotonic() - started >= 2.0
    assert "NotFound" in ns.kubectl("get", "pod", "stubborn", check=False)


def test_pre_stop_runs_before_the_signal_and_config_maps_are_files(ns: Namespace) -> None:
    code = """
import signal, sys, time
def leave(*_):
    print(open("/data/note").read())
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print(open("/etc/app/greeting").read(), open("/etc/one").read())
time.sleep(600)
"""
    write = python("open('/data/note', 'w').write('noted')")
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"greeting": "hello"}}
    mounts = [
        {"name": "config", "mountPath": "/etc/app"},
        {"name": "config", "mountPath": "/etc/one", "subPath": "greeting"},
        {"name": "data", "mountPath": "/data"},
    ]
    volumes = [{"name": "config", "configMap": {"name": "app"}}, {"name": "data", "emptyDir": {}}]
    ns.apply(
        config,
        pod("polite", python(code), volumeMounts=mounts, lifecycle={"preStop": {"exec": {"command": write}}},
            spec={"volumes": volumes, "terminationGracePeriodSeconds": 30}),
    )  # fmt: skip
    ns.until(lambda: "hello hello" in ns.kubectl("logs", "polite", check=False), "the greeting")
    kubectl = [ns.cluster.program("kubectl"), "--kubeconfig", ns.cluster.kubeconfig, "-n", ns.name]
    command = [*kubectl, "logs", "-f", "polite"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "hello hello\n"
        ns.kubectl("delete", "pod", "polite")
        assert follower.stdout.read() == "noted\n"


def answers(address: str, port: int = 80) -> str:
    """The first line of an HTTP answer, or the name of the error."""
    try:
        with socket.create_connection((address, port), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(4096).decode().partition("\r\n")[0]
    except OSError as error:
        return type(error).__name__


def test_a_service_reaches_ready_pods_only_and_resets_when_there_is_none(ns: Namespace) -> None:
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
    }  # fmt: skip
    ns.apply(service)
    address = json.loads(ns.kubectl("get", "service", "web", "-o", "json"))["spec"]["clusterIP"]
    ns.until(lambda: answers(address) == "ConnectionResetError", "a reset from a Service without pods")
    ports = [{"name": "http", "containerPort": 8000}]
    never = {"tcpSocket": {"port": 1}}
    asker = python("import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)")
    ns.apply(
        pod("unready", SERVE, labels={"app": "web"}, env=[POD_IP], ports=ports, readinessProbe=never),
        pod("web", SERVE, labels={"app": "web"}, env=[POD_IP], ports=ports,
            readinessProbe={"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}),
    )  # fmt: skip
    ns.until_ready("web")
    ns.until(lambda: answers(address) == "HTTP/1.0 200 OK", "an answer of the Service")
    assert {answers(address) for _ in range(10)} == {"HTTP/1.0 200 OK"}
    assert "GET" not in ns.kubectl("logs", "unready")
    ns.apply(pod("asker", asker, args=[f"http://web.{ns.name}.svc.cluster.local/"]))
    ns.until_phase("asker", "Succeeded")
    assert ns.kubectl("logs", "asker") == "200\n"
    ns.kubectl("delete", "pod", "web", "unready")
    ns.until(lambda: answers(address) == "ConnectionResetError", "a reset after the last pod is gone")


def test_pods_live_through_the_end_of_the_api_server_and_of_the_agent(ns: Namespace) -> None:
    template = pod("x", SERVE, env=[POD_IP])["spec"] | {"restartPolicy": "Always"}
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "stay"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "stay"}},
                 "template": {"metadata": {"labels": {"app": "stay"}}, "spec": template}},
    }  # fmt: skip
    ns.apply(deployment)
    ns.kubectl("wait", "--for=condition=Available", "deployment/stay", "--timeout=60s")
    before = json.loads(ns.kubectl("get", "pods", "-l", "app=stay", "-o", "json"))["items"][0]
    name, address = before["metadata"]["name"], before["status"]["podIP"]
    for component in ("kube-apiserver", "agent"):
        ns.cluster.kill_component(component)
        assert answers(address, 8000) == "HTTP/1.0 200 OK"
        ns.until(lambda: "stay" in ns.kubectl("get", "pods", check=False), "the API server")
    ns.apply(pod("after", python("print('here')")))
    ns.until_phase("after", "Succeeded")
    assert ns.container(name)["restartCount"] == 0
    assert answers(address, 8000) == "HTTP/1.0 200 OK"
    assert "HTTP" in ns.kubectl("logs", name)
    ns.kubectl("delete", "deployment", "stay")
    ns.until(lambda: answers(address, 8000) == "ConnectionRefusedError", "the end of the adopted process")


def test_an_agent_that_is_told_to_stop_ends_its_pods_and_the_next_one_restarts_them(ns: Namespace) -> None:
    ns.apply(pod("again", python("import time; print('up'); time.sleep(600)"), spec={"restartPolicy": "Always"}))
    ns.until_ready("again")
    ns.cluster.kill_component("agent", signal.SIGTERM)
    ns.until(lambda: ns.container("again").get("restartCount") == 1, "the restart by the next agent")
    assert ns.container("again")["lastState"]["terminated"]["exitCode"] == 143
    ns.kubectl("delete", "pod", "again", "--wait=false")
