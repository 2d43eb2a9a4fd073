"""The command line: `octavo-server serve | fetch | calibrate | check | bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from octavo_server import options
from octavo_server.bench import options as bench_options
from octavo_server.contract import API_KEY_VARIABLE, HUB_TOKEN_VARIABLE, PROGRAM, TERMINATION_LOG_VARIABLE, ExitCode
from octavo_server.flags import Parser, add_options, resolve
from octavo_server.termination import Refused, report
from octavo_server.version import __version__

_SETTINGS = """\
Every setting can also come from the environment (--max-length: OCTAVO_MAX_LENGTH) and from a YAML file (--config);
a flag wins over the environment, the environment over the file. Names of choices may be written in any case."""
_ENVIRONMENT = f"""\
environment:
  {API_KEY_VARIABLE:24}key that clients must send as bearer token (no flag: command lines are public)
  {HUB_TOKEN_VARIABLE:24}token for hf:// models; HF_ENDPOINT: another Hub
  {TERMINATION_LOG_VARIABLE:24}file for the reason of a failure, as JSON

exit codes: 0 ended as asked, 1 failed while running, 2 refused for a reason that a person must mend"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    try:
        return int(_run(sys.argv[1:] if arguments is None else list(arguments)))
    except Refused as refused:
        return report(refused)
    except KeyboardInterrupt:
        return 130


def build_parser() -> Parser:
    """The parser of all commands; the documentation of the flags is made from it."""
    parser = Parser(prog=PROGRAM, description="Serves a language model over OpenAI's HTTP interface.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    serve = commands.add_parser(
        "serve", help="serve a model", description=f"Serve a model.\n\n{_SETTINGS}", epilog=_ENVIRONMENT
    )
    serve.add_argument("--config", metavar="FILE", default="", help="YAML file with settings")
    add_options(serve, options.SERVE)
    fetch = commands.add_parser(
        "fetch",
        help="bring a model's files here, or check that they can be had",
        description=f"Bring a model's files here, or (--check) prove that they can be had and served.\n\n{_SETTINGS}",
        epilog=_ENVIRONMENT,
    )
    fetch.add_argument("--config", metavar="FILE", default="", help="YAML file with settings")
    fetch.add_argument("--check", action="store_true", help="load nothing; print one JSON object with the finding")
    add_options(fetch, options.FETCH)
    calibrate = commands.add_parser(
        "calibrate",
        help="measure which block size suits this device",
        description="Time attention for each block size, within a budget, and print the best as one JSON object.",
    )
    add_options(calibrate, options.CALIBRATE)
    check = commands.add_parser(
        "check",
        help="show device, driver and kernels",
        description="Show the device, its driver, the versions of torch and Triton, and whether the kernels run.",
    )
    check.add_argument("--json", action="store_true", help="as one JSON object")
    _add_bench(commands)
    return parser


def _add_bench(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "Measure a server over HTTP, or an engine in this process."
    bench = commands.add_parser("bench", help="measure a server or an engine", description=about)
    kinds = bench.add_subparsers(dest="kind", metavar="KIND", title="kinds")
    for kind, text in (
        ("serve", "send streams to a server: times to first token, between tokens and end to end"),
        ("throughput", "give an engine in this process all requests, or let them arrive"),
        ("latency", "run batches of one size, one after the other"),
    ):
        made = kinds.add_parser(kind, help=text, description=f"{text[0].upper()}{text[1:]}.\n\n{_SETTINGS}")
        made.add_argument("--config", metavar="FILE", default="", help="YAML file with settings")
        add_options(made, bench_options.TABLES[kind])


def _run(arguments: list[str]) -> ExitCode:
    parser = build_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = f"{parsed.command} " if parsed.command else ""
        raise Refused("InvalidFlag", f"unknown: {' '.join(unknown)}; see {PROGRAM} {command}--help")
    if parsed.command == "serve":
        config = options.serve_config(resolve(options.SERVE, vars(parsed), file=parsed.config))
        from octavo_server.serve import serve

        return serve(config)
    if parsed.command == "fetch":
        wanted = options.fetch_config(resolve(options.FETCH, vars(parsed), file=parsed.config), check=parsed.check)
        from octavo_server.fetching.command import fetch

        return fetch(wanted)
    if parsed.command == "calibrate":
        from octavo_server.calibration.command import calibrate

        return calibrate(options.calibrate_config(resolve(options.CALIBRATE, vars(parsed))))
    if parsed.command == "bench":
        if parsed.kind is None:
            raise Refused(
                "InvalidFlag", f"a kind is missing: {', '.join(bench_options.TABLES)}; see {PROGRAM} bench --help"
            )
        values = resolve(bench_options.TABLES[parsed.kind], vars(parsed), file=parsed.config)
        from octavo_server.bench.command import bench

        return bench(parsed.kind, values)
    if parsed.command != "check":
        parser.error("a command is missing: serve, fetch, calibrate, check or bench")
    from octavo_server.check import check

    return check(as_json=parsed.json)


if __name__ == "__main__":
    sys.exit(main())
