"""Functions for models whose chat template does not know them: described in the system message, in Hermes' words.

Calls and results of earlier turns become text of the assistant and of the user, in the same notation, which the Hermes
parser reads back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_TOOLS_VARIABLE = re.compile(r"\{[%{][^%}]*\btools\b")
_INTRODUCTION = """\
You may call functions to help with the user's request. These are their signatures:
<tools>
{tools}
</tools>
For each call, write a JSON object with the function's name and arguments between tags, and nothing else:
<tool_call>
{{"name": "FUNCTION", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def knows_tools(template: str) -> bool:
    """Whether a chat template uses its variable `tools`."""
    return _TOOLS_VARIABLE.search(template) is not None


def described(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a template without tools: plain roles, with the functions in the first, a system message."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools=listed)
    if plain and plain[0]["role"] == "system":
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
    texts = [message["content"], *(f"<tool_call>\n{call}\n</tool_call>" for call in written)]
    return {"role": message["role"], "content": "\n".join(text for text in texts if text)}
