"""One grammar for a whole answer: reasoning first where the model thinks, then a form, calls, or either."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_server.text.grammar import lark_text
from octavo_server.text.toolcalls.families import literals
from octavo_server.text.toolcalls.thinking import END, START

_BODY = "/(?s:.*)/"


def answer_grammar(
    *,
    form: str | None,
    calls: str | None,
    thinking: str,
    harmony: bool,
    special: Mapping[str, int],
) -> str:
    """A Lark grammar.

    form: right side of a rule for the content; calls: rules with `calls` on top; at least one of them, and with both
    either may come. thinking: `No`, `Opened` (the prompt ends inside of the reasoning) or `Free` (it may come).
    harmony: content and reasoning are messages in channels.
    """
    rules = [calls] if calls else []
    if form is not None:
        before = literals("<|channel|>final<|message|>", special) if harmony else ""
        rules.append(f"form: {before} content\ncontent: {form}")
    answer = "(form | calls)" if form is not None and calls else "form" if form is not None else "calls"
    if harmony:
        rules.append(
            f"reasoning: {literals('<|channel|>analysis<|message|>', special)} thought "
            f"{literals('<|start|>assistant', special)}\n{_until('<|end|>', special)}"
        )
        return "\n".join([f"start: reasoning? {answer}", *rules])
    if thinking == "No":
        return "\n".join([f"start: {answer}", *rules])
    rules.append(f"{_until(END, special)}\ngap: /[ \\n]{{0,4}}/")
    if thinking == "Opened":
        return "\n".join([f"start: thought gap {answer}", *rules])
    return "\n".join([f"start: ({literals(START, special)} thought gap)? {answer}", *rules])


def _until(mark: str, special: Mapping[str, int]) -> str:
    """The rule `thought`: any text up to a mark, and the mark."""
    if mark in special:
        return f"thought: {_BODY} <[{special[mark]}]>"
    return f"thought[suffix={lark_text(mark)}]: {_BODY}"
