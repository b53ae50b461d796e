"""Stop strings in a part of the text, against a search that sees the whole text at once."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.chat.harmony import FREE_TEXT
from radixrt.constraint import StructuredOptions
from radixrt.messages.parts import Finish
from radixrt.sampling_params import NO_FREE_TEXT, StopScope
from radixrt.tokenizer.stop_scope import ScopedMatcher
from radixrt.tokenizer.stop_strings import StopMatcher
from tests.tokenizer.test_stop_strings import slow
from tests.tokenizer.test_worker_outputs import whole
from tests.tokenizer.worker_bench import Bench

relaxed = settings(max_examples=400, deadline=None)
letters = st.text(alphabet="ab<c", max_size=24)
stop_lists = st.lists(st.text(alphabet="ab<", min_size=1, max_size=3), min_size=1, max_size=3)
scopes = st.sampled_from([
    None, StopScope(until=("<c",)), StopScope(until=("<c", "a<"), at_start=True), StopScope(until=("ab<a",)),
    NO_FREE_TEXT, StopScope(until=("<c", "ca"), after=("<cb", "ab")), StopScope(until=("c",), after=("ca",)),
])  # fmt: skip


def expected(text: str, stops: list[str], marker: str | None, scope: StopScope | None) -> tuple[str, str | None]:
    head = ""
    if marker is not None:
        head, found, text = text.partition(marker)
        if not found:
            return head, None
        head += marker
    free, rest = text, ""
    if scope is not None and scope.at_start:
        if any(text.startswith(begun) for begun in scope.until):
            free, rest = "", text
    elif scope is not None and scope.after:
        return in_turns(head, text, stops, scope)
    elif scope is not None:
        cut = min((at for begun in scope.until if (at := text.find(begun)) >= 0), default=len(text))
        free, rest = text[:cut], text[cut:]
    kept, matched = slow(free, stops, include=False)
    return head + kept + ("" if matched else rest), matched


def in_turns(head: str, text: str, stops: list[str], scope: StopScope) -> tuple[str, str | None]:
    """Search each piece of free text by itself."""
    while True:
        cut = min((at for begun in scope.until if (at := text.find(begun)) >= 0), default=len(text))
        kept, matched = slow(text[:cut], stops, include=False)
        if matched:
            return head + kept, matched
        head, text = head + text[:cut], text[cut:]
        end = min((at + len(begun) for begun in scope.after if (at := text.find(begun)) >= 0), default=None)
        if end is None:
            return head + text, None
        head, text = head + text[:end], text[end:]


def pushed(matcher: ScopedMatcher, text: str, sizes: list[int]) -> str:
    """Push the text in parts of these sizes, over and over, until it ends or a stop string is found; return
    the matcher's output."""
    out, at = "", 0
    for size in itertools.cycle(sizes):
        if at >= len(text) or matcher.matched:
            break
        out += matcher.push(text[at : at + size])
        at += size
    return out + matcher.flush()


@given(letters, stop_lists, st.sampled_from(["b<", "aa"]), st.lists(st.integers(1, 5), min_size=1))
@relaxed
def test_reasoning_that_the_model_begins_itself(text: str, stops: list[str], start: str, sizes: list[int]) -> None:
    text = text.replace("c", " ")
    scope = StopScope(reasoning_end="<b", reasoning_start=start)
    matcher = ScopedMatcher(StopMatcher(stops), "<b", None, scope)
    out = pushed(matcher, text, sizes)
    blank, begun = text[: len(text) - len(text.lstrip())], text.lstrip()
    if begun.startswith(start):
        kept, matched = expected(begun.removeprefix(start), stops, "<b", None)
        assert (out, matcher.matched) == (blank + start + kept, matched)
    else:
        assert (out, matcher.matched) == expected(text, stops, None, None)


@given(letters, stop_lists, scopes, st.sampled_from([None, "b<", "aa"]), st.lists(st.integers(1, 5), min_size=1))
@relaxed
def test_agrees_with_a_search_of_the_whole_text(
    text: str, stops: list[str], scope: StopScope | None, marker: str | None, sizes: list[int]
) -> None:
    matcher = ScopedMatcher(StopMatcher(stops), marker, None, scope)
    out = pushed(matcher, text, sizes)
    assert (out, matcher.matched) == expected(text, stops, marker, scope)


def ended(bench: Bench, text: str, **options: Any) -> tuple[str, str | int | None]:
    output = whole(bench, bench.tokenizer.encode(text), stream=True, finish=Finish("length"), **options)
    assert output.finish is not None
    return output.text, output.finish.matched


def test_requests_with_calls_and_json(bench: Bench) -> None:
    scope = StopScope(until=("<call>",))
    assert ended(bench, "one END <call>", stop=("END",), stop_scope=scope, structural_tag="{}") == ("one ", "END")
    for fields in ({"stop_scope": scope, "structural_tag": "{}"}, {"json_schema": "{}"}, {"choices": ("a",)}):
        assert ended(bench, "<call>END", stop=("END",), **fields) == ("<call>END", None)


def test_the_reasoning_is_not_searched(bench: Bench) -> None:
    structured = StructuredOptions(reasoning_end="<think>")  # an added token of the tokenizer, which is not special
    text = "a END b <think> c END d"
    assert ended(bench, text, stop=("END",), regex=".*", structured=structured) == ("a END b <think> c ", "END")
    structured = StructuredOptions(reasoning_end="b")
    assert ended(bench, text, stop=("END",), regex=".*", structured=structured) == ("a END b <think> c ", "END")


def test_reasoning_without_a_constraint_is_not_searched(bench: Bench) -> None:
    """By a marker that is a token of its own, and by one that is not; begun by the prompt, or by the model."""
    for end in ("<think>", "/t"):
        text = f"a END b {end} c END d"
        found = ended(bench, text, stop=("END",), stop_scope=StopScope(reasoning_end=end))
        assert found == (f"a END b {end} c ", "END")
        scope = StopScope(reasoning_end=end, reasoning_start="a E")
        assert ended(bench, f" {text}", stop=("END",), stop_scope=scope) == (f" a END b {end} c ", "END")
        scope = StopScope(reasoning_end=end, reasoning_start="b")
        assert ended(bench, text, stop=("END",), stop_scope=scope) == ("a ", "END")
    assert ended(bench, "a END b", stop=("END",), stop_scope=StopScope(reasoning_end="</t")) == ("a END b", None)


def test_channels_for_the_user_are_searched_and_the_reasoning_is_not(bench: Bench) -> None:
    thought = "<|channel|>analysis<|message|>a END b<|end|><|start|>assistant"
    for header in ("final", "commentary", "final <|constrain|>json"):
        begin = f"{thought}<|channel|>{header}<|message|>"
        found = ended(bench, f"{begin}c END d<|return|>", stop=("END",), stop_scope=FREE_TEXT)
        assert found == (f"{begin}c ", "END")
    call = f"{thought}<|channel|>commentary to=x<|message|>END"
    assert ended(bench, call, stop=("END", "assistant"), stop_scope=FREE_TEXT) == (call, None)
    assert ended(bench, "plain END text", stop=("END",), stop_scope=FREE_TEXT) == ("plain ", "END")
