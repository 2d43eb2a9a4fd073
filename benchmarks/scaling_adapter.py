"""A small external-metrics API, as an HPA asks for it: numbers by (namespace, metric), over HTTPS on this machine.

It stands where prometheus-adapter or KEDA stands in a real cluster, so that a real HorizontalPodAutoscaler, worked by
the real controller manager, can be tried on a local cluster. `register` puts it behind the API server.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from octavo_localcluster import Cluster

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
Value = Callable[[str, str], float | None]
"""(namespace, metric) → its value; None while there is none."""


class Adapter:
    """Serves from `__enter__` to `__exit__`."""

    def __init__(self, cluster: Cluster, value: Value) -> None:
        """`value` is asked at each request, in a thread of its own."""
        handler = type("Handler", (_Handler,), {"value": staticmethod(value)})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Any certificate of the cluster's own does: the API server is told not to verify it.
        pki = cluster.folder / "pki"
        context.load_cert_chain(
            pki / "kube-controller-manager-serving.crt", pki / "kube-controller-manager-serving.key"
        )
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="external metrics", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Adapter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def registration(self) -> list[dict[str, Any]]:
        """Objects that make the API server ask here."""
        # A name of its own instead of endpoints, which refuse loopback addresses.
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "external-metrics", "namespace": "kube-system"},
                "spec": {"type": "ExternalName", "externalName": "localhost"},
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{VERSION}.{GROUP}"},
                "spec": {
                    "group": GROUP,
                    "version": VERSION,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": True,
                    "service": {"name": "external-metrics", "namespace": "kube-system", "port": self.port},
                },
            },
        ]


class _Handler(BaseHTTPRequestHandler):
    value: Value

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        parts = path.removeprefix(ROOT).strip("/").split("/")
        if path == ROOT:
            self._answer({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}",
                          "resources": []})  # fmt: skip
        elif path.startswith(ROOT) and len(parts) == 3 and parts[0] == "namespaces":
            found = self.value(parts[1], parts[2])
            items = [] if found is None else [_item(parts[2], found)]
            self._answer({"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {},
                          "items": items})  # fmt: skip
        else:
            self._answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}, 404)

    def _answer(self, body: dict[str, Any], code: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Silence: the API server asks for its health each few seconds."""


def _item(metric: str, value: float) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metricName": metric, "metricLabels": {}, "timestamp": now, "value": f"{round(1000 * value)}m"}
