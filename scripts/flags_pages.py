"""Reference pages of the three programs' flags, from their own parsers and tables of settings."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

from octavo_cli.__main__ import parser as cli_parser
from octavo_operator import __main__ as operator_main
from octavo_server import options
from octavo_server.bench import options as bench_options
from octavo_server.flags import Option

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
SERVER_HEAD = """\
# Settings of `octavo-server`

<!-- Generated from octavo_server/options.py by `make generate`. -->

Every setting is a flag, an environment variable and a key of the YAML file that `--config` names (the flag without its
dashes). The flag wins over the variable, the variable over the file. Names of choices may be written in any case. A
wrong value ends the program with one line that names the place, the value and what is allowed, and with exit code 2.

Environment alone: `OCTAVO_API_KEY`, `HF_TOKEN`, `HF_ENDPOINT`, for s3:// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, and `OCTAVO_TERMINATION_LOG` (a file for the reason of a failure,
as one JSON object of at most 4,096 bytes). Exit codes: 0 ended as asked, 1 failed while running, 2 refused.
"""
FETCH_TEXT = """\
## `octavo-server fetch`
Brings a model's files here, or (`--check`) proves that they can be had and served, without loading them: for a Hub it
asks for the repository's files and reads configuration and headers by range. It prints one JSON object, see
[wire-contract.md](wire-contract.md).
"""
CALIBRATE_TEXT = """\
## `octavo-server calibrate`
Times attention for every block size, searches faster launch configurations for them with the kernels' tuner, and prints
the best as one JSON object (and writes it to `OCTAVO_TERMINATION_LOG`); no model is loaded. Its `launchTable` is what
`--launch-table` of `serve` reads; the tables of all block sizes are in the log. A first round over all block sizes is
always whole, so a small budget measures fewer points and may leave the launches at their default.

`serve` says at start where its launches come from, as does `octavo_launch_info{source}`. A table that can't be read
ends the start (`LaunchTableUnreadable`); safe defaults take the place of one for another accelerator or shape.
"""
CHECK_TEXT = """\
## `octavo-server check`
Shows the device, its driver, the versions of torch and Triton, the CPU's features, where launch configurations come
from, and whether the attention kernels give a right result here; `--json` as one object. Exit code 2 when something
stands in the server's way, with the remedy.
"""
BENCH_TEXT = """\
## `octavo-server bench serve | throughput | latency`
How to measure with it: [benchmark.md](../how-to/benchmark.md).
"""
OPERATOR_HEAD = """\
# Settings of `octavo-operator`

<!-- Generated from the program's own parser by `make generate`. -->

The chart sets these from its [values](chart-values.md); `extraArgs` of the chart passes others. Each flag of `run` and
`explain` is also read from `OCTAVO_OPERATOR_` and its name in upper case (`--log-level`: `OCTAVO_OPERATOR_LOG_LEVEL`);
the flag wins. Exit codes: 0 ended as asked, 1 the cluster can't give what was asked for (it does not answer, refuses,
or has no such service), 2 what was given is wrong (a flag, a file), 130 interrupted.
"""
CLI_HEAD = """\
# Commands of `octavo`

<!-- Generated from the program's own parser by `make generate`. -->

Under the name `kubectl-octavo` on PATH it is also `kubectl octavo`. It reads the cluster with KUBECONFIG, as kubectl
does. How to use it: [The command line](../how-to/command-line.md).

Errors are one line on standard error that begins with `octavo:`. Exit codes, of every command:

| code | meaning |
|---|---|
| 0 | ended as asked |
| 1 | the cluster or a service can't do it: no answer, refused, no such service, no operator, no ready replica |
| 2 | what was given is wrong: an argument, a file, a model; nothing was changed |
| 130 | interrupted (`top` has no other end: 0) |
"""

SERVE_NAMES = {option.name for option in options.SERVE}


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    heads = list(columns)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def server_tables(settings: Iterable[Option]) -> str:
    """A table per group, in the order in which groups first occur."""
    groups: dict[str, list[Option]] = {}
    for option in settings:
        groups.setdefault(option.group, []).append(option)
    head = "| flag | variable | allowed | default | meaning |\n|---|---|---|---|---|\n"
    parts = [
        f"### {name}\n{head}" + "\n".join(map(options.documentation_row, found)) + "\n"
        for name, found in groups.items()
    ]
    return "\n".join(parts) if len(parts) > 1 else parts[0].partition("\n")[2]


def server_page() -> str:
    """docs/reference/server-flags.md."""
    calibrate = server_tables([Option(**{**vars(item), "group": ""}) for item in options.CALIBRATE])
    parts = (
        SERVER_HEAD, "## `octavo-server serve`\n", server_tables(options.SERVE),
        FETCH_TEXT, server_tables(options.FETCH), CALIBRATE_TEXT, calibrate, CHECK_TEXT, bench_text(),
    )  # fmt: skip
    return "\n".join(parts)


def bench_text() -> str:
    """The section of the measuring commands: a setting that several of them take stands there once."""
    served = {option.name for option in bench_options.SERVE}
    latency = [item for item in bench_options.LATENCY if item.group != "" and item.name not in served | SERVE_NAMES]
    shared = [f"`--{item.name}`" for item in bench_options.THROUGHPUT if item.name in SERVE_NAMES - served]
    return "\n".join((
        BENCH_TEXT,
        server_tables(bench_options.SERVE),
        "### `latency` alone",
        server_tables([Option(**{**vars(item), "group": ""}) for item in latency]),
        f"`throughput` and `latency` load a model and take these settings of `serve`: {', '.join(shared)}.\n",
    ))  # fmt: skip


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, purpose and parser of each command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            purposes = {item.dest: item.help or "" for item in action._choices_actions}
            for name, command in action.choices.items():
                yield name, purposes.get(name, ""), command


def flag_rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    """Spelling, default and meaning of each argument."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        name = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{action.metavar or action.dest}`"
        if action.choices:
            name += " " + ", ".join(f"`{choice}`" for choice in action.choices)
        meaning = (action.help or "").partition("(default:")[0].rstrip("; ").replace("|", "\\|")
        yield name.replace("SERVICE|nodes", "SERVICE\\|nodes"), default_of(action), meaning


def default_of(action: argparse.Action) -> str:
    """The default in a cell: the value, or what the help says in its place."""
    value = action.default
    told = re.search(r"\(default: ([^%)]+)\)", action.help or "")
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if value in (None, "", False):
        return told[1] if told else ""
    return "" if action.required else f"`{value}`"


def program_page(head: str, parser: argparse.ArgumentParser) -> str:
    """A page of all commands of a program."""
    parts = [head]
    for name, purpose, command in commands(parser):
        rows = list(flag_rows(command))
        parts.append(f"## `{parser.prog} {name}`\n{purpose[:1].upper()}{purpose[1:]}.\n")
        parts.append(table(("argument", "default", "meaning"), rows) if rows else "It has no arguments.\n")
    return "\n".join(parts)


def generate() -> dict[Path, str]:
    """Wanted text by path. The environment is left out, since the operator's flags take defaults from it."""
    with mock.patch.dict(os.environ, clear=True):
        operator = operator_main._parser()
    return {
        REFERENCE / "server-flags.md": server_page(),
        REFERENCE / "operator-flags.md": program_page(OPERATOR_HEAD, operator),
        REFERENCE / "command-line.md": program_page(CLI_HEAD, cli_parser()),
    }
