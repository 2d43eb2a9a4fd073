"""The two phases of `make test` close with one true summary."""

from __future__ import annotations

import pytest

from scripts.run_tests import COUNT, SUMMARY, counts_of, exit_code, run_phase, summary_line


def test_counts_of_both_phases_add_up_in_the_last_line():
    first = counts_of("2 failed, 10 passed, 5 deselected, 1 warning")
    second = counts_of("3 passed, 1 error, 9 deselected")
    line = summary_line(first + second, 12.5)
    assert line.strip("= ") == "2 failed, 13 passed, 1 warning, 1 error in 12.50s"


def test_the_last_line_has_the_form_of_pytests_own():
    match = SUMMARY.match(summary_line(counts_of("3 passed"), 61.2))
    assert match is not None
    assert COUNT.findall(match["counts"]) == [("3", "passed")]


@pytest.mark.parametrize(
    ("codes", "narrowed", "expected"),
    [
        ([0, 0], False, 0),
        ([1, 0], False, 1),
        ([0, 1], False, 1),
        ([0, 5], False, 1),
        ([0, 5], True, 0),
        ([5, 5], True, 5),
    ],
)
def test_the_exit_code_is_zero_only_when_both_phases_passed(codes, narrowed, expected):
    assert exit_code(codes, narrowed=narrowed) == expected


def test_a_failing_phase_is_counted_and_its_exit_code_kept(tmp_path):
    (tmp_path / "test_one.py").write_text("def test_a(): assert False\ndef test_b(): pass\n")
    code, counts = run_phase(["-c", "/dev/null", "-p", "no:cacheprovider", str(tmp_path)], {"COLUMNS": "80"})
    assert code == 1
    assert (counts["failed"], counts["passed"]) == (1, 1)
