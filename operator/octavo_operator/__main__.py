"""Commands: run, crds, explain, simulate."""

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
from typing import Any, NoReturn

from .api.schema import render_crds
from .plan import SAFE_ARGUMENTS
from .plan.facts import CatalogueImage
from .settings import (
    LeaseSettings,
    Settings,
    SettingsError,
    Unavailable,
    account_folder,
    parse_catalogue,
    read_catalogue,
    read_egress,
    read_hub_endpoint,
    read_proxy,
)

REFUSED, FAILED, INTERRUPTED = 2, 1, 130
PREFIX = "OCTAVO_OPERATOR_"


class _Parser(argparse.ArgumentParser):
    """Refuses in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"octavo-operator: {message}; see octavo-operator --help", file=sys.stderr)
        sys.exit(REFUSED)


def _add(parser: argparse.ArgumentParser, flag: str, *, what: str, **options: Any) -> None:
    """A flag whose default comes from the environment, where it is set there."""
    name = PREFIX + flag.removeprefix("--").replace("-", "_").upper()
    given = os.environ.get(name)
    if given is not None:
        choices = options.get("choices")
        if choices and given not in choices:
            parser.error(f"{name}={given}: choose one of {', '.join(choices)}")
        options["default"] = given
    shown = "" if options.get("default") in (None, "") else " (default: %(default)s)"
    parser.add_argument(flag, help=what + shown, **options)


BOUNDS = {
    "--token-endpoints": "mirrors of the hub that may be sent a Secret's token; * = all",
    "--priority-classes": "priority classes that services may name; * = all but those of Kubernetes itself",
    "--tolerations": "taints that services may tolerate, as key or key=value; * = all",
    "--resources": "resources of device plugins that services may ask for; * = all",
}


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="octavo-operator",
        description="Turns InferenceServices into running replicas.",
        epilog=f"Each flag is also read from {PREFIX} + its name in upper case (--log-level: {PREFIX}LOG_LEVEL).",
    )
    parser.add_argument("--version", action="version", version=f"octavo-operator {version('octavo-operator')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="watch the cluster and reconcile", description="Watch and reconcile.")
    explain = commands.add_parser(
        "explain",
        help="tell what is planned for a service, or what is known of the nodes, and why",
        description="Only reads; uses KUBECONFIG. Without --catalogue it takes images and settings from the operator "
        "that is installed in the cluster.",
    )
    explain.add_argument(
        "service",
        metavar="SERVICE|nodes",
        help="name of an InferenceService (ois/nodes for one of this name), or nodes",
    )
    explain.add_argument("-n", "--namespace", default="default", help="its namespace (default: default)")
    for command in (run, explain):
        _add(command, "--catalogue", type=Path, metavar="FILE", what="images of the server (YAML, from the chart)")
        _add(command, "--namespaces", default="", metavar="A,B", what="namespaces to watch (default: all)")
        switch = {"choices": ("Enabled", "Disabled"), "default": "Enabled"}
        _add(command, "--nodes-access", what="whether Nodes may be read", **switch)
        _add(command, "--monitoring-namespace", metavar="NAME", what="namespace that may reach the pods' metrics")
        _add(command, "--gateway-namespace", metavar="NAME", what="namespace that may send requests to models")
        _add(
            command,
            "--calibration",
            choices=("Off", "Accelerators", "All"),
            default="Accelerators",
            what="where block sizes are measured; All: on CPUs, too",
        )
        _add(command, "--calibration-seconds", type=int, default=300, what="time that a calibration may measure")
        _add(command, "--calibration-priority-class", default="", metavar="NAME", what="priority class of calibrations")
        _add(command, "--egress", default="", metavar="CIDR=PORT,…", what="where pods that fetch a model may connect")
        _add(command, "--pull-secrets", default="", metavar="A,B", what="Secrets that pull the images of model pods")
        _add(command, "--model-proxy", default="", metavar="URL", what="proxy of the containers that fetch models")
        _add(command, "--model-no-proxy", default="", metavar="A,B", what="hosts that they reach without it")
        _add(command, "--image-prefixes", default="", metavar="A,B", what="what pinned images may begin with; * = all")
        _add(command, "--file-prefixes", default="*", metavar="A,B", what="folders of file:// models; * = all")
        _add(command, "--default-cache-claim", default="", metavar="NAME", what="claim that keeps fetched models")
        _add(command, "--hub-endpoint", default="", metavar="URL", what="mirror of the Hub for models that name none")
        _add(command, "--default-priority-class", default="", metavar="NAME", what="of model pods that name none")
        _add(
            command,
            "--argument-prefixes",
            default=",".join(SAFE_ARGUMENTS),
            metavar="A,B",
            what="what flags of engine.extraArgs may begin with; * = all",
        )
        for flag, what in BOUNDS.items():
            _add(command, flag, default="", metavar="A,B", what=what)
    _add(run, "--host", default="127.0.0.1", what="address of /healthz, /readyz and /metrics")
    _add(run, "--port", type=int, default=8080, what="their port")
    _add(run, "--workers", type=int, default=4, what="services reconciled at once")
    _add(run, "--resync-seconds", type=float, default=300.0, what="between complete lists")
    _add(run, "--lease-seconds", type=float, default=15.0, what="after which a silent leader counts as gone")
    _add(run, "--lease-renew-seconds", type=float, default=10.0, what="within which the leader must renew, or end")
    _add(run, "--lease-retry-seconds", type=float, default=2.0, what="between tries to take or renew the Lease")
    _add(run, "--log-level", choices=("Debug", "Info", "Warning", "Error"), default="Info", what="what is logged")
    from .scaling.simulator.command import add_simulate

    add_simulate(commands)
    commands.add_parser("crds", help="print the CRDs", description="Print the CRDs as YAML.")
    return parser


LIMITS = (
    ("port", 1, 65535),
    ("workers", 1, 64),
    ("calibration_seconds", 1, 86400),
    ("resync_seconds", 1, 86400),
    ("lease_seconds", 1, 600),
    ("lease_renew_seconds", 0.5, 600),
    ("lease_retry_seconds", 0.1, 600),
)


def _lease(flags: argparse.Namespace) -> LeaseSettings:
    namespace = os.environ.get("POD_NAMESPACE", "octavo-system")
    if flags.command != "run":
        return LeaseSettings(namespace=namespace)
    lease, renew, retry = flags.lease_seconds, flags.lease_renew_seconds, flags.lease_retry_seconds
    if not lease > renew > retry:
        raise SettingsError(
            f"--lease-seconds {lease:g}, --lease-renew-seconds {renew:g}, --lease-retry-seconds {retry:g}: each must"
            " be longer than the next"
        )
    holder = os.environ.get("POD_NAME") or socket.gethostname()
    return LeaseSettings(
        namespace=namespace,
        identity=f"{holder}_{os.urandom(4).hex()}",
        duration_seconds=lease,
        renew_deadline_seconds=renew,
        retry_seconds=retry,
    )


def _settings(flags: argparse.Namespace, images: tuple[CatalogueImage, ...] | None = None) -> Settings:
    if flags.catalogue is None and images is None:
        raise SettingsError("--catalogue is missing; give the file with the server's images (the chart mounts one)")
    given = vars(flags)
    for name, lowest, highest in LIMITS:
        value = given.get(name)
        if value is not None and not lowest <= value <= highest:
            raise SettingsError(f"--{name.replace('_', '-')} {value}: must lie between {lowest} and {highest}")
    names = [name for name, _, _ in LIMITS if not name.startswith("lease_")]
    names += ["host", "monitoring_namespace", "gateway_namespace", "calibration", "calibration_priority_class"]
    return Settings(
        lease=_lease(flags),
        images=read_catalogue(flags.catalogue) if images is None else images,
        namespaces=_listed(flags.namespaces),
        nodes_access=flags.nodes_access == "Enabled",
        account_folder=account_folder(os.environ),
        egress=read_egress(flags.egress),
        pull_secrets=_listed(flags.pull_secrets),
        proxy=read_proxy(flags.model_proxy, flags.model_no_proxy),
        image_prefixes=_listed(flags.image_prefixes),
        token_endpoints=_listed(flags.token_endpoints),
        file_prefixes=_listed(flags.file_prefixes),
        argument_prefixes=_listed(flags.argument_prefixes),
        cache_claim=flags.default_cache_claim,
        hub_endpoint=read_hub_endpoint(flags.hub_endpoint),
        priority_class=flags.default_priority_class,
        priority_classes=_listed(flags.priority_classes),
        tolerations=_listed(flags.tolerations),
        resources=_listed(flags.resources),
        **{name: given[name] for name in names if given.get(name) is not None},
    )


async def _as_installed(flags: argparse.Namespace) -> Settings:
    """What the cluster's own operator was told, changed where this command says otherwise."""
    from .cluster.client import connect
    from .installed import find_installed

    async with connect(account_folder(os.environ)) as client:
        installed = await find_installed(client)
    told = _parser().parse_args(["run", *installed.flags])
    plain = vars(_parser().parse_args(["explain", "nodes"]))
    for name, value in vars(flags).items():
        if name not in ("command", "service", "namespace") and value != plain[name]:
            setattr(told, name, value)
    return _settings(told, parse_catalogue(installed.catalogue, f"images of the operator {installed.where}"))


