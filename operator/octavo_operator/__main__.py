"""Commands: run, crds, explain."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from .api.schema import render_crds
from .settings import LeaseSettings, Settings, SettingsError, account_folder, read_catalogue

REFUSED, FAILED = 2, 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo-operator", description="Turns InferenceServices into running replicas."
    )
    parser.add_argument("--version", action="version", version=f"octavo-operator {version('octavo-operator')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="watch the cluster and reconcile", description="Watch and reconcile.")
    explain = commands.add_parser(
        "explain", help="tell what is planned for a service, and why", description="Only reads; uses KUBECONFIG."
    )
    explain.add_argument("service", metavar="SERVICE", help="name of the InferenceService")
    explain.add_argument("-n", "--namespace", default="default", help="its namespace (default: default)")
    for command in (run, explain):
        command.add_argument(
            "--catalogue", type=Path, metavar="FILE", help="images of the server (YAML, from the chart)"
        )
        command.add_argument("--namespaces", default="", metavar="A,B", help="namespaces to watch (default: all)")
        command.add_argument(
            "--nodes-access", choices=("Enabled", "Disabled"), default="Enabled", help="whether Nodes may be read"
        )
    run.add_argument(
        "--host", default="127.0.0.1", help="address of /healthz, /readyz, /metrics (default: %(default)s)"
    )
    run.add_argument("--port", type=int, default=8080, help="their port (default: %(default)s)")
    run.add_argument("--workers", type=int, default=4, help="services reconciled at once (default: %(default)s)")
    run.add_argument("--resync-seconds", type=float, default=300, help="between complete lists (default: %(default)s)")
    run.add_argument("--monitoring-namespace", metavar="NAMESPACE", help="may reach the metrics of model pods")
    run.add_argument("--log-level", choices=("Debug", "Info", "Warning", "Error"), default="Info")
    commands.add_parser("crds", help="print the CRDs", description="Print the CRDs as YAML.")
    return parser


def _settings(flags: argparse.Namespace) -> Settings:
    if flags.catalogue is None:
        raise SettingsError("--catalogue is missing; give the file with the server's images (the chart mounts one)")
    given = vars(flags)
    for name, lowest, highest in (("port", 1, 65535), ("workers", 1, 64), ("resync_seconds", 1, 86400)):
        value = given.get(name)
        if value is not None and not lowest <= value <= highest:
            raise SettingsError(f"--{name.replace('_', '-')} {value}: must lie between {lowest} and {highest}")
    identity = os.environ.get("POD_NAME") or socket.gethostname()
    lease = LeaseSettings(
        namespace=os.environ.get("POD_NAMESPACE", "octavo-system"), identity=f"{identity}_{os.urandom(4).hex()}"
    )
    names = ("host", "port", "workers", "resync_seconds", "monitoring_namespace")
    return Settings(
        lease=lease,
        images=read_catalogue(flags.catalogue),
        namespaces=tuple(filter(None, flags.namespaces.split(","))),
        nodes_access=flags.nodes_access == "Enabled",
        account_folder=account_folder(os.environ),
        **{name: given[name] for name in names if given.get(name) is not None},
    )


def _act(flags: argparse.Namespace) -> None:
    if flags.command == "crds":
        print("---\n".join(render_crds().values()), end="")
        return
    settings = _settings(flags)
    if flags.command == "run":
        from .control.loop import run

        logging.basicConfig(level=flags.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        asyncio.run(run(settings))
    else:
        from .explain import explain

        print(asyncio.run(explain(settings, flags.namespace, flags.service)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 ended as asked, 1 failed, 2 refused for a reason that a person must mend."""
    from .cluster.client import ApiError

    flags = _parser().parse_args(arguments)
    try:
        _act(flags)
    except SettingsError as error:
        print(f"octavo-operator: {error}", file=sys.stderr)
        return REFUSED
    except ApiError as error:
        print(f"octavo-operator: {error}", file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
