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
    "types in a list": closed({"middle": {"type": ["string", "null", "boolean"], "maxLength": 5}}),
    "five levels deep": closed({"a": closed({"b": closed({"c": closed({"d": closed({"e": {"type": "boolean"}})})})})}),
    "two definitions that name each other": {
        "$defs": {
            "group": closed({"size": DIGIT}, first={"$ref": "#/$defs/person"}),
            "person": closed({"of": {"anyOf": [{"type": "null"}, DIGIT, {"$ref": "#/$defs/group"}]}}),
        },
        "$ref": "#/$defs/person",
    },
    "a tree with lists of itself": {
        "$defs": {"tree": closed({"v": DIGIT, "below": {"type": "array", "maxItems": 2, "items": {"anyOf": [
            DIGIT, {"$ref": "#/$defs/tree"}]}}})},
        "$ref": "#/$defs/tree",
    },
    "anyOf objects": closed({"pay": {"anyOf": [
        closed({"card": {"type": "string", "pattern": "^[0-9]{4}$"}}), closed({"iban": {"pattern": "^DE[0-9]{6}$"}}),
    ]}}),
    "pattern with unicode": closed({"word": {"type": "string", "pattern": "^[äöüß]{1,3}(世|界)?$"}}),
    "patterns with escapes": closed({"v": {"type": "string", "pattern": "^v\\d{1,2}\\.\\d{1,2}(-rc\\.[1-9])?$"}}),
    "texts that JSON escapes": closed({"path": {"enum": ["C:\\x", "tab\there", "line\nbreak", "\"q\"", "\u0001"]}}),
    "bounds that are excluded": closed({"n": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}}),
    "an address": closed({"ip": {"type": "string", "format": "ipv4"}}),
    "lists of lists": {"type": "array", "minItems": 1, "maxItems": 2, "items": {
        "type": "array", "minItems": 2, "maxItems": 2, "items": DIGIT}},
    "enum of whole values": closed({"where": {"enum": [{"x": 1, "y": [2, 3]}, [], {"x": None}]}}),
    "all optional": {**CLOSED, "properties": {"a": DIGIT, "b": {"type": "boolean"}, "c": {"type": "null"}}},
    "a bare integer": {"type": "integer", "minimum": 10, "maximum": 99},
}  # fmt: skip
