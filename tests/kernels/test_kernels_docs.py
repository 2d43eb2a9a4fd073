"""The examples of docs/kernels.md and of the package's README run as they stand."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "kernels.md"


def run_example(number, page=PAGE):
    program = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[number]
    names = {}
    exec(compile(program, str(page), "exec"), names)
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


def test_the_example_in_the_readme_attends_to_what_it_appended():
    names = run_example(0, ROOT / "kernels" / "README.md")
    # The prompt's first token sees itself alone, so its output is its own value, for every query head of the group.
    torch.testing.assert_close(names["out"][0], names["v"][0].repeat_interleave(4, dim=0))
    assert names["attention"].backend in ("CPU", "Triton")
