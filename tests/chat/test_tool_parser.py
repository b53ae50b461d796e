from __future__ import annotations

import json
import random
from typing import Any

import pytest

from radixrt.chat.tool_parser import CallArguments, CallBegin, Part, Text, ToolCallParser
from radixrt.constrained.tags.tool_formats import GENERIC_JSON, HERMES, LLAMA3, TOOL_FORMATS, ToolFormat
from radixrt.constrained.tags.tools import Tool

NAMES = ("get", "get_weather", "f.g-h")
TOOLS = [Tool(name, '{"type":"object"}') for name in NAMES]
CODE = "def f(x):\n\tif x < 1 and x != '<a>':\n\n        return \"é\\n\"\n"
ARGUMENTS = [
    "{}",
    '{"a":"}\\"]{","b":[{},[1]]}',
    json.dumps(
        {"code": CODE, "empty": "", "n": -1.5, "t": True, "none": None, "o": {"x": CODE, "y": []}},
        ensure_ascii=False,
        separators=(",", ":"),
    ),
    '{"a":"\\\\\\\\"}',
]


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
            text += part.text
        elif isinstance(part, CallBegin):
            assert part.index == len(calls)
            calls.append((part.name, ""))
        else:
            assert part.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return text, calls


def written(form: ToolFormat, calls: list[tuple[str, str]]) -> str:
    return form.write([(name, json.loads(arguments)) for name, arguments in calls])


def arguments_of(form: ToolFormat) -> list[str]:
    """The arguments, without empty arrays and objects where a format shows these as the empty string."""
    style = form.arguments
    if style.marks_kinds or not style.nests:
        return ARGUMENTS
    return [text if text == "{}" else text.replace("{}", '{"k":0}').replace("[]", "[0]") for text in ARGUMENTS]


CASES = [
    (form, text, calls)
    for form in TOOL_FORMATS.values()
    for text in (("", "Let me see", "a <b> <tool", "<<tool_cal") if form.in_text else ("",))
    for arguments in (arguments_of(form),)
    for calls in ([("get", arguments[0])], [("get_weather", arguments[1])], list(zip(NAMES, arguments, strict=False)))
    if form.several or len(calls) == 1
]


@pytest.mark.parametrize(("form", "text", "calls"), CASES)
def test_text_and_calls_however_they_are_cut(form: ToolFormat, text: str, calls: list[tuple[str, str]]) -> None:
    rng = random.Random(text + str(calls))
    for sizes in ([1], [2], [3], [5], [1000], *([rng.randint(1, 9) for _ in range(11)] for _ in range(20))):
        parser = ToolCallParser(form, TOOLS)
        parts = parse(parser, text + written(form, calls), sizes)
        assert told(parts) == (text, calls)
        assert parser.complete
        for _, arguments in calls:
            json.loads(arguments)


@pytest.mark.parametrize("form", TOOL_FORMATS.values())
def test_a_cut_answer_is_never_complete_and_shows_no_marker(form: ToolFormat) -> None:
    whole = written(form, [("get", arguments_of(form)[1]), ("get_weather", "{}")][: 2 if form.several else 1])
    first = len(written(form, [("get", ARGUMENTS[1])]))
    for length in range(len(whole)):
        parser = ToolCallParser(form, TOOLS)
        text, calls = told(parse(parser, whole[:length], [3]))
        ended = form.in_text and not form.begin and len(calls) == 1 and length >= first
        assert parser.complete == ended, whole[:length]
        assert whole[:length].endswith(text)  # a beginning that could have become anything is text
        assert len(text) < len(form.trigger)


@pytest.mark.parametrize("form", TOOL_FORMATS.values())
@pytest.mark.parametrize(
    "text", ["", "Hello", "{", "[", '[{"nam', "[1, 2]", '{"a": 1}', "<", "<tool_cal", "a\n\n", "\n", "<tool call>"]
)
def test_text_without_calls_is_all_text(form: ToolFormat, text: str) -> None:
    for size in (1, 2, 100):
        parser = ToolCallParser(form, TOOLS)
        assert told(parse(parser, text, [size])) == (text, [])
        assert not parser.complete


def test_text_is_given_out_at_once_where_no_call_can_begin() -> None:
    parser = ToolCallParser(HERMES, TOOLS)
    assert parser.feed("Let me see.\n") == [Text("Let me see.")]
    assert parser.feed("<tool") == []
    assert parser.feed("s> are") == [Text("\n<tools> are")]
    parser = ToolCallParser(GENERIC_JSON, TOOLS)
    assert parser.feed("[") == []
    assert parser.feed("1") == [Text("[1")]
    assert parser.feed("[{") == [Text("[{")]


def test_text_between_calls_and_after_them_is_free() -> None:
    call = written(HERMES, [("get", "{}")])
    parts = parse(ToolCallParser(HERMES, TOOLS), f"One.\n{call}\nTwo.\n\n{call}\n{call}\n", [1])
    assert told(parts) == ("One.\nTwo.", [("get", "{}")] * 3)
    assert told(parse(ToolCallParser(HERMES, TOOLS), f"{call}\n\nDone.", [5])) == ("Done.", [("get", "{}")])


