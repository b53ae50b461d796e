"""The stop matcher against a slow one that looks at the whole text."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.tokenizer.stop_strings import StopMatcher

relaxed = settings(max_examples=300, deadline=None)
few_letters = st.text(alphabet="ab", max_size=24)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4)


def slow(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first (the longest of those), and that stop string."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            stop = max(done, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(few_letters, stop_lists, st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans())
@relaxed
def test_agrees_with_a_search_of_the_whole_text(text: str, stops: list[str], sizes: list[int], include: bool) -> None:
    matcher = StopMatcher(stops, include=include)
    out, at = "", 0
    for size in itertools.cycle(sizes):
        if at >= len(text) or matcher.matched:
            break
        out += matcher.push(text[at : at + size])
        at += size
        if matcher.matched is None:
            # Exactly what a stop string could still claim is held back.
            seen = text[:at]
            could = (n for n in range(len(seen), 0, -1) if any(s.startswith(seen[-n:]) and len(s) > n for s in stops))
            assert out == seen[: len(seen) - next(could, 0)]
    out += matcher.flush()
    assert (out, matcher.matched) == slow(text, stops, include)


def test_nothing_is_let_out_after_a_match() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("text EN") == "text "
    assert matcher.push("D more") == ""
    assert matcher.matched == "END"
    assert matcher.push("and more") == matcher.flush() == ""


def test_the_stop_string_is_kept_on_request() -> None:
    matcher = StopMatcher(["END"], include=True)
    assert matcher.push("text E") + matcher.push("ND more") == "text END"


def test_what_was_held_back_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["\n\n", "###"])
    assert matcher.push("a\n") == "a"
    assert matcher.push("b##") == "\nb"
    assert matcher.flush() == "##"
    assert matcher.matched is None


@pytest.mark.parametrize("letter", ["a", "b"])
def test_many_long_stop_strings_stay_linear(letter: str) -> None:
    # The worst case: every stop string is under way at every character, and each breaks off at its end.
    stops = ["a" * (1023 - i) + "b" * (i + 1) for i in range(64)]
    text = ("a" * 1023 + letter) * 3
    lines = 0

    def count_lines(frame: FrameType, event: str, arg: object) -> Callable[..., object]:
        nonlocal lines
        lines += event == "line"
        return count_lines

    sys.settrace(count_lines)
    try:
        matcher = StopMatcher([stop[:-1] + "c" for stop in stops])
        out = "".join(matcher.push(text[at : at + 4]) for at in range(0, len(text), 4)) + matcher.flush()
    finally:
        sys.settrace(None)
    assert out == text
    assert lines < 20 * len(stops) * len(text)  # a quadratic matcher executes a thousand for each of them
