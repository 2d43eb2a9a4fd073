"""The examples of docs/kernels.md run as they stand."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"


def run_example(number):
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[number]
    names = {}
    exec(compile(program, str(PAGE), "exec"), names)
    return names


def test_the_example_in_the_kernels_page_runs_and_attends():
    names = run_example(0)
    assert names["attention"].backend == "CPU"
    # The prompt's first token sees itself alone, so its output is its own value, for every query head of the group.
    own_value = names["kv"][2, 1, :, 0].repeat_interleave(3, dim=0)
    torch.testing.assert_close(names["out"][1], own_value)


def test_the_example_of_shared_prefixes_names_and_finds_groups():
    names = run_example(2)
    assert names["groups"].count == 2
    assert (names["found"].starts.tolist(), names["found"].lengths.tolist()) == ([0, 2], [32])
