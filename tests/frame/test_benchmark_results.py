"""Result files and the page that is made of them."""

from __future__ import annotations

import json

import pytest

from benchmarks import report
from benchmarks.common import Row, read_results, write_result


@pytest.mark.parametrize(
    ("better", "value", "goal", "met"),
    [
        ("higher", 2, 1, True),
        ("higher", 1, 2, False),
        ("lower", 1, 2, True),
        ("lower", 2, 1, False),
        ("lower", 1, None, None),
    ],
)
def test_whether_a_goal_is_met_is_computed_in_its_direction(better, value, goal, met):
    assert Row("x", "s", value, better, goal).met is met


def test_a_result_says_where_when_and_with_what_it_was_measured(tmp_path):
    rows = [{"name": "one stream", "unit": "tokens/s", "value": 40.0, "better": "higher", "goal": 36.0, "met": False}]
    path = write_result("serving-cpu", rows, command="make bench-cpu", folder=tmp_path, versions={"peer": "1"})
    result = json.loads(path.read_text())
    assert {"topic", "machine", "versions", "commit", "date", "command", "rows"} == set(result)
    assert result["versions"]["peer"] == "1"
    assert result["versions"]["python"]
    assert result["machine"]["cores"] >= 1
    assert result["rows"][0]["met"] is True, "a typed 'met' is not believed"


@pytest.mark.parametrize(
    ("topic", "rows", "message"),
    [
        ("weather", [Row("x", "s", 1, "lower")], "weather"),
        ("demo", [], "no rows"),
        ("demo", [{"name": "x", "unit": "s", "value": 1, "better": "lower", "colour": "red"}], "colour"),
        ("demo", [{"name": "x", "unit": "s", "value": 1, "better": "smaller"}], "smaller"),
    ],
)
def test_a_result_that_is_none_is_refused_with_the_reason(tmp_path, topic, rows, message):
    with pytest.raises(ValueError, match=message):
        write_result(topic, rows, command="x", folder=tmp_path)


def test_the_report_begins_with_what_is_short_of_its_goal(tmp_path):
    write_result(
        "demo",
        [Row("answer", "s", 20, "lower", goal=30), Row("cluster up", "s", 25, "lower", goal=15, note="cold | disk")],
        command="make bench-demo",
        folder=tmp_path,
    )
    text = report.render(read_results(tmp_path))
    first, rest = text.split("## The demo")
    assert "cluster up" in first
    assert "answer" not in first
    assert "≤ 15 s" in rest
    assert "cold \\| disk" in rest


def test_the_results_in_the_checkout_can_be_read():
    for result in read_results():
        for row in result["rows"]:
            known = {key: value for key, value in row.items() if key != "met"}
            assert Row(**known).met == row["met"], (result["topic"], row["name"])
