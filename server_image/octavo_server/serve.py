"""`octavo-server serve`: from settings to a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from octavo_server.api.server import Server, bind
from octavo_server.api.supervisor import ENGINE_COMMAND
from octavo_server.api.turns import tame_collector
from octavo_server.config import ServeConfig
from octavo_server.contract import ExitCode
from octavo_server.fetching.child import Download
from octavo_server.fetching.resolve import local_model
from octavo_server.fetching.sources import LocalSource, parse_location
from octavo_server.logs import configure
from octavo_server.termination import Refused


def serve(config: ServeConfig, engine_command: Sequence[str] | None = None) -> ExitCode:
    """Serves until told to stop. Raises Refused for everything that a person must mend."""
    api = config.api
    configure(api.log_level, api.log_format)
    if api.chat_template and not Path(api.chat_template).is_file():
        raise Refused("FileMissing", f"--chat-template: {api.chat_template} is no file")
    name = config.engine.model.served_name
    place = parse_location(config.source.model)
    download = None
    if isinstance(place, LocalSource):
        model = local_model(config.source, served_name=name)
        path, name = str(model.path), model.served_name
    else:
        # /health answers while the model is fetched; /ready says how far it is.
        download = Download(config.source, api.log_format)
        path, name = config.source.model, name or place.default_name
    config = replace(
        config,
        engine=replace(config.engine, model=replace(config.engine.model, path=path, served_name=name)),
    )
    if api.api_processes > 1:
        bind(api.host, api.port).close()  # somebody else's server on this port would share it in silence
    listener = bind(api.host, api.port, shared=api.api_processes > 1)
    try:
        tame_collector()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Server(config, listener, engine_command or ENGINE_COMMAND, download=download).run())
    finally:
        listener.close()
    return ExitCode.ENDED
