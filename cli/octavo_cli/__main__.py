"""Commands: top, explain, bench, init; also as `kubectl octavo …`, by the name kubectl-octavo."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from octavo_operator.cluster.client import ApiError
from rich.console import Console

from .context import current_namespace
from .errors import CommandError, ServiceError

REFUSED, FAILED, INTERRUPTED = 2, 1, 130
WIDE = 200
NOT_FOUND = 404
NOT_INSTALLED = "the cluster knows no InferenceServices; install Octavo there (helm install), or choose another context"


class _Parser(argparse.ArgumentParser):
    """Refuses in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"octavo: {message}; see octavo --help", file=sys.stderr)
        sys.exit(REFUSED)


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.5 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: must lie between 0.5 and 3600")
    return number


def parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    made = _Parser(
        prog="octavo",
        description="Look at InferenceServices, explain, measure and write them. Uses KUBECONFIG as kubectl does.",
    )
    made.add_argument("--version", action="version", version=f"octavo {version('octavo-cli')}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    top = commands.add_parser("top", help="a live table of services: replicas, KV use, queue, tokens per second")
    where = top.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", help="only this namespace (default: the context's)")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="services of all namespaces")
    top.add_argument("--seconds", type=_seconds, default=2.0, help="between two looks (default: 2)")
    top.add_argument("--once", action="store_true", help="one table, then end")
    explain = commands.add_parser("explain", help="why this image, block size and count, or why not Ready")
    explain.add_argument("service", metavar="SERVICE|nodes", help="name of an InferenceService, or nodes")
    explain.add_argument("-n", "--namespace", help="its namespace (default: the context's)")
    explain.add_argument("--catalogue", type=Path, help="images.yaml, where no operator is installed")
    bench = commands.add_parser("bench", help="send streams to a service and tell how fast they come")
    bench.add_argument("service", metavar="SERVICE", help="name of an InferenceService")
    bench.add_argument("-n", "--namespace", help="its namespace (default: the context's)")
    bench.add_argument("--url", help="its address, where neither the cluster's nor a forwarded port will do")
    for flag, default, what in (
        ("--requests", 32, "in all"),
        ("--concurrency", 8, "at once"),
        ("--prompt-words", 64, "of each prompt"),
        ("--tokens", 64, "of each answer"),
    ):
        bench.add_argument(flag, type=_positive, default=default, help=f"{what} (default: {default})")
    init = commands.add_parser("init", help="write an InferenceService after reading the model's config")
    init.add_argument("model", metavar="MODEL", help="folder with config.json, a .gguf file, or hf://org/name")
    init.add_argument("--length", type=_positive, help="longest request in tokens (default: the model's own limit)")
    init.add_argument("--cpu", action="store_true", help="for nodes without accelerators")
    init.add_argument("--revision", help="branch, tag or commit on the Hub")
    init.add_argument("--uri", help="where the cluster finds the model, such as pvc://models/name or s3://bucket/key")
    init.add_argument("-o", "--output", type=Path, help="file for the manifest (default: standard output)")
    init.add_argument("--force", action="store_true", help="write over a file that is there")
    return made


def _top(flags: argparse.Namespace) -> None:
    from .top import top

    namespace = None if flags.all_namespaces else flags.namespace or current_namespace()
    # Where nobody looks at the width, as in a pipe, no reason is cut.
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    asyncio.run(top(namespace, flags.seconds, flags.once, console))


def _explain(flags: argparse.Namespace) -> int:
    from octavo_operator.__main__ import main as operator

    words = ["explain", flags.service, "--namespace", flags.namespace or current_namespace()]
    return operator([*words, "--catalogue", str(flags.catalogue)] if flags.catalogue else words, program="octavo")


async def _measure(flags: argparse.Namespace) -> None:
    from .bench import Load, bench
    from .forward import reach

    load = Load(flags.requests, flags.concurrency, flags.prompt_words, flags.tokens)
    if flags.url:
        await bench(flags.url.rstrip("/"), load, Console())
        return
    async with reach(flags.namespace or current_namespace(), flags.service) as url:
        await bench(url, load, Console())


def _init(flags: argparse.Namespace) -> None:
    from .init import Wish, init

    told = Console(stderr=True)
    if flags.output is not None and flags.output.exists() and not flags.force:
        raise CommandError(f"--output {flags.output}: there is a file of this name; --force writes over it")
    text = init(Wish(flags.model, flags.length, flags.cpu, flags.revision, flags.uri), told)
    if flags.output is None:
        print(text, end="", flush=True)
        return
    try:
        # Another one may have written it in the meantime.
        with flags.output.open("w" if flags.force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"--output {flags.output}: {error.strerror}") from error
    told.print(f"wrote {flags.output}; next: kubectl apply -f {flags.output}")


def _act(flags: argparse.Namespace) -> int:
    if flags.command == "explain":
        return _explain(flags)
    if flags.command == "top":
        _top(flags)
    elif flags.command == "bench":
        asyncio.run(_measure(flags))
    else:
        _init(flags)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 ended as asked, 1 the cluster or a service can't do it, 2 what was given is wrong: an argument, a
    file or a model, 130 interrupted (0 for `top`, which has no other end)."""
    flags = parser().parse_args(arguments)
    try:
        return _act(flags)
    except KeyboardInterrupt:
        return 0 if flags.command == "top" else INTERRUPTED
    except BrokenPipeError:
        # The reader (head, a pager) has seen enough; the interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CommandError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return REFUSED
    except ServiceError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return FAILED
    except ApiError as error:
        # A kind that is not served has no object of Kubernetes for an answer, only the web server's words.
        unknown = error.code == NOT_FOUND and "page not found" in error.message
        print(f"octavo: {NOT_INSTALLED if unknown else error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
