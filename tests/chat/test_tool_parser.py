from __future__ import annotations

import json
import random

import pytest

from radixrt.chat.tool_parser import CallArguments, CallBegin, Part, Text, ToolCallParser
from radixrt.constrained.tags.tools import GENERIC_JSON, HERMES, LLAMA3, TOOL_FORMATS, ToolFormat

NAMES = ("get", "get_weather", "f.g-h")
ARGUMENTS = ["{}", '{"a":"}\\"]{","b":[{},[1]]}', '{"é\\\\":{"<tool_call>":"</tool_call>"}}', '{"a": "\\\\\\\\"}']


def parse(parser: ToolCallParser, text: str, sizes: list[int]) -> list[Part]:
    parts: list[Part] = []
    at = 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        parts += parser.feed(text[at : at + size])
        at += size
    return parts + parser.finish()


def told(parts: list[Part]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the calls with their whole arguments; checks that fragments come in order."""
    text, calls = "", []
    for part in parts:
        if isinstance(part, Text):
            assert part.text
            assert not calls
            text += part.text
        elif isinstance(part, CallBegin):
            assert part.index == len(calls)
            calls.append((part.name, ""))
        else:
            assert part.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return text, calls


def written(form: ToolFormat, calls: list[tuple[str, str]]) -> str:
    texts = [form.head(name) + arguments + form.tail for name, arguments in calls]
    return form.begin + form.separator.join(texts) + form.end


CASES = [
    (form, text, calls)
    for form in TOOL_FORMATS.values()
    for text in (("", "Let me see", "a <b> <tool", "<<tool_cal") if form.in_text else ("",))
    for calls in ([("get", ARGUMENTS[0])], [("get_weather", ARGUMENTS[1])], list(zip(NAMES, ARGUMENTS, strict=False)))
    if form.several or len(calls) == 1
]


@pytest.mark.parametrize(("form", "text", "calls"), CASES)
def test_text_and_calls_however_they_are_cut(form: ToolFormat, text: str, calls: list[tuple[str, str]]) -> None:
    rng = random.Random(text + str(calls))
    for sizes in ([1], [2], [3], [5], [1000], *([rng.randint(1, 9) for _ in range(11)] for _ in range(20))):
        parser = ToolCallParser(form, NAMES)
        parts = parse(parser, text + written(form, calls), sizes)
        assert told(parts) == (text, calls)
        assert parser.complete
        for _, arguments in calls:
            json.loads(arguments)


@pytest.mark.parametrize("form", TOOL_FORMATS.values())
def test_a_cut_answer_is_never_complete_and_shows_no_marker(form: ToolFormat) -> None:
    whole = written(form, [("get", ARGUMENTS[1]), ("get_weather", "{}")][: 2 if form.several else 1])
    for length in range(len(whole)):
        parser = ToolCallParser(form, NAMES)
        text, calls = told(parse(parser, whole[:length], [3]))
        ended = form is HERMES and whole[:length].count("</tool_call>") == len(calls) == 1
        assert parser.complete == ended, whole[:length]
        assert text in ("", whole[:length])  # a beginning that could have become anything is text
        assert len(text) < len(form.trigger)


@pytest.mark.parametrize("form", TOOL_FORMATS.values())
@pytest.mark.parametrize(
    "text", ["", "Hello", "{", "[", '[{"nam', "[1, 2]", '{"a": 1}', "<", "<tool_cal", "a\n\n", "\n", "<tool call>"]
)
def test_text_without_calls_is_all_text(form: ToolFormat, text: str) -> None:
    for size in (1, 2, 100):
        parser = ToolCallParser(form, NAMES)
        assert told(parse(parser, text, [size])) == (text, [])
        assert not parser.complete


def test_text_is_given_out_at_once_where_no_call_can_begin() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.feed("Let me see.\n") == [Text("Let me see.")]
    assert parser.feed("<tool") == []
    assert parser.feed("s> are") == [Text("\n<tools> are")]
    parser = ToolCallParser(GENERIC_JSON, NAMES)
    assert parser.feed("[") == []
    assert parser.feed("1") == [Text("[1")]
    assert parser.feed("[{") == [Text("[{")]


def test_newlines_before_a_call_belong_to_neither() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    text, calls = told(parse(parser, "Well.\n\n" + written(HERMES, [("get", "{}")]), [1]))
    assert (text, calls) == ("Well.", [("get", "{}")])


def test_first_delta_of_a_call_comes_with_its_name_and_then_fragments() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.feed('<tool_call>\n{"name": "get') == []
    assert parser.feed('_weather", "arguments": {"a"') == [CallBegin(0, "get_weather"), CallArguments(0, '{"a"')]
    assert parser.feed(":1}}\n</tool") == [CallArguments(0, ":1}")]
    assert not parser.complete
    assert parser.feed("_call>") == []
    assert parser.complete
    assert parser.feed('\n<tool_call>\n{"name": "get", "arguments": {') == [CallBegin(1, "get"), CallArguments(1, "{")]
    assert not parser.complete


def test_python_tag_is_no_text() -> None:
    for size in (1, 4, 100):
        parser = ToolCallParser(LLAMA3, NAMES)
        text = '<|python_tag|>{"name": "get", "parameters": {"a":{}}}'
        assert told(parse(parser, text, [size])) == ("", [("get", '{"a":{}}')])
        assert parser.complete
        assert told(parse(ToolCallParser(LLAMA3, NAMES), text[:20], [size])) == ("", [])


def test_unknown_name_is_no_call() -> None:
    text = '[{"name": "other", "arguments": {}}]'
    parser = ToolCallParser(GENERIC_JSON, NAMES)
    assert told(parse(parser, text, [4])) == (text, [])
    assert not parser.complete
