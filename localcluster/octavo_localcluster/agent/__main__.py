"""`python -m octavo_localcluster.agent --folder FOLDER --nodes FILE`: serve the nodes of a file until SIGTERM."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from ..agent_config import read_agent_config
from ..nodes import NodesFileError, load_nodes
from .backoff import BackoffPolicy
from .supervisor import Supervisor

log = logging.getLogger(__name__)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m octavo_localcluster.agent", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the cluster's folder, which holds agent.json")
    parser.add_argument("--nodes", type=Path, required=True, help="the nodes file")
    parser.add_argument(
        "--restart-back-off-seconds", type=float, default=BackoffPolicy().initial_seconds, metavar="SECONDS",
        help="delay before the second restart of a container; it doubles up to 300 s (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--volume-refresh-seconds", type=float, default=60.0, metavar="SECONDS",
        help="how often ConfigMap, Secret and downward API volumes are read again (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="log details")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    supervisor = Supervisor(
        options.folder, read_agent_config(options.folder), load_nodes(options.nodes),
        backoff=BackoffPolicy(initial_seconds=options.restart_back_off_seconds),
        refresh_seconds=options.volume_refresh_seconds,
    )  # fmt: skip
    await supervisor.run(stop)


def main() -> int:
    """Entry point; gives the exit code."""
    options = parse(sys.argv[1:])
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        asyncio.run(serve(options))
    except (NodesFileError, ValueError, OSError) as error:
        print(f"octavo node agent: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
