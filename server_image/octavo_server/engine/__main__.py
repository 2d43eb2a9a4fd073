"""The engine's own process: `python -m octavo_server.engine --socket PATH [--config FILE]`.

Reads an EngineConfig as JSON (engine/settings.py) from FILE, else from standard input up to its end. It listens on the
Unix socket PATH at once, before anything is loaded; API processes connect, whenever they like. Each connection gets the
present state first: Progress while starting, then Ready or StartupFailed, and Stats. Exit codes: 0 after SIGTERM or
SIGINT, 1 when it failed while running, 2 when it refused to start (StartupFailed says why, or one line on standard
error where nobody listens). It ends with its parent process.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from octavo_server.engine.messages import Progress, StartupFailed
from octavo_server.engine.settings import from_json
from octavo_server.logs import FORMAT_VARIABLE
from octavo_server.logs import configure as configure_logs
from octavo_server.parent import end_with_parent

if TYPE_CHECKING:
    from octavo_server.engine.process import Process

_FAILED_PATIENCE_SECONDS = 5.0


def main() -> int:
    """Runs the engine; the exit code."""
    arguments = _parser().parse_args()
    configure_logs("info", os.environ.get(FORMAT_VARIABLE, "Text"), "engine")
    try:
        config = from_json(Path(arguments.config).read_text() if arguments.config else sys.stdin.read())
    except (OSError, ValueError) as error:
        print(f"octavo engine: {error}", file=sys.stderr)
        return 2
    if config.kernel_cache:
        os.environ["TRITON_CACHE_DIR"] = config.kernel_cache  # read when Triton is imported, and by its compilers
    end_with_parent()

    from octavo_server.engine.process import Process

    try:
        process = Process(Path(arguments.socket))
    except OSError as error:
        print(f"octavo engine: socket {arguments.socket}: {error}", file=sys.stderr)
        return 2

    def stop(number: int, _: object) -> None:
        process.stopped = True
        if not process.serving:
            process.close()
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    process.announce(Progress("runtime", 0))

    # The socket is open by now: importing torch takes seconds, and API processes can connect meanwhile.
    from octavo_server.engine.machine import usable_processors
    from octavo_server.engine.sizes import Refusal
    from octavo_server.engine.startup import start
    from octavo_server.engine.threads import ThreadGovernor, apply, set_threads
    from octavo_server.weights import ModelError

    try:
        engine, ready = start(config, process.announce)
    except (ModelError, Refusal) as error:
        return _refuse(process, StartupFailed(error.reason, error.message))
    except MemoryError:
        message = "the machine's memory does not hold weights and KV pool; use a smaller pool, Int8 or more memory"
        return _refuse(process, StartupFailed("MemoryTooSmall", message))
    # A number of threads that was asked for stays; the automatic one gives way to other processes.
    automatic = config.cpu_threads == 0 and ready.device == "cpu"
    governor = ThreadGovernor(usable_processors())
    if automatic:
        set_threads(governor.threads)
    process.serve(engine, ready, (lambda now: apply(governor, now)) if automatic else None)
    process.close()
    return 0


def _refuse(process: Process, failure: StartupFailed) -> int:
    """Tells the listeners, who tell the user; speaks itself only where nobody listened."""
    if not process.close(failure, patience_seconds=_FAILED_PATIENCE_SECONDS):
        print(f"octavo engine: {failure.message}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m octavo_server.engine", description=__doc__)
    parser.add_argument("--socket", required=True, metavar="PATH", help="Unix socket to listen on")
    parser.add_argument("--config", default="", metavar="FILE", help="JSON file; default: standard input")
    return parser


if __name__ == "__main__":
    sys.exit(main())
