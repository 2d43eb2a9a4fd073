"""The start gate on a bad connection: single questions are asked again, a refusal of the credentials is not."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from octavo_operator.cluster.client import ApiError
from octavo_operator.cluster.gate import TRIES, missing_rights, wanted_rights
from octavo_operator.settings import LeaseSettings, Settings

SETTINGS = Settings(lease=LeaseSettings())


class Questions:
    """Answers each question after so many failures."""

    def __init__(self, failures: int, code: int = 0) -> None:
        self.asked: Counter[str] = Counter()
        self._failures, self._code = failures, code

    async def request(self, method, path, body):
        text = json.dumps(body, sort_keys=True)
        self.asked[text] += 1
        if self.asked[text] <= self._failures:
            raise ApiError(self._code, "Lost", "no answer")
        return {"status": {"allowed": "secrets" not in text}}


async def test_each_right_is_asked_again_until_it_is_answered():
    questions = Questions(TRIES - 1)
    assert await missing_rights(questions, SETTINGS) == []
    assert len(questions.asked) == len(wanted_rights(SETTINGS))
    assert set(questions.asked.values()) == {TRIES}


async def test_a_connection_that_stays_bad_is_an_error():
    with pytest.raises(ApiError):
        await missing_rights(Questions(TRIES), SETTINGS)


async def test_credentials_that_are_refused_are_not_tried_again():
    questions = Questions(TRIES, 401)
    with pytest.raises(ApiError):
        await missing_rights(questions, SETTINGS)
    assert set(questions.asked.values()) == {1}
