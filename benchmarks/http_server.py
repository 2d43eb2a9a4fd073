"""`octavo-server serve` with the dummy engine: flags of `serve`, then `--`, then flags of http_engine.py."""

from __future__ import annotations

import sys
from pathlib import Path

from octavo_server import options
from octavo_server.flags import Parser, add_options, resolve
from octavo_server.serve import serve
from octavo_server.termination import Refused, report

ENGINE = Path(__file__).parent / "http_engine.py"


def main() -> int:
    """Serves; the exit code."""
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    parser = Parser(prog="http_server")
    add_options(parser, options.SERVE)
    try:
        config = options.serve_config(resolve(options.SERVE, vars(parser.parse_args(given[:cut]))))
        return int(serve(config, (sys.executable, str(ENGINE), *given[cut + 1 :])))
    except Refused as refused:
        return report(refused)


if __name__ == "__main__":
    sys.exit(main())
