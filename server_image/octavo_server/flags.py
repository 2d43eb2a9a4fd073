"""Settings from flags, the environment and a file: one table of options, three ways to set each.

The flag wins over the environment, the environment over the file, the file over the default. Every fault names the
place it came from, the value, and what is allowed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from octavo_server.contract import ENVIRONMENT_PREFIX
from octavo_server.termination import Refused


@dataclass(frozen=True)
class Option:
    """One setting. `kind` says how text becomes a value; limits are inclusive."""

    name: str
    """Without the dashes: `max-length`."""
    help: str
    group: str
    kind: str = "text"
    """text, integer, number, choice, or switch (Enabled / Disabled)."""
    default: Any = ""
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    metavar: str = ""
    required: bool = False
    secret: bool = False
    """Only from environment or file: other users of the machine can read command lines."""

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper().replace("-", "_")

    def parse(self, text: str, place: str) -> Any:
        """The value of a text. Raises Refused naming `place`, the value and what is allowed."""
        if self.kind == "integer":
            return self._number(text, place, int, "a whole number")
        if self.kind == "number":
            return self._number(text, place, float, "a number")
        if self.choices:
            for choice in self.choices:
                if str(choice).lower() == text.strip().lower():
                    return choice
            raise Refused("InvalidFlag", f"{place}: {text!r} is none of {', '.join(map(str, self.choices))}")
        return text

    def _number(self, text: str, place: str, convert: type, what: str) -> Any:
        try:
            value = convert(text.strip())
        except ValueError:
            raise Refused("InvalidFlag", f"{place}: {text!r} is not {what}") from None
        if self.choices and value not in self.choices:
            raise Refused("InvalidFlag", f"{place}: {text} is none of {', '.join(map(str, self.choices))}")
        if (self.minimum is not None and not value >= self.minimum) or (
            self.maximum is not None and not value <= self.maximum
        ):
            allowed = f"at least {self.minimum:g}" if self.maximum is None else f"{self.minimum:g} to {self.maximum:g}"
            raise Refused("InvalidFlag", f"{place}: {text} is outside of the allowed range, {allowed}")
        return value


class Parser(argparse.ArgumentParser):
    """argparse that ends with one line in place of a usage text, and takes no abbreviations."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", _HelpFormatter)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        raise Refused("InvalidFlag", f"{message}; see {self.prog} --help")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Adds the table to a parser, by group; values stay text until `resolve`."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        if option.secret:
            continue
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        group.add_argument(
            f"--{option.name}",
            dest=_key(option.name),
            metavar=option.metavar or ("|".join(map(str, option.choices)) or option.kind.upper()),
            default=None,
            help=_help(option),
        )


def resolve(
    options: Sequence[Option],
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    file: str = "",
) -> dict[str, Any]:
    """Values by option name in attribute spelling (`max_length`). Raises Refused for the first fault found."""
    environment = os.environ if environment is None else environment
    from_file = _read_file(file, options) if file else {}
    values: dict[str, Any] = {}
    for option in options:
        key = _key(option.name)
        if not option.secret and flags.get(key) is not None:
            values[key] = option.parse(flags[key], f"--{option.name}")
        elif environment.get(option.variable, "") != "":
            values[key] = option.parse(environment[option.variable], option.variable)
        elif key in from_file:
            values[key] = option.parse(from_file[key], f"{option.name} in {file}")
        elif option.required:
            raise Refused("InvalidFlag", f"--{option.name} is missing: give it as a flag or as {option.variable}")
        else:
            values[key] = option.default
    return values


def _read_file(path: str, options: Sequence[Option]) -> dict[str, str]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused("InvalidFlag", f"--config: {path} can't be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused("InvalidFlag", f"--config: {path} is no YAML: {error}") from None
    if not isinstance(content, dict):
        raise Refused("InvalidFlag", f"--config: {path} must hold one mapping of setting to value")
    known = {_key(option.name) for option in options}
    values: dict[str, str] = {}
    for name, value in content.items():
        key = _key(str(name))
        if key not in known:
            raise Refused("InvalidFlag", f"--config: {path} sets {name!r}, which is no setting of this command")
        if isinstance(value, bool) or value is None or isinstance(value, dict | list):
            raise Refused("InvalidFlag", f"--config: {name} in {path} must be a text or a number, not {value!r}")
        values[key] = str(value)
    return values


def _key(name: str) -> str:
    return name.replace("-", "_")


def _help(option: Option) -> str:
    notes = []
    if option.required:
        notes.append("required")
    elif option.default != "":
        notes.append(f"default {option.default}")
    text = option.help if not notes else f"{option.help} ({', '.join(notes)})"
    return text.replace("%", "%%")
