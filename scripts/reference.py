"""Pages of all fields of InferenceService and TuningProfile, from the schemas that the API server enforces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
HEAD = """\
# InferenceService: every field

<!-- Generated from octavo_operator/api by `make generate`. -->

Group `serving.octavo.dev`, version `v1alpha1`, short name `ois`; `kubectl explain ois.spec` shows the same. A field
without a default and without "required" may be left out. The condition `SpecHonoured` lists fields that are set and
that the installed version cannot act on yet.
"""
PROFILE_HEAD = """\
# TuningProfile: every field

<!-- Generated from octavo_operator/api by `make generate`. -->

Group `serving.octavo.dev`, version `v1alpha1`. The operator writes these objects; delete one to have it measured again.
[Block size](../concepts/block-size.md) and [tuning](../concepts/tuning.md) tell what they are for.
"""


def render(crd: Schema, head: str = HEAD) -> str:
    """The whole page: fields of spec, the rules between fields, fields of status."""
    [version] = [entry for entry in crd["spec"]["versions"] if entry["served"]]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    rules = messages(version["schema"]["openAPIV3Schema"])
    told = ["## Rules between fields\n", "The API server refuses what breaks one of them, with this message.\n"]
    return "\n".join(
        [
            head,
            "## spec\n",
            table(properties["spec"], ("field", "form", "default", "meaning")),
            *(told if rules else ()),
            *(f"- {message}" for message in rules),
            "\n## status\n" if rules else "## status\n",
            table(properties["status"], ("field", "form", "meaning")),
        ]
    )


def table(schema: Schema, columns: tuple[str, ...]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for path, field, required in fields(schema):
        cells = {
            "field": f"`{path}`",
            "form": form(field),
            "default": "required" if required else default(field),
            "meaning": str(field.get("description", "")).replace("\n", " ").replace("|", "\\|"),
        }
        lines.append("| " + " | ".join(cells[column] for column in columns) + " |")
    return "\n".join(lines) + "\n"


def fields(schema: Schema, prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Path, schema and whether it is required, of each field; sections are followed by their own fields."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        if field.get("properties"):
            yield path, field, name in required
            yield from fields(field, f"{path}.")
        elif field.get("items", {}).get("properties"):
            yield f"{path}[]", field, name in required
            yield from fields(field["items"], f"{path}[].")
        else:
            yield path, field, name in required


def form(field: Schema) -> str:
    """Type, choices and bounds in a few words."""
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = str(field.get("type", ""))
    if kind == "array":
        inner = field.get("items", {})
        return "list" if inner.get("properties") else f"list of {form(inner)}"
    if kind == "object":
        return "section" if field.get("properties") else "map"
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} … {high}"
    return f"{kind}, ≥ {low}" if low is not None else kind


def default(field: Schema) -> str:
    value = field.get("default")
    if value is None or isinstance(value, dict | list):
        return ""
    return f"`{value}`"


def messages(schema: Schema) -> list[str]:
    """Messages of all rules, each once, in the order of the schema."""
    found: dict[str, None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, Mapping):
            for entry in node.get("x-kubernetes-validations", ()):
                found.setdefault(entry["message"])
            for value in node.values():
                visit(value)
        elif isinstance(node, list):
            for value in node:
                visit(value)

    visit(schema)
    return list(found)
