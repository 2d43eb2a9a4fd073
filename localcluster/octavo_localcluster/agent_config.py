"""What the control plane tells the node agent: `<cluster folder>/agent.json`.

The agent runs as `python -m octavo_localcluster.agent --folder FOLDER --nodes FILE`, one process for all nodes and the
service forwarder. Rules between the two:
- all that it writes lies below `<folder>/pods` (volumes, container logs) and `<folder>/agent` (its own state);
- it puts OCTAVO_CLUSTER_FOLDER (see FOLDER_VARIABLE), as it finds it in its own environment, into each pod process's
  environment, so that `down` recognises a process that was left behind;
- on SIGTERM it ends its pods first, at most STOP_SECONDS, then exits 0;
- its standard output and error go to `<folder>/logs/agent.log`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

FILE_NAME = "agent.json"
FOLDER_VARIABLE = "OCTAVO_CLUSTER_FOLDER"
STOP_SECONDS = 20.0
KUBELET_CLIENT_NAME = "kube-apiserver-kubelet-client"
"""Common name of the client certificate with which the API server asks nodes for logs; nobody else may."""


class Identity(BaseModel):
    """A certificate and its key, both PEM files with absolute paths."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    certificate: Path
    key: Path


class NodeIdentity(Identity):
    """How one node speaks to the API server, and where the API server finds it."""

    address: str
    """Loopback address of the node (InternalIP and hostIP), inside pod_network, in its last /24 (127.y.255.0/24)."""
    kubelet_port: int
    """Port at `address` where container logs are served (`status.daemonEndpoints.kubeletEndpoint.Port`)."""


class AgentConfig(BaseModel):
    """Contents of agent.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str
    """`https://127.0.0.1:PORT`"""
    ca: Path
    """Certificate authority of the API server and of its client certificate (PEM)."""
    nodes: dict[str, NodeIdentity]
    pod_network: str
    """`127.y.0.0/16`: pods get addresses from 127.y.0.1 up to 127.y.254.254; 127.y.255.0/24 is the nodes'."""
    service_network: str
    """`127.z.0.0/16`: ClusterIPs; 127.z.0.1:443 is the Service default/kubernetes, whose backend is `server`."""
    forwarder: Identity
    """Read-only identity: get, list, watch of services, pods and namespaces."""
    kubelet_server: Identity
    """Server certificate for all nodes' log endpoints; valid for each node's name and address."""
    images: dict[str, str]
    """Image pattern → absolute path of a program (see nodes.program_for_image)."""


def write_agent_config(config: AgentConfig, folder: Path) -> Path:
    """Writes agent.json into the cluster's folder, whole or not at all."""
    path = folder / FILE_NAME
    partial = path.with_suffix(".partial")
    partial.write_text(config.model_dump_json(indent=2))
    partial.replace(path)
    return path


def read_agent_config(folder: Path) -> AgentConfig:
    """Reads agent.json. Raises ValueError with one line when it is missing or malformed."""
    path = folder / FILE_NAME
    try:
        return AgentConfig.model_validate_json(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; is {folder} the folder of a running cluster?") from None
    except ValidationError as error:
        raise ValueError(f"{path}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
