"""Decides, before anything runs, what one cluster consists of: addresses, certificates, files, command lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from octavo_localcluster.agent_config import (
    KUBELET_CLIENT_NAME,
    AgentConfig,
    Identity,
    NodeIdentity,
    write_agent_config,
)
from octavo_localcluster.kubeconfig import write_kubeconfig
from octavo_localcluster.network import ClaimedNetwork, free_ports
from octavo_localcluster.nodes import NodesFile
from octavo_localcluster.pki import Authority, make_authority, make_signing_key
from octavo_localcluster.state import ClusterOptions, Folder

HOST = "127.0.0.1"
FORWARDER_USER = "octavo:forwarder"
KUBELET_PORT = 10250
_NO_ENDPOINTS = "*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"


@dataclass(frozen=True)
class Ports:
    """Ports on HOST."""

    etcd: int
    etcd_peer: int
    api_server: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True)
class Component:
    """One process that the supervisor keeps running."""

    name: str
    command: tuple[str, ...]
    health: str = ""
    """URL on HOST that answers 200 when it works; empty = running is enough."""
    stop_seconds: float = 3.0
    """How long it may take to end when asked to."""


@dataclass(frozen=True)
class Layout:
    """A whole cluster, ready to be started."""

    server: str
    authority: Path
    admin: Identity
    components: dict[str, Component] = field(default_factory=dict)


def make_layout(
    folder: Folder,
    options: ClusterOptions,
    nodes: NodesFile,
    programs: dict[str, Path],
    services: ClaimedNetwork,
    pods: ClaimedNetwork,
) -> Layout:
    """Writes certificates, kubeconfigs and configuration into the folder and returns the command lines."""
    ports = Ports(*free_ports(5, HOST))
    server = f"https://{HOST}:{ports.api_server}"
    pki = folder.path / "pki"
    authority = make_authority(pki, "ca")
    admin = authority.client("admin", "admin", ["system:masters"])
    write_kubeconfig(folder.kubeconfig, server, authority.path, admin, "admin")
    layout = Layout(server=server, authority=authority.path, admin=admin)
    for component in (
        _etcd(folder, programs, ports),
        _api_server(folder, options, programs, ports, authority, services),
        _controller_manager(folder, options, programs, ports, authority, server),
        _scheduler(folder, programs, ports, authority, server),
    ):
        layout.components[component.name] = component
    if options.nodes_file:
        _write_agent_config(folder, nodes, authority, server, services, pods)
        command = (sys.executable, "-m", "octavo_localcluster.agent")
        arguments = ("--folder", str(folder.path), "--nodes", str(options.nodes_file))
        layout.components["agent"] = Component("agent", (*command, *arguments), stop_seconds=25.0)
    if options.simulated_nodes:
        layout.components["kwok"] = _kwok(folder, options, programs, authority, server)
    return layout


def _etcd(folder: Folder, programs: dict[str, Path], ports: Ports) -> Component:
    # An authority of its own: no certificate of a Kubernetes user or node opens the store.
    authority = make_authority(folder.path / "pki", "etcd-ca")
    identity = authority.server("etcd", [HOST, "localhost"], also_client=True)
    authority.client("etcd-client", "kube-apiserver")
    client, peer = f"https://{HOST}:{ports.etcd}", f"https://{HOST}:{ports.etcd_peer}"
    return Component(
        "etcd",
        (
            str(programs["etcd"]),
            "--name=octavo",
            f"--data-dir={folder.path / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=octavo={peer}",
            "--client-cert-auth",
            f"--trusted-ca-file={authority.path}",
            f"--cert-file={identity.certificate}",
            f"--key-file={identity.key}",
            "--peer-client-cert-auth",
            f"--peer-trusted-ca-file={authority.path}",
            f"--peer-cert-file={identity.certificate}",
            f"--peer-key-file={identity.key}",
            # The data lives as long as the cluster: a killed process loses nothing, only a power cut would.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ),
    )


def _api_server(
    folder: Folder,
    options: ClusterOptions,
    programs: dict[str, Path],
    ports: Ports,
    authority: Authority,
    services: ClaimedNetwork,
) -> Component:
    pki = folder.path / "pki"
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    serving = authority.server("kube-apiserver", [HOST, "localhost", services.address(0, 1), *names])
    kubelet = authority.client("kube-apiserver-kubelet-client", KUBELET_CLIENT_NAME, ["system:masters"])
    tokens = make_signing_key(pki, "service-account")
    audit: tuple[str, ...] = ()
    if options.audit:
        policy = folder.path / "audit-policy.yaml"
        rules = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
        policy.write_text(yaml.safe_dump({**rules, "rules": [{"level": "Metadata"}]}))
        audit = (
            f"--audit-policy-file={policy}",
            f"--audit-log-path={folder.audit_log}",
            "--audit-log-maxsize=2000",
            # Each line is written before the request is answered: whoever counts lines misses none.
            "--audit-log-mode=blocking",
        )
    return Component(
        "kube-apiserver",
        (
            str(programs["kube-apiserver"]),
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={ports.api_server}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--cert-dir={pki}",
            f"--client-ca-file={authority.path}",
            f"--etcd-servers=https://{HOST}:{ports.etcd}",
            f"--etcd-cafile={pki / 'etcd-ca.crt'}",
            f"--etcd-certfile={pki / 'etcd-client.crt'}",
            f"--etcd-keyfile={pki / 'etcd-client.key'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={tokens.certificate}",
            f"--service-account-signing-key-file={tokens.key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            f"--kubelet-certificate-authority={authority.path}",
            "--kubelet-preferred-address-types=InternalIP",
            # Endpoints refuse loopback addresses.
            "--endpoint-reconciler-type=none",
            "--allow-privileged",
            f"--service-cluster-ip-range={services.cidr}",
            "--profiling=false",
            *audit,
        ),
        health=f"https://{HOST}:{ports.api_server}/readyz",
    )


def _controller_manager(
    folder: Folder,
    options: ClusterOptions,
    programs: dict[str, Path],
    ports: Ports,
    authority: Authority,
    server: str,
) -> Component:
    name = "kube-controller-manager"
    # A node counts as lost only when its Lease could have been renewed several times since.
    grace = max(50, options.simulated_lease_seconds)
    config = _user(folder, authority, server, name, f"system:{name}")
    serving = authority.server(f"{name}-serving", [HOST, "localhost"])
    return Component(
        name,
        (
            str(programs[name]),
            f"--kubeconfig={config}",
            f"--bind-address={HOST}",
            f"--secure-port={ports.controller_manager}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={folder.path / 'pki' / 'service-account.key'}",
            f"--root-ca-file={authority.path}",
            f"--controllers={_NO_ENDPOINTS}",
            f"--node-monitor-grace-period={grace}s",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ),
        health=f"https://{HOST}:{ports.controller_manager}/healthz",
    )


def _scheduler(folder: Folder, programs: dict[str, Path], ports: Ports, authority: Authority, server: str) -> Component:
    name = "kube-scheduler"
    config = _user(folder, authority, server, name, f"system:{name}")
    serving = authority.server(f"{name}-serving", [HOST, "localhost"])
    return Component(
        name,
        (
            str(programs[name]),
            f"--kubeconfig={config}",
            f"--bind-address={HOST}",
            f"--secure-port={ports.scheduler}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            "--leader-elect=false",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ),
        health=f"https://{HOST}:{ports.scheduler}/healthz",
    )


def _kwok(
    folder: Folder, options: ClusterOptions, programs: dict[str, Path], authority: Authority, server: str
) -> Component:
    config = _user(folder, authority, server, "kwok", "octavo:kwok", ["system:masters"])
    stages = options.simulation_stages or Path(__file__).with_name("simulation.yaml")
    return Component(
        "kwok",
        (
            str(programs["kwok"]),
            f"--kubeconfig={config}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--node-lease-duration-seconds={options.simulated_lease_seconds}",
            "--node-port=0",
            f"--config={stages}",
        ),
    )


def _user(
    folder: Folder, authority: Authority, server: str, name: str, user: str, groups: tuple[str, ...] | list[str] = ()
) -> Path:
    identity = authority.client(name, user, groups)
    return write_kubeconfig(folder.path / "pki" / f"{name}.kubeconfig", server, authority.path, identity, user)


def _write_agent_config(
    folder: Folder,
    nodes: NodesFile,
    authority: Authority,
    server: str,
    services: ClaimedNetwork,
    pods: ClaimedNetwork,
) -> None:
    identities = {}
    for number, node in enumerate(nodes.nodes, start=1):
        identity = authority.client(f"node-{node.name}", f"system:node:{node.name}", ["system:nodes"])
        address = pods.address(255, number)
        identities[node.name] = NodeIdentity(
            certificate=identity.certificate, key=identity.key, address=address, kubelet_port=KUBELET_PORT
        )
    hosts = [host for name, node in identities.items() for host in (name, node.address)]
    config = AgentConfig(
        server=server,
        ca=authority.path,
        nodes=identities,
        pod_network=pods.cidr,
        service_network=services.cidr,
        forwarder=authority.client("forwarder", FORWARDER_USER),
        kubelet_server=authority.server("kubelet", [HOST, *hosts]),
        images=nodes.programs(),
    )
    write_agent_config(config, folder.path)
