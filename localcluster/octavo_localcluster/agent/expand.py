"""`$(NAME)` in commands, arguments and environment values."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace each `$(NAME)` whose name is known; unknown ones stay as they are, and `$$` stands for one `$`."""

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        return values.get(name, match.group(0))

    return _REFERENCE.sub(replacement, text)
