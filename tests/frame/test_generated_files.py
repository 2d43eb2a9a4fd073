"""Generated files are compared with what their sources say now, and the reference leaves no field out."""

from __future__ import annotations

from scripts import generated, reference

CRD = {
    "spec": {
        "versions": [
            {
                "served": True,
                "schema": {
                    "openAPIV3Schema": {
                        "properties": {
                            "spec": {
                                "required": ["uri"],
                                "x-kubernetes-validations": [{"rule": "true", "message": "uri must be good"}],
                                "properties": {
                                    "uri": {"type": "string", "description": "Where | from."},
                                    "count": {"type": "integer", "minimum": 0, "maximum": 9, "default": 3},
                                    "items": {"type": "array", "items": {"properties": {"name": {"enum": ["a", "b"]}}}},
                                },
                            },
                            "status": {"properties": {"ready": {"type": "string"}}},
                        }
                    }
                },
            }
        ]
    }
}


def test_a_missing_and_a_changed_file_differ_and_an_equal_one_does_not(tmp_path):
    equal, changed, missing = (tmp_path / name for name in ("equal", "changed", "missing"))
    equal.write_text("a")
    changed.write_text("b")
    assert generated.differences({equal: "a", changed: "a", missing: "a"}) == [changed, missing]


def test_each_file_has_one_source():
    paths = [path for generator in generated.GENERATORS for path in generator()]
    assert len(paths) == len(set(paths)) >= 6


def test_the_reference_shows_fields_of_lists_defaults_bounds_and_rules():
    page = reference.render(CRD)
    assert "| `uri` | string | required | Where \\| from. |" in page
    assert "| `count` | integer, 0 … 9 | `3` |" in page
    assert "| `items[].name` | `a`, `b` |" in page
    assert "- uri must be good" in page
    assert "| `ready` | string |" in page
