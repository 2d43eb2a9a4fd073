"""Stop strings against a slow reference that sees the whole text at once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_server.text.stops import StopMatch, StopMatcher

LETTERS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Letter by letter: the first place where any stop string is complete, the longest one there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500, deadline=None)
@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_every_way_to_cut_the_text_gives_the_references_result(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    sent, stop = "", None
    for begin, end in pairwise(edges):
        match = matcher.feed(text[begin:end])
        sent += match.text
        stop = match.stop
        if stop is not None:
            break
    else:
        sent += matcher.flush()
    assert (sent, stop) == reference(text, stops)


@settings(max_examples=300, deadline=None)
@given(text=LETTERS, stops=STOPS)
def test_nothing_is_held_but_what_begins_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen, sent = "", ""
    for letter in text:
        match = matcher.feed(letter)
        seen, sent = seen + letter, sent + match.text
        if match.stop is not None:
            return
        held = seen[len(sent) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_the_text_of_the_first_tokens_is_given_out_and_never_looked_at() -> None:
    matcher = StopMatcher(["ab", "b"], after=2)
    assert matcher.feed("ab") == StopMatch("ab")
    assert matcher.feed("") == StopMatch("")
    assert matcher.feed("a") == StopMatch("")
    assert matcher.feed("b") == StopMatch("", "ab")
