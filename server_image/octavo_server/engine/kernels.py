"""GPU kernels at start: those that steps launch are compiled in parallel before the first of them is launched.

Triton compiles a kernel when it is first launched, one after the other: tens of seconds of a cold start. Here a step of
each kind is gone through with no kernel running, and what it would have launched is compiled by processes
(octavo_kernels/compile_ahead.py) into Triton's cache folder. With a warm cache nothing is started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo_server.engine.machine import usable_processors
from octavo_server.engine.messages import Progress

if TYPE_CHECKING:
    from octavo_server.engine.runner import Runner

log = logging.getLogger(__name__)

_MOST_PROCESSES = 32
"""Each takes about half a GiB of the host's memory."""


def compile_kernels(runner: Runner, progress: Callable[[Progress], None], *, processes: int = 0) -> None:
    """Compiles what is not in the cache folder; nothing on a CPU. A fault costs time, later, and never the start.

    processes: 0 = one per core this process may use, 1 = leave it to the launches.
    """
    if runner.device.type != "cuda" or processes == 1:
        return
    from octavo_kernels.compile_ahead import compile_ahead, current_target, recording, usable_cache_folder

    progress(Progress("kernels", 0))
    try:
        log.info("compiled kernels are kept in %s", usable_cache_folder())
        with recording() as launches:
            runner.rehearse()
        found = compile_ahead(
            launches,
            current_target(),
            processes=min(processes or usable_processors(), _MOST_PROCESSES),
            progress=lambda done, total: progress(Progress("kernels", 100 * done // total)),
        )
    except Exception:
        log.exception("kernels could not be compiled ahead: each is compiled at its first launch")
        return
    for failure in found.failures:
        log.warning("not compiled ahead: %s", failure)
    log.info("%d kernels compiled in %.1f s, %d were there", found.compiled, found.seconds, found.known)