@pytest.mark.parametrize("form", [form for form in TOOL_FORMATS.values() if not form.arguments.is_json])
def test_arguments_between_tags_are_streamed_as_json(form: ToolFormat) -> None:
    """Each fragment adds to a text that is the beginning of one JSON object."""
    schema = {
        "properties": {"code": {"type": "string"}, "n": {"type": "integer"}, "note": {"type": ["string", "null"]}}
    }
    tool = Tool("write", json.dumps(schema))
    arguments = {"code": CODE, "n": 12, "note": "nullable"}
    text = form.write([("write", arguments)])
    whole = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    parser, made = ToolCallParser(form, [tool]), ""
    late = 0
    for place, char in enumerate(text):
        made += "".join(part.text for part in parser.feed(char) if isinstance(part, CallArguments))
        assert whole.startswith(made)
        written_code = len(text[: place + 1].partition("code")[2])
        late = max(late, written_code - len(made)) if len(made) < whole.index('"n"') else late
    assert made == whole
    assert late < 80  # a long text is not held back until its tag is closed


def test_kinds_between_tags_without_marks_follow_the_schema() -> None:
    form = TOOL_FORMATS["glm_4_7"]
    values: list[tuple[object, str, object]] = [
        ({"type": "string"}, "12", "12"),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, "12", 12),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nul", "nul"),
        ({"type": ["string", "null"]}, '{"a": 1}', '{"a": 1}'),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "-1.5e3", -1.5e3),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "1.5.2", "1.5.2"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "", ""),
        ({"$ref": "#/$defs/flag"}, "true", True),
        ({"type": ["string", "array"]}, '["</arg_value>"]', ["</arg_value>"]),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({}, "text", "text"),
        ({}, "false", False),
    ]
    for schema, text, value in values:
        parameters = {"properties": {"x": schema}, "$defs": {"flag": {"type": "boolean"}}}
        parser = ToolCallParser(form, [Tool("f", json.dumps(parameters))])
        answer = f"<tool_call>f<arg_key>x</arg_key><arg_value>{text}</arg_value></tool_call>"
        for size in (1, 100):
            parser = ToolCallParser(form, [Tool("f", json.dumps(parameters))])
            _, [(_, arguments)] = told(parse(parser, answer, [size]))
            assert json.loads(arguments) == {"x": value}, (schema, text)


def test_newlines_before_a_call_belong_to_neither() -> None:
    parser = ToolCallParser(HERMES, TOOLS)
    text, calls = told(parse(parser, "Well.\n\n" + written(HERMES, [("get", "{}")]), [1]))
    assert (text, calls) == ("Well.", [("get", "{}")])


def test_first_delta_of_a_call_comes_with_its_name_and_then_fragments() -> None:
    parser = ToolCallParser(HERMES, TOOLS)
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
        parser = ToolCallParser(LLAMA3, TOOLS)
        text = '<|python_tag|>{"name": "get", "parameters": {"a":{}}}'
        assert told(parse(parser, text, [size])) == ("", [("get", '{"a":{}}')])
        assert parser.complete
        assert told(parse(ToolCallParser(LLAMA3, TOOLS), text[:20], [size])) == ("", [])


def test_unknown_name_is_no_call() -> None:
    text = '[{"name": "other", "arguments": {}}]'
    parser = ToolCallParser(GENERIC_JSON, TOOLS)
    assert told(parse(parser, text, [4])) == (text, [])
    assert not parser.complete


NESTED = {
    "type": "object",
    "$defs": {"node": {"type": "object", "properties": {"code": {"type": "string"}, "of": {"$ref": "#/$defs/nodes"}}},
              "nodes": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "properties": {
        "root": {"$ref": "#/$defs/node"},
        "zips": {"type": "array", "items": {"type": "string"}},
        "any": {},
        "either": {"anyOf": [{"type": "array", "items": {"type": "null"}}, {"type": "object"}]},
        "map": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
    },
}  # fmt: skip
NESTED_ARGUMENTS = [
    {
        "root": {"code": CODE, "of": [{"code": "", "of": []}, {"code": "null", "of": [{}]}]},
        "zips": ["018956", "12", ""],
    },
    {"any": {"a": [1, "b", True, None, {"c": CODE}]}, "either": [], "map": {}},
    {"any": 7, "either": {"k": [None, "x"]}, "map": {"a": [], "b": [1, 2.5]}, "zips": []},
    {"any": "", "either": [None, None]},
]


@pytest.mark.parametrize("form", [form for form in TOOL_FORMATS.values() if form.arguments.nests])
@pytest.mark.parametrize("arguments", NESTED_ARGUMENTS)
def test_tags_in_tags_are_read_as_the_same_value(form: ToolFormat, arguments: dict[str, Any]) -> None:
    text = form.write([("get", arguments)])
    for size in range(1, 40):
        parser = ToolCallParser(form, [Tool("get", json.dumps(NESTED))])
        said, calls = told(parse(parser, text, [size]))
        assert (said, [name for name, _ in calls], parser.complete) == ("", ["get"], True)
        assert json.loads(calls[0][1]) == arguments


def test_the_closing_tag_of_an_undeclared_member_is_not_compared() -> None:
    form = TOOL_FORMATS["minimax_m3"]
    text = form.write([("get", {"map": {"a": [1]}})]).replace("</a>", "</b>")
    assert told(parse(ToolCallParser(form, [Tool("get", json.dumps(NESTED))]), text, [3]))[1] == [
        ("get", '{"map":{"a":[1]}}')
    ]
