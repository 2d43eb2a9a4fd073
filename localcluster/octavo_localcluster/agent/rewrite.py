"""Container paths and Service names, turned into what they are on this machine.

A process group has no mount namespace and no cluster DNS. So each mention of a mount path or of a Service's name in a
command, an argument or an environment value is replaced before the program starts.
"""

import re
from collections.abc import Callable, Mapping

_BEFORE = r"(?:^|(?<=[=\s'\"<>(,;|&:])|(?<=file://))"
_AFTER = r"(?=$|[/\s'\"<>),;|&:])"
_SERVICE = re.compile(
    r"(?<![\w.-])([a-z0-9]([-a-z0-9]*[a-z0-9])?)\.([a-z0-9]([-a-z0-9]*[a-z0-9])?)\.svc(\.cluster\.local)?\.?(?![\w-])"
)


def path_rewriter(paths: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces container paths (keys, absolute) by real ones where they stand as whole path prefixes.

    A path counts at the start of the text, after `=`, `:`, `,`, `file://`, white space, a quote or a shell operator,
    and must end there or go on with `/`. The longest path wins, so a mount inside a mount is found.
    """
    cleaned = {key.rstrip("/"): value for key, value in paths.items() if key.rstrip("/")}
    if not cleaned:
        return lambda text: text
    longest_first = sorted(cleaned, key=lambda key: (-len(key), key))
    pattern = re.compile(_BEFORE + "(" + "|".join(map(re.escape, longest_first)) + ")" + _AFTER)
    return lambda text: pattern.sub(lambda match: cleaned[match.group(1)], text)


def name_rewriter(addresses: Callable[[str, str], str | None]) -> Callable[[str], str]:
    """A function that replaces `<service>.<namespace>.svc[.cluster.local]` by its address; unknown names stay.

    `addresses(namespace, service)` gives the ClusterIP, or None when there is none.
    """

    def replacement(match: re.Match[str]) -> str:
        return addresses(match.group(3), match.group(1)) or match.group(0)

    return lambda text: _SERVICE.sub(replacement, text)
