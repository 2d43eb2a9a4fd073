"""`octavo-server serve`: from settings to a running server."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from octavo_server.api.server import Server, bind
from octavo_server.api.supervisor import ENGINE_COMMAND
from octavo_server.config import ServeConfig
from octavo_server.contract import ExitCode
from octavo_server.fetching.resolve import local_model
from octavo_server.fetching.sources import LocalSource, parse_location
from octavo_server.termination import Refused


def serve(config: ServeConfig, engine_command: Sequence[str] | None = None) -> ExitCode:
    """Serves until told to stop. Raises Refused for everything that a person must mend."""
    logging.basicConfig(
        stream=sys.stderr, level=config.api.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if config.api.log_level != "debug":
        for library in ("uvicorn.error", "httpx", "httpx2"):
            logging.getLogger(library).setLevel(logging.WARNING)
    if config.api.chat_template and not Path(config.api.chat_template).is_file():
        raise Refused("FileMissing", f"--chat-template: {config.api.chat_template} is no file")
    name = config.engine.model.served_name
    here = isinstance(parse_location(config.source.model), LocalSource)
    model = local_model(config.source, served_name=name) if here else None
    listener = bind(config.api.host, config.api.port)  # before a download, which may take long for nothing
    try:
        model = model or local_model(config.source, served_name=name)
        engine = replace(
            config.engine, model=replace(config.engine.model, path=str(model.path), served_name=model.served_name)
        )
        config = replace(config, engine=engine)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Server(config, listener, engine_command or ENGINE_COMMAND).run())
    finally:
        listener.close()
    return ExitCode.ENDED
