"""Each command line that a page shows is one that the program understands."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from octavo_cli.__main__ import parser as cli_parser
from octavo_localcluster.__main__ import build_parser as cluster_parser
from octavo_operator import __main__ as operator_main
from octavo_server.__main__ import build_parser as server_parser
from octavo_server.termination import Refused

from tests.frame.pages import PAGES, ROOT, SHELLS, blocks, commands, inline_code

with mock.patch.dict(os.environ, clear=True):
    PARSERS: dict[str, argparse.ArgumentParser] = {
        "octavo": cli_parser(),
        "octavo-operator": operator_main._parser(),
        "octavo-server": server_parser(),
        "octavo-localcluster": cluster_parser(),
    }
VERBS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z]+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
SCHEMA: dict[str, Any] = json.loads((ROOT / "charts/octavo/values.schema.json").read_text())
SETTERS = ("--set", "--set-string", "--set-json")


def ours(words: list[str]) -> tuple[str, list[str]] | None:
    """Program and arguments, where the program is one of ours."""
    name = Path(words[0]).name
    if name == "kubectl" and words[1:2] == ["octavo"]:
        return "octavo", words[2:]
    return (name, words[1:]) if name in PARSERS else None


def fault(program: str, arguments: list[str]) -> str:
    """Why a program refuses a command line; empty when it does not."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        try:
            _, unknown = PARSERS[program].parse_known_args(arguments)
        except Refused as refused:
            return str(refused)
        except SystemExit as ended:
            return "" if ended.code == 0 else told.getvalue()
    return f"unknown: {' '.join(unknown)}" if unknown else ""


def flag_fault(program: str, words: list[str]) -> str:
    """As `fault`, for a command that a sentence names in part: its subcommand and flags must exist."""
    parser: argparse.ArgumentParser = PARSERS[program]
    for word in words:
        known = {flag for action in parser._actions for flag in action.option_strings}
        if word.startswith("-") and word != "-" and word.partition("=")[0] not in known:
            return f"{parser.prog} has no flag {word}"
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                names = word.split("|")
                if not word.startswith("-") and re.fullmatch(r"[a-z|]+", word):
                    if not set(names) <= set(action.choices):
                        return f"{program} has no command {word}"
                    parser = action.choices[names[0]]
                break
    return ""


SHOWN = [block for page in PAGES for block in blocks(page) if block.language in SHELLS]
LINES = [(block.where, words) for block in SHOWN for words in commands(block.text)]
NAMED = [(page, text) for page in PAGES for text in inline_code(page) if re.match(r"(octavo[a-z-]*|make) ", text)]


def test_the_pages_show_commands_of_every_program():
    programs = {found[0] for _, words in LINES if (found := ours(words))}
    assert programs >= {"octavo", "octavo-operator", "octavo-localcluster"}
    assert len([words for _, words in LINES if words[0] in ("helm", "make")]) > 10


OWN = [(where, *found) for where, words in LINES if (found := ours(words))]


@pytest.mark.parametrize(("where", "program", "arguments"), OWN, ids=[f"{w}-{n}" for n, (w, *_) in enumerate(OWN)])
def test_a_command_that_is_shown_is_understood(where, program, arguments):
    assert fault(program, [word for word in arguments if not word.startswith("<")]) == "", where


def test_commands_that_sentences_name_have_their_subcommand_and_flags():
    faults = []
    for page, text in NAMED:
        name, *words = text.split()
        if name in PARSERS and (told := flag_fault(name, words)):
            faults.append(f"{page.relative_to(ROOT)}: `{text}`: {told}")
    assert faults == []


def test_every_verb_of_make_that_is_shown_exists_with_its_variables():
    shown = [(where, words[1:]) for where, words in LINES if words[0] == "make"]
    shown += [(str(page), text.split()[1:]) for page, text in NAMED if text.startswith("make ")]
    assert len(shown) > 20
    for where, words in shown:
        for word in words:
            variable, given, _ = word.partition("=")
            if given:
                assert variable in VARIABLES, f"{where}: make has no variable {variable}"
            elif re.fullmatch(r"[a-z][a-z-]*", word):
                assert word in VERBS, f"{where}: make has no verb {word}"


def holds(schema: dict[str, Any], path: str) -> bool:
    """Whether a chart's value of this path may exist."""
    for part in re.sub(r"\[\d+\]", ".0", path).split("."):
        inner = schema.get("properties", {}).get(part)
        if part.isdigit() and schema.get("type") == "array":
            inner = schema["items"]
        elif inner is None and isinstance(schema.get("additionalProperties"), dict):
            inner = schema["additionalProperties"]
        if inner is None:
            return False
        if "$ref" in inner:
            inner = SCHEMA["$defs" if "$defs" in SCHEMA else "definitions"][inner["$ref"].rsplit("/", 1)[1]]
        schema = inner
    return True


def settings(words: list[str]) -> list[str]:
    """Paths that --set and its kin name in a command of helm."""
    found = []
    for number, word in enumerate(words):
        flag, given, rest = word.partition("=")
        value = rest if given and flag in SETTERS else words[number + 1] if word in SETTERS else ""
        value = re.sub(r"\{[^}]*\}", "", value)
        found += [part.partition("=")[0] for part in value.split(",") if "=" in part]
    return found


def test_every_value_of_the_chart_that_a_command_sets_exists():
    named = [(where, path) for where, words in LINES if words[0] == "helm" for path in settings(words)]
    for page in PAGES:
        for text in inline_code(page):
            if "--set" in text:
                named += [(str(page), path) for path in settings(shlex.split(text))]
    assert len(named) > 15
    assert [f"{where}: {path}" for where, path in named if not holds(SCHEMA, path)] == []
    assert not holds(SCHEMA, "models.proxy.port")
    assert holds(SCHEMA, "imagePullSecrets[0].name")


def test_a_flag_or_command_that_does_not_exist_would_be_told():
    assert "--fast" in fault("octavo", ["top", "--fast"])
    assert fault("octavo-server", ["serve", "--modell", "x"])
    assert "tops" in flag_fault("octavo", ["tops"])
    assert fault("octavo-operator", ["explain"])
