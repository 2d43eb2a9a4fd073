"""All of one agent process: the nodes of a file, the Service index they share, the forwarder."""

import asyncio
import logging
import os
from pathlib import Path
from urllib.parse import urlsplit

from ..agent_config import FOLDER_VARIABLE, AgentConfig
from ..nodes import NodesFile, NodeSpec
from .addresses import AddressPool
from .api import ApiClient, Object
from .backoff import BackoffPolicy
from .events import EventRecorder
from .forwarder import Forwarder
from .launch import NodeFacts
from .log_server import server_tls
from .node import capacity_of
from .node_agent import NodeAgent
from .pod_worker import NodeContext
from .record import records_below
from .reflector import Reflector
from .rewrite import name_rewriter

log = logging.getLogger(__name__)

PODS_FOLDER = "pods"
HALT_GRACE_SECONDS = 12.0


class Supervisor:
    """Owns every task of the process."""

    def __init__(
        self, folder: Path, config: AgentConfig, nodes: NodesFile, *, backoff: BackoffPolicy, refresh_seconds: float
    ) -> None:
        missing = sorted(node.name for node in nodes.nodes if node.name not in config.nodes)
        if missing:
            raise ValueError(
                f"nodes: no certificate for {missing[0]!r} in agent.json; start the cluster with this nodes file"
            )
        self._folder = folder.resolve()
        self._config = config
        self._nodes = nodes
        self._backoff = backoff
        self._refresh_seconds = refresh_seconds

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then end all pods' processes."""
        config, pods_folder = self._config, self._folder / PODS_FOLDER
        pods_folder.mkdir(mode=0o700, exist_ok=True)
        identity = config.forwarder
        reader = ApiClient(config.server, config.ca, identity.certificate, identity.key)
        forwarder = Forwarder(config.server)
        services = Reflector(reader, "/api/v1/services", forwarder.service_changed)
        pods = Reflector(reader, "/api/v1/pods", forwarder.pod_changed)
        former = records_below(pods_folder)
        addresses = AddressPool(config.pod_network)
        for record in former.values():
            addresses.reserve(record.ip)
        tls = server_tls(config)
        rename = name_rewriter(lambda namespace, name: cluster_ip(services.objects, namespace, name))
        clients = [reader]
        agents = []
        for spec in self._nodes.nodes:
            node = config.nodes[spec.name]
            client = ApiClient(config.server, config.ca, node.certificate, node.key)
            clients.append(client)
            context = NodeContext(
                name=spec.name, address=node.address, client=client, events=EventRecorder(client, spec.name),
                facts=self._node_facts(spec), allocatable=capacity_of(spec),
                pods_folder=pods_folder, addresses=addresses,
                services=services.objects, rename=rename,
                backoff=self._backoff, refresh_seconds=self._refresh_seconds,
            )  # fmt: skip
            mine = {uid: record for uid, record in former.items() if record.node == spec.name}
            agents.append(NodeAgent(context, spec, node, tls, mine))
        tasks = [asyncio.create_task(reflector.run()) for reflector in (services, pods)]
        try:
            # Pods that start need Services for names and links; without an API server there are no new pods either.
            tasks.append(asyncio.create_task(self._run_nodes(agents, services)))
            waiting = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            for task in done - {waiting}:
                task.result()
        finally:
            log.info("ending all pods")
            await asyncio.gather(*(agent.halt(HALT_GRACE_SECONDS) for agent in agents))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await forwarder.close()
            for client in clients:
                await client.close()

    async def _run_nodes(self, agents: list[NodeAgent], services: Reflector) -> None:
        await services.synced.wait()
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.run())

    def _node_facts(self, spec: NodeSpec) -> NodeFacts:
        server = urlsplit(self._config.server)
        return NodeFacts(
            cluster_folder=os.environ.get(FOLDER_VARIABLE, str(self._folder)),
            server_host=server.hostname or "127.0.0.1",
            server_port=server.port or 443,
            images=self._config.images,
            env={"OCTAVO_DEVICE": spec.device, **spec.env},
        )


def cluster_ip(services: dict[tuple[str, str], Object], namespace: str, name: str) -> str | None:
    """The address of a Service, or None when there is none."""
    address = (services.get((namespace, name)) or {"spec": {}})["spec"].get("clusterIP")
    return None if address in (None, "", "None") else str(address)
