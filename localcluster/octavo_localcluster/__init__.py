"""A real control plane on one machine."""

from octavo_localcluster.cluster import Cluster, ClusterError
from octavo_localcluster.nodes import NodesFileError
from octavo_localcluster.programs import ProgramError
from octavo_localcluster.state import ClusterOptions, FolderError

__all__ = ["Cluster", "ClusterError", "ClusterOptions", "FolderError", "NodesFileError", "ProgramError"]
