"""docs/reference/api.md: every route and every field of a request, from the code that checks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from octavo_server.api import wire
from octavo_server.api.fields import EXTENSIONS, HARMLESS, UNSUPPORTED
from octavo_server.config import LimitsConfig
from octavo_server.options import SERVE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "api.md"
HEAD = """\
# Routes and fields of the HTTP interface

<!-- Generated from octavo_server/api by `make generate`. -->

What the fields do in detail, errors, and what happens when something ends: [http-api.md](http-api.md).
Types are strict (`"max_tokens": "5"` is an error), and a field that is in none of these tables is a 400 that names it:
nothing that a request asks for is ignored in silence.
"""
BODIES = (
    ("POST /v1/chat/completions", wire.ChatRequest),
    ("POST /v1/completions", wire.CompletionRequest),
    ("POST /tokenize", wire.TokenizeRequest),
    ("POST /detokenize", wire.DetokenizeRequest),
)
DIFFERENCES = """\
## Differences to OpenAI
- A field without effect here is refused when it is set to something that would have one; OpenAI ignores some.
- `temperature` may be up to 10, `logit_bias` and `stop` may have more entries, `top_logprobs` has the limit below.
- `logprobs` are those of the model's own logits: `logit_bias`, penalties, `temperature`, masks and truncation don't
  change them.
- Content parts other than text are refused. Roles are those in the table; `function` is superseded by `tool`.
- `response_format` has two more types, `regex` and `grammar`; with `json_schema`, `strict` changes nothing: every
  schema is enforced, or refused with the reason.
- `reasoning_content` beside `content` holds what a model thinks before it answers.
- Without `max_completion_tokens` a chat answer may fill the model's length.
- A control token of the chat template in a message (`<|im_end|>`) stays text: it can't end a turn.
- `usage` comes with `prompt_tokens_details.cached_tokens` alone; `system_fingerprint` and `service_tier` are not sent.
- Errors have OpenAI's shape, and `request_id` beside `error`: the value of `X-Request-Id`, which is taken from the
  request or drawn, and is in the log.
- A request that fails after its stream began ends with an event `{"error": …}` and `data: [DONE]`.
- `store`, `background`, files, embeddings, images, audio, assistants and responses are not there.
"""


def generate() -> dict[Path, str]:
    """The page."""
    return {PAGE: render()}


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, model in BODIES:
        parts += [f"## {title}\n", fields_table(model)]
    return "\n".join([*parts, ignored_table(), refused_table(), limits_table(), DIFFERENCES])


def fields_table(model: type[Any]) -> str:
    """Supported fields of one body."""
    schema = model.model_json_schema()
    required = schema.get("required", ())
    rows = []
    for name, field in schema["properties"].items():
        form = "; ".join(dict.fromkeys(forms(field, schema.get("$defs", {}))))
        origin = "extension" if name in EXTENSIONS else ""
        must = "**required** " if name in required else ""
        meaning = " ".join(str(field.get("description", "")).split())
        rows.append((f"`{name}`", form, f"{must}{meaning}", origin))
    return table(("field", "form", "meaning", ""), rows)


def forms(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterable[str]:
    """Types, choices and bounds in a few words; null, which is always the same as leaving out, is not named."""
    if "anyOf" in field:
        for option in field["anyOf"]:
            yield from forms(option, definitions)
    elif "$ref" in field or "allOf" in field:
        yield "object"
    elif "enum" in field:
        yield ", ".join(f"`{choice}`" for choice in field["enum"])
    elif "const" in field:
        yield f"`{field['const']}`"
    elif field.get("type") == "array":
        inner = " or ".join(dict.fromkeys(forms(field.get("items", {}), definitions)))
        yield f"list of {inner}" if inner else "list"
    elif field.get("type") == "object":
        yield "object"
    elif field.get("type") not in (None, "null"):
        yield bounded({"string": "text", "boolean": "true, false"}.get(field["type"], field["type"]), field)


def bounded(kind: str, field: Mapping[str, Any]) -> str:
    """The type with its limits."""
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    if low is None:
        return kind
    sign = "> " if "exclusiveMinimum" in field else "≥ "
    if high is None or high >= 2**31 - 1:
        return f"{kind} {sign}{low:g}" if low > -(2**31) else kind
    return f"{kind} {sign if sign == '> ' else ''}{low:g} … {high:g}"


def ignored_table() -> str:
    """Fields without effect."""
    rows = [(f"`{name}`", why) for name, why in HARMLESS.items()]
    return "## Accepted and without effect\n\n" + table(("field", "why"), rows)


def refused_table() -> str:
    """Fields that are refused."""
    rows = []
    for name, (neutral, why) in UNSUPPORTED.items():
        allowed = ", ".join(f"`{value!r}`" for value in neutral)
        rows.append((f"`{name}`", f"null{', ' if allowed else ''}{allowed}", why))
    return "## Refused, but for these values\n\n" + table(("field", "accepted", "why"), rows)


def limits_table() -> str:
    """Limits of one request, with the flags that set them."""
    help_of = {option.name.replace("-", "_"): option for option in SERVE}
    rows = []
    for name in LimitsConfig.__dataclass_fields__:
        option = help_of[name]
        rows.append((option.help, f"{option.default}", f"`--{option.name}`"))
    return "## Limits of one request\n\n" + table(("what", "default", "flag"), rows)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    heads = list(columns)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
