"""JSON schemas of the kinds that people send, bounded so that a small model at temperature 1 comes to an end."""

from __future__ import annotations

from typing import Any

SHORT = {"type": "string", "maxLength": 12}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}


def closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {**CLOSED, "properties": {**required, **optional}, "required": list(required)}


SCHEMAS: dict[str, Any] = {
    "flat": closed({"name": SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 130}}),
    "nested": closed({"user": closed({"home": closed({"city": SHORT, "zip": {"pattern": "^[0-9]{5}$"}})})}),
    "enum of strings, a number and null": closed({"colour": {"enum": ["red", "grün", 3, None, "a\"b"]}}),
    "const": closed({"kind": {"const": "invoice"}, "paid": {"type": "boolean"}}),
    "pattern": closed({"phone": {"type": "string", "pattern": "^\\+[1-9][0-9]{3,6}$"}}),
    "anyOf": closed({"value": {"anyOf": [{"type": "integer", "minimum": -5, "maximum": 5}, {"type": "null"}, SHORT]}}),
    "oneOf by a constant": {
        "oneOf": [
            closed({"shape": {"const": "circle"}, "radius": {"type": "integer", "minimum": 1, "maximum": 9}}),
            closed({"shape": {"const": "square"}, "side": {"type": "integer", "minimum": 1, "maximum": 9}}),
        ]
    },
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
        "additionalProperties": False,
        "properties": {"a": True, "b": True},
    },
    "recursion": {
        "$defs": {"node": closed({"v": DIGIT}, left={"$ref": "#/$defs/node"})},
        "$ref": "#/$defs/node",
    },
    "array of objects": {
        "type": "array", "minItems": 1, "maxItems": 3,
        "items": closed({"id": {"type": "integer", "minimum": 1, "maximum": 99}}, tag=SHORT),
    },
    "tuple": {"type": "array", "prefixItems": [{"type": "boolean"}, SHORT], "items": False, "minItems": 2},
    "unicode names and values": closed({"straße": {"enum": ["größer", "世界", "🦙"]}, "名前": {"const": "é"}}),
    "numbers": closed({
        "price": {"type": "number", "minimum": 0, "maximum": 10},
        "count": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50},
    }),
    "formats": closed({"day": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}}),
    "map by a pattern": {**CLOSED, "patternProperties": {"^[a-z]{1,4}$": {"type": "boolean"}}, "maxProperties": 2},
    "definitions used twice": {
        "definitions": {"money": closed({"amount": DIGIT, "currency": {"enum": ["EUR", "USD"]}})},
        **closed({"net": {"$ref": "#/definitions/money"}, "gross": {"$ref": "#/definitions/money"}}),
    },
    "a bare enum": {"enum": ["yes", "no"]},
    "a bare integer": {"type": "integer", "minimum": 10, "maximum": 99},
}  # fmt: skip
