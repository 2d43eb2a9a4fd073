"""The example of docs/kernels.md runs as it stands."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"


def test_the_example_in_the_kernels_page_runs_and_attends():
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(compile(program, str(PAGE), "exec"), names)
    assert names["attention"].backend == "CPU"
    # The prompt's first token sees itself alone, so its output is its own value, for every query head of the group.
    own_value = names["kv"][2, 1, :, 0].repeat_interleave(3, dim=0)
    torch.testing.assert_close(names["out"][1], own_value)