async def _explain(flags: argparse.Namespace) -> str:
    from .explain import explain, explain_nodes

    settings = _settings(flags) if flags.catalogue is not None else await _as_installed(flags)
    if flags.service == "nodes":
        return await explain_nodes(settings)
    return await explain(settings, flags.namespace, flags.service.removeprefix("ois/"))


def _act(flags: argparse.Namespace) -> None:
    if flags.command == "simulate":
        from .scaling.simulator.command import simulate

        simulate(flags)
        return
    if flags.command == "crds":
        # crds/ holds a kustomization beside them, which is no object of a cluster.
        print(
            "---\n".join(text for name, text in render_crds().items() if name != "kustomization.yaml"),
            end="",
            flush=True,
        )
        return
    if flags.command == "run":
        settings = _settings(flags)
        from .control.loop import run

        logging.basicConfig(level=flags.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        if not any(item.runtime == "Octavo" for item in settings.images):
            logging.getLogger("octavo").warning(
                "the catalogue holds no image of runtime Octavo, whose programs check and fetch the models of every"
                " runtime: no new model starts; add one to serverImages"
            )
        asyncio.run(run(settings))
    else:
        print(asyncio.run(_explain(flags)), flush=True)


def main(arguments: Sequence[str] | None = None, *, program: str = "octavo-operator") -> int:
    """Exit codes: 0 ended as asked, 1 the cluster can't give what was asked for, 2 what was given is wrong: a flag or a
    file, 130 interrupted. `program`: the name under which errors are told."""
    from .cluster.client import ApiError

    flags = _parser().parse_args(arguments)
    try:
        _act(flags)
    except BrokenPipeError:
        # The reader (head, a pager) has seen enough; the interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SettingsError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return FAILED if isinstance(error, Unavailable) else REFUSED
    except ApiError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
