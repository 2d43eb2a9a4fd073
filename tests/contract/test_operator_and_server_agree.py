"""What the operator writes into pods is what the server reads: constants of both sides, and the server's own help."""

from __future__ import annotations

import subprocess
import sys

import pytest
from octavo_operator.api.engine_section import BLOCK_SIZES_TOKENS, CacheDType, DType, Quantization
from octavo_operator.api.model_section import ModelFormat
from octavo_operator.plan import server_contract as ours
from octavo_server import config
from octavo_server import contract as theirs


def help_text(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "octavo_server", command, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("command", "flags"), [("serve", ours.SERVE_FLAGS), ("fetch", ours.FETCH_FLAGS)])
def test_the_server_knows_every_flag_that_the_operator_sets(command, flags):
    text = help_text(command)
    assert [flag for flag in flags if flag not in text] == []


def test_both_sides_allow_the_same_block_sizes():
    assert BLOCK_SIZES_TOKENS == config.BLOCK_SIZES_TOKENS


def test_flags_variables_paths_and_reasons_are_the_same_on_both_sides():
    assert set(ours.SERVE_FLAGS) == set(theirs.OPERATOR_FLAGS)
    assert set(ours.CHECK_REASONS) == {reason.value for reason in theirs.CheckReason}
    assert (ours.PROGRAM, ours.PORT) == (theirs.PROGRAM, theirs.HTTP_PORT)
    paths = (ours.HEALTH_PATH, ours.READY_PATH, ours.METRICS_PATH)
    assert paths == (theirs.HEALTH_PATH, theirs.READY_PATH, theirs.METRICS_PATH)
    variables = (ours.API_KEY_ENV, ours.HUB_TOKEN_ENV, ours.TERMINATION_ENV)
    assert variables == (theirs.API_KEY_VARIABLE, theirs.HUB_TOKEN_VARIABLE, theirs.TERMINATION_LOG_VARIABLE)
    assert ours.EXIT_REFUSED == theirs.ExitCode.REFUSED


@pytest.mark.parametrize(
    ("resource", "server"),
    [
        (ModelFormat, theirs.FORMATS),
        (DType, theirs.DTYPES),
        (CacheDType, theirs.KV_DTYPES),
        (Quantization, theirs.QUANTIZATIONS),
    ],
)
def test_every_enum_of_the_resource_is_one_of_the_server(resource, server):
    assert {item.value for item in resource} == set(server)
