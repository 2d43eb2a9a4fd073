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


def test_the_time_of_a_step_is_told_from_recorded_rows_beside_the_limits_of_the_same_run():
    from benchmarks import step_time

    note = "kernel cache warm; this run: copy 4.00 TB/s, bf16 8192³ 800 TFLOP/s; vLLM's run: 4.28, 737"
    rows = [
        {"name": "start to Ready, dummy weights", "value": 5.0, "note": note},
        {
            "name": "kernels of a step of 64",
            "value": 6.0,
            "note": "products 4.500 ms (75 %), attention 1.000 ms (17 %)",
        },
        {"name": "decode step of 64: device", "value": 6.1, "note": "plan 1 µs"},
        {"name": "decode step of 64: host", "value": 0.2, "note": ""},
    ]
    result = {"rows": rows, "date": "2026-01-02T00:00:00", "commit": "abc"}
    text = step_time.section(result)
    assert 7.4e9 < step_time.PRODUCTS < 7.6e9
    weights = 2 * step_time.PRODUCTS / 4e9
    # 64 requests of 150 cached tokens, 128 KiB each.
    reading = 131072 * 64 * 150 / 4e9
    cells = [f"{value:.2f}" for value in (weights, 2e3 * 64 * step_time.PRODUCTS / 8e14, 4.5, reading, 1.0, 0.5, 6.0)]
    assert f"| 64 | {' | '.join(cells)} | {100 * (weights + reading) / 6:.0f} % |" in text
    assert "64 at once: device 6.10 ms, host 0.20 ms (plan 1 µs)" in text
    assert step_time.section({**result, "rows": rows[1:]}) == "", "limits without a measured ceiling"
