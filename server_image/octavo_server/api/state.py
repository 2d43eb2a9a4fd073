"""What the routes share: the model's text side, the engine's side, and whether requests may come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum

from octavo_server.api.client import EngineClient
from octavo_server.api.errors import ApiError, shortened
from octavo_server.api.structured import GrammarChecks
from octavo_server.api.turns import Turns
from octavo_server.config import ServeConfig
from octavo_server.engine.messages import Message, Ready, Stats
from octavo_server.metrics import Metrics
from octavo_server.text.control import ControlTokens
from octavo_server.text.template import ChatTemplate
from octavo_server.text.tokenizer import TextTokenizer

_LOG = logging.getLogger("octavo.server")


class Phase(StrEnum):
    """Reasons that /ready gives."""

    STARTING = "Starting"
    READY = "Ready"
    RESTARTING = "EngineRestarting"
    DRAINING = "Draining"
    ENDED = "EngineGivenUp"


class ServerState:
    """One per API process; lives on the event loop and is touched from nowhere else."""

    def __init__(self, config: ServeConfig, served_name: str, metrics: Metrics, process_number: int = 0) -> None:
        self.config = config
        self.served_name = served_name
        self.metrics = metrics
        self.client = EngineClient(process_number, self._count)
        self.turns = Turns()
        self.started_seconds = int(time.time())
        self.tokenizer: TextTokenizer | None = None
        self.template: ChatTemplate | None = None
        self.control: ControlTokens | None = None
        self.ready: Ready | None = None
        self.phase = Phase.STARTING
        self.draining = False
        self.settled = asyncio.Event()
        self.stage: Callable[[], str] = lambda: ""
        self.living_names: set[str] = set()
        self.grammars = GrammarChecks()

    def engine_ready(self, ready: Ready, send: Callable[[Message], None]) -> None:
        """The engine generated a token."""
        self.ready = ready
        self.metrics.engine_ready(ready)
        self._settle()
        self.client.on_connected(send)

    def text_ready(self, tokenizer: TextTokenizer, template: ChatTemplate | None) -> None:
        """The tokenizer is loaded."""
        self.tokenizer = tokenizer
        self.template = template
        self.control = ControlTokens(tokenizer, template.source) if template is not None else None
        self._settle()

    def engine_message(self, message: Message) -> None:
        """Statistics to the metrics, the rest to the requests."""
        if isinstance(message, Stats):
            self.metrics.engine_stats(message)
        else:
            self.client.on_message(message)

    def engine_lost(self) -> None:
        """The engine crashed; requests wait for the next one."""
        self.phase = Phase.RESTARTING
        self.client.on_lost()
        self.metrics.engine_lost()

    def not_ready(self) -> dict[str, str] | None:
        """None when requests should be routed here, else the reason as JSON."""
        phase = Phase.DRAINING if self.draining else self.phase
        if phase is Phase.READY:
            return None
        messages = {
            Phase.STARTING: self.stage() or "loading the tokenizer",
            Phase.RESTARTING: f"the engine crashed and is starting again: {self.stage()}",
            Phase.DRAINING: "the server is shutting down",
            Phase.ENDED: "the engine can't be started again",
        }
        return {"status": "unavailable", "reason": phase.value, "message": messages[phase]}

    def serving(self) -> tuple[TextTokenizer, Ready]:
        """What a request needs. Raises the 503 while the server was never ready."""
        if self.tokenizer is None or self.ready is None or self.phase is Phase.ENDED:
            raise ApiError(503, "the model is still loading; ask /ready and try again", code="not_ready")
        return self.tokenizer, self.ready

    def check_model(self, name: str | None) -> None:
        """Raises the 404 for a name that isn't served; no name means the one there is."""
        if name is not None and name != self.served_name:
            raise ApiError(
                404,
                f"model: {shortened(name)!r} is not served here; this server has {self.served_name!r}",
                param="model",
                code="model_not_found",
            )

    def _count(self, living: int, queued: int) -> None:
        self.metrics.living.set(living)
        self.metrics.queued.set(queued)

    def _settle(self) -> None:
        if self.ready is not None and self.tokenizer is not None:
            self.phase = Phase.READY
            self.settled.set()
            _LOG.info(
                "ready: %s on %s, %s, weights %s, attention %s, up to %d tokens per request, "
                "cache for %d tokens in blocks of %d",
                self.served_name,
                self.ready.device,
                self.ready.dtype,
                self.ready.quantization,
                self.ready.attention_backend,
                self.ready.max_length_tokens,
                self.ready.capacity_tokens,
                self.ready.block_size_tokens,
            )
            for reason in self.ready.fallback_reasons:
                _LOG.warning("slower kernels are in use: %s", reason)
            if self.ready.launch_message:
                _LOG.info("launch configurations: %s", self.ready.launch_message)
