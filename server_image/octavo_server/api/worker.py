"""A further API process: `python -m octavo_server.api.worker`, started by the first one (api/fleet.py).

Reads its task as JSON from standard input. Exit codes are those of `octavo-server serve`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvloop

from octavo_server.api.fleet import Place
from octavo_server.api.server import Server
from octavo_server.api.turns import tame_collector
from octavo_server.config import ApiConfig, FetchConfig, LimitsConfig, ServeConfig
from octavo_server.contract import PROGRAM, ExitCode
from octavo_server.engine.settings import from_json
from octavo_server.logs import configure
from octavo_server.parent import end_with_parent
from octavo_server.shared import SharedTable
from octavo_server.termination import Refused


def main() -> int:
    """Serves until told to stop; the exit code."""
    task = json.load(sys.stdin)
    end_with_parent()
    config = _config(task["config"])
    configure(config.api.log_level, config.api.log_format, f"api-{task['number']}")
    table = SharedTable(task["count"], task["number"], task["table"])
    place = Place(task["number"], table, Path(task["engine"]))
    tame_collector()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Server(config, None, place=place).run())
    except Refused as refused:
        print(f"{PROGRAM}: API process {place.number}: {refused.message}", file=sys.stderr, flush=True)
        return int(refused.exit_code)
    return int(ExitCode.ENDED)


def _config(value: dict[str, Any]) -> ServeConfig:
    api = {**value["api"], "limits": LimitsConfig(**value["api"]["limits"])}
    engine = from_json(json.dumps(value["engine"]))
    return ServeConfig(engine, ApiConfig(**api), FetchConfig(**value["source"]))


if __name__ == "__main__":
    sys.exit(main())
