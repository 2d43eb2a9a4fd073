"""What reading the metrics of 3,000 pods each 5 s costs the operator: share of one core, parsing alone and altogether.

`python benchmarks/scaling_scrape.py`. A process of its own answers for all pods with a real server's metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiohttp
from aiohttp import web
from octavo_operator.scaling.runtimes import RUNTIMES
from octavo_operator.scaling.sample import Reading, Sample
from octavo_operator.scaling.scraper import Scraper, ScrapeSettings, Target
from octavo_operator.scaling.window import Windows
from octavo_server.engine.messages import Ready, Stats
from octavo_server.metrics import Metrics
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.common import Row, read_results, write_result

PODS, INTERVAL_SECONDS = 3000, 5.0
CORE_GOAL = 1.0
COMMAND = "python benchmarks/scaling_simulation.py, scaling_scrape.py, scaling_cluster.py SCENE"


def metrics_text() -> str:
    """What a serving Octavo shows."""
    metrics = Metrics("smollm2")
    metrics.engine_ready(Ready("smollm2", 49152, 4096, 16, 400_000, "CUDA", "BFloat16", "None", "triton", []))
    metrics.engine_stats(Stats(40, 3, 9000, 4000, 12000, 144000, 140000, 7, 99, 50, 1, 1, 1, [0.01]))
    return generate_latest(metrics.registry).decode()


def _serve(pipe: Connection, body: str) -> None:
    async def live() -> None:
        async def answer(_request: web.BaseRequest) -> web.Response:
            return web.Response(text=body)

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(live())


async def scrape(port: int, seconds: float) -> tuple[float, int, int]:
    """Share of a core, complete readings, and others."""
    windows, counts = Windows(), {True: 0, False: 0}

    def hear(target: Target, reading: Reading) -> None:
        windows.add(target.uid, reading)
        counts[isinstance(reading, Sample)] += 1

    targets = [Target(f"pod-{number}", f"http://127.0.0.1:{port}/metrics") for number in range(PODS)]
    settings = ScrapeSettings(interval_seconds=INTERVAL_SECONDS)
    connector = aiohttp.TCPConnector(limit=settings.concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:
        scraper = Scraper(session, lambda: targets, hear, time.monotonic, settings)
        began, spent = time.monotonic(), time.process_time()
        task = asyncio.create_task(scraper.run())
        await asyncio.wait({task}, timeout=seconds)
        share = (time.process_time() - spent) / (time.monotonic() - began)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return share, counts[True], counts[False]


def _microseconds(work: object, seconds: float = 1.0) -> float:
    assert callable(work)
    began, rounds = time.process_time(), 0
    while time.process_time() - began < seconds:
        work()
        rounds += 1
    return (time.process_time() - began) / rounds * 1e6


def main() -> None:
    """Measure and write the rows beside those of the simulation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of scraping (default: %(default)s)")
    flags = parser.parse_args()
    text = metrics_text()
    own = _microseconds(lambda: RUNTIMES["Octavo"].read(text, 0.0))
    whole = _microseconds(lambda: list(text_string_to_metric_families(text)))
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, text), daemon=True)
    server.start()
    try:
        share, complete, other = asyncio.run(scrape(here.recv(), flags.seconds))
    finally:
        here.send(None)
        server.join(10)
    wanted = PODS / INTERVAL_SECONDS * flags.seconds
    found = [
        Row("scrape: parse one pod's metrics", "µs", round(own, 1), "lower", None, "whole text by prometheus-client",
            round(whole, 1)),
        Row("scrape: cores to parse 3,000 pods / 5 s", "cores", round(own * PODS / INTERVAL_SECONDS / 1e6, 3), "lower",
            CORE_GOAL),
        Row("scrape: cores to read 3,000 pods / 5 s over HTTP", "cores", round(share, 3), "lower", CORE_GOAL,
            note=f"{complete} complete readings and {other} others in {flags.seconds:g} s; {wanted:.0f} were due"),
        Row("scrape: readings that came of those due", "%", round(100 * min(1.0, complete / wanted), 1), "higher",
            99.0),
    ]  # fmt: skip
    for row in found:
        print(row)
    before = next((item["rows"] for item in read_results() if item["topic"] == "scaling-simulation"), [])
    kept = [row for row in before if not row["name"].startswith("scrape:")]
    write_result("scaling-simulation", [*kept, *found], command=COMMAND)


if __name__ == "__main__":
    main()
