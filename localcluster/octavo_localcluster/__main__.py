"""The command `octavo-localcluster`."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
import time
from importlib.metadata import version
from pathlib import Path

from octavo_localcluster.cluster import Cluster, ClusterError, stop_folder
from octavo_localcluster.nodes import NodesFileError
from octavo_localcluster.programs import CONTROL_PLANE, KWOK, ProgramError, ensure_programs
from octavo_localcluster.state import ClusterOptions, ClusterState, Folder, FolderError, log_end

DEFAULT_FOLDER = Path(".state/cluster")

_DESCRIPTION = """\
A real Kubernetes control plane (etcd, API server, controller manager, scheduler) and a node agent on this machine,
without containers and without root. All of it lies in one folder and is gone after `down`."""

_EXAMPLES = """\
examples:
  octavo-localcluster up --nodes localcluster/nodes/cpu.yaml
  export KUBECONFIG="$(octavo-localcluster kubeconfig)" PATH="$PWD/.state/cluster/bin:$PATH"
  kubectl get nodes
  octavo-localcluster logs kube-apiserver -n 50
  octavo-localcluster down

exit codes: 0 done; 1 it did not work out (the reason is printed); 2 wrong input"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    options = build_parser().parse_args(arguments)
    commands = {
        "up": _up,
        "down": _down,
        "status": _status,
        "kubeconfig": _kubeconfig,
        "logs": _logs,
        "programs": _programs,
    }
    try:
        return commands[options.command](options)
    except (NodesFileError, FolderError) as error:
        print(f"octavo-localcluster: {error}", file=sys.stderr)
        return 2
    except (ClusterError, ProgramError, OSError) as error:
        print(f"octavo-localcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("octavo-localcluster: interrupted", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="octavo-localcluster",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    told = f"octavo-localcluster {version('octavo-localcluster')}"
    parser.add_argument("--version", action="version", version=told)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        added.add_argument(
            "--folder",
            type=Path,
            default=DEFAULT_FOLDER,
            help="the cluster's own folder (default: %(default)s in the current folder)",
        )
        return added

    up = command("up", "start a cluster and wait until it is ready; one that runs already is left as it is")
    up.add_argument("--nodes", type=Path, metavar="FILE", help="nodes, volumes and images (YAML); default: no nodes")
    up.add_argument("--audit", action="store_true", help="write every API request's metadata to audit.log (JSON lines)")
    up.add_argument(
        "--simulated-nodes", type=_count, default=0, metavar="N", help="add N nodes whose pods kwok pretends to run"
    )
    up.add_argument(
        "--simulation-stages",
        type=Path,
        metavar="FILE",
        help="kwok stages (YAML) in place of our own, which let each pod become Ready and each Job end well",
    )
    command("down", "end a cluster's processes, pods included, and remove its folder")
    command("status", "tell what runs, and what crashed with the end of its log; exit code 0 when the cluster is ready")
    command("kubeconfig", "print the path of the administrator's kubeconfig")
    logs = command("logs", "print the end of a component's log, or the names of the logs")
    logs.add_argument("component", nargs="?", help="a name that `logs` lists; default: list them")
    logs.add_argument("-n", "--lines", type=_count, default=40, help="how many lines (default: %(default)s)")
    programs = commands.add_parser(
        "programs",
        help="find or build the control plane's programs and print their paths",
        description="Find the control plane's programs, or build them into the cache, and print their paths.",
    )
    programs.add_argument("--with-kwok", action="store_true", help="kwok too, which simulates nodes")
    return parser


def _up(options: argparse.Namespace) -> int:
    start = time.monotonic()
    wanted = ClusterOptions(
        folder=options.folder,
        nodes_file=options.nodes,
        audit=options.audit,
        simulated_nodes=options.simulated_nodes,
        simulation_stages=options.simulation_stages,
    )
    cluster = Cluster.start(wanted, report=_report)
    _report(f"ready after {time.monotonic() - start:.1f} s: {cluster.state.server}")
    programs = shlex.quote(str(cluster.folder / "bin"))
    print(f'export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))} PATH={programs}:"$PATH"')
    return 0


def _down(options: argparse.Namespace) -> int:
    folder = Folder(options.folder)
    found = stop_folder(folder, report=_report)
    _report(f"{folder.path} is removed and nothing of it runs" if found else f"there is no cluster in {folder.path}")
    return 0


def _status(options: argparse.Namespace) -> int:
    folder = Folder(options.folder)
    state = folder.read_state()
    if state is None or not folder.is_cluster():
        print(f"no cluster in {folder.path}")
        return 1
    alive = folder.is_alive()
    print(describe(state, alive, folder.path))
    return 0 if alive and state.phase == "ready" else 1


def describe(state: ClusterState, alive: bool, folder: Path) -> str:
    """The text of `status`."""
    if alive:
        phase = f"{state.phase} ({state.message})" if state.message else state.phase
    elif state.phase == "failed":
        phase = "failed to start"
    else:
        phase = "not running: its processes ended without `down`; `up` starts afresh, `down` clears the folder"
    lines = [
        f"cluster   {folder}",
        f"state     {phase}",
        f"server    {state.server}",
        f"networks  services {state.service_network}, pods {state.pod_network}",
    ]
    for name, component in state.components.items():
        running = f"process {component.pid}" if alive and component.pid else "not running"
        lines.append(f"{name:<24} {running}, restarts: {component.restarts}")
    for name, component in state.components.items():
        if crash := component.last_crash:
            when = time.strftime("%H:%M:%S", time.localtime(crash.at))
            lines.append(f"\n{name} ended at {when} with {crash.exit}; the end of its log then:")
            lines.append(textwrap.indent(crash.log_end or "(empty)", "  "))
    if state.phase == "failed" and state.message:
        lines.append(f"\n{state.message}")
    return "\n".join(lines)


def _kubeconfig(options: argparse.Namespace) -> int:
    print(Cluster.attach(options.folder).kubeconfig)
    return 0


def _logs(options: argparse.Namespace) -> int:
    folder = Folder(options.folder)
    names = folder.logs()
    if not names:
        print(f"octavo-localcluster: no logs in {folder.path}", file=sys.stderr)
        return 1
    if options.component is None:
        print("\n".join(f"{name:<24} {folder.log(name)}" for name in names))
        return 0
    if options.component not in names:
        known = ", ".join(names)
        print(f"octavo-localcluster: no log is named {options.component!r}; logs: {known}", file=sys.stderr)
        return 2
    path = folder.log(options.component)
    print(log_end(path, lines=options.lines, max_bytes=path.stat().st_size))
    return 0


def _programs(options: argparse.Namespace) -> int:
    wanted = (*CONTROL_PLANE, KWOK) if options.with_kwok else CONTROL_PLANE
    for name, path in ensure_programs(_report, wanted).items():
        print(f"{name:<24} {path}")
    return 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to 10000")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
