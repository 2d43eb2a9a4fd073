"""Every reason in the code stands in the list that the how-to is made from, and the list holds nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import octavo_operator
from octavo_operator.plan import server_contract as contract
from octavo_operator.plan.check_job import _WAITING_FAULTS
from octavo_operator.status.conditions import ORDER
from octavo_operator.status.pods import _FAULTS
from octavo_operator.status.reasons import REASONS, SECTIONS, render

PACKAGE = Path(octavo_operator.__file__).parent
WHERE = {
    "Verdict": (2,),
    "Fault": (0,),
    "CheckResult": (1,),
    "ImageChoice": (2,),
    "Resolution": (1, 3),
    "Refusal": (0,),
}
"""Calls that carry a reason, and at which place."""


def strings(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def reasons_in_code() -> set[str]:
    found: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WHERE:
                for place in WHERE[node.func.id]:
                    argument = node.args[place] if place < len(node.args) else None
                    # A conditional or a constant; names and attributes pass on what was made elsewhere.
                    if isinstance(argument, ast.Constant | ast.IfExp):
                        parts = [argument] if isinstance(argument, ast.Constant) else [argument.body, argument.orelse]
                        found |= {text for part in parts if isinstance(part, ast.Constant) for text in strings(part)}
    return found | set(contract.CHECK_REASONS) | set(_WAITING_FAULTS) | set(_FAULTS)


def test_every_reason_that_the_code_gives_is_explained():
    assert reasons_in_code() - set(REASONS) == set()
    assert len(reasons_in_code()) > 40


def test_every_explained_reason_is_given_somewhere_in_the_code():
    everything = set()
    for file in PACKAGE.rglob("*.py"):
        if file.name != "reasons.py":
            everything |= strings(ast.parse(file.read_text()))
    assert set(REASONS) - everything == set()


def test_a_fault_says_what_to_do_and_every_condition_exists():
    for reason in REASONS.values():
        assert reason.meaning.endswith(".")
        assert bool(reason.remedy) == reason.is_fault, reason.name
        assert set(reason.conditions) <= set(ORDER)
    assert sum(len(reasons) for _, reasons in SECTIONS) == len(REASONS), "no reason stands twice"


def test_the_how_to_names_each_reason_once():
    text = render()
    for name in REASONS:
        assert text.count(f"| `{name}` |") == 1
