"""The constraint of tool calls: what it lets through, in each format, and that the parser reads all of it."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from radixrt.chat.tool_parser import CallArguments, CallBegin, Text, ToolCallParser
from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constrained.tags.tool_formats import GENERIC_JSON, HERMES, LLAMA3, TOOL_FORMATS, ToolFormat
from radixrt.constrained.tags.tools import Tool, tools_constraint
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint, StructuredOptions
from tests.constrained.vocabularies import text_of

SCHEMAS: dict[str, dict[str, Any]] = {
    "get": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "get_time": {"type": "object", "properties": {"zone": {"enum": ["CET", "UTC"]}}, "required": ["zone"]},
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [Tool(name, json.dumps(schema)) for name, schema in SCHEMAS.items()]
CALLS = [("get", '{"city":"Rome \\"x\\""}'), ("get_time", '{"zone":"CET"}'), ("stop", "{}")]
FORMATS = list(TOOL_FORMATS.values())


def recognizer(form: ToolFormat, tools: list[Tool] = TOOLS, **options: Any) -> Recognizer:
    options = {"required": False, "parallel": True, **options}
    productions, *_ = read_structural_tag(tools_constraint(tools, form, **options), StructuredOptions())
    productions.validate()
    return Recognizer(productions.prune(), {text: i for i, text in enumerate(form.markers)})


def accepts(judge: Recognizer, text: str) -> bool:
    state = judge.advance(judge.start(), text)
    return state is not None and judge.is_complete(state)


def written(form: ToolFormat, calls: list[tuple[str, str]]) -> str:
    return form.write([(name, json.loads(arguments)) for name, arguments in calls])


@pytest.mark.parametrize("form", FORMATS)
def test_auto_is_text_or_calls(form: ToolFormat) -> None:
    judge = recognizer(form)
    for call in CALLS:
        assert accepts(judge, written(form, [call]))
    assert accepts(judge, written(form, CALLS)) == form.several
    for text in ("", "Hello", '{"a": 1}', "[1]", "é\n<", '{"names": 1}'):
        assert accepts(judge, text), text
    call = written(form, CALLS[:1])
    assert accepts(judge, "Let me see.\n" + call)  # a call, or, where text has no calls in it, just text
    assert accepts(judge, f"{call}\nAnd\n{call}\nDone.") == form.in_text
    for bad in (
        call + (form.trigger if form.in_text else "x"),
        call[:-1],
        written(form, [("unknown", "{}")]),
        written(form, [("get", "{}")]),
        written(form, [("get_time", '{"zone":"PST"}')]),
        written(form, [("stop", '{"a":1}')]),
    ):
        assert not accepts(judge, bad), bad


@pytest.mark.parametrize("form", FORMATS)
def test_required_is_calls_and_nothing_else(form: ToolFormat) -> None:
    judge = recognizer(form, required=True)
    assert accepts(judge, written(form, CALLS[:1]))
    assert accepts(judge, written(form, CALLS)) == form.several
    for text in ("", "Hello", "x" + written(form, CALLS[:1])):
        assert not accepts(judge, text)


@pytest.mark.parametrize("form", FORMATS)
def test_not_parallel_is_one_call_and_then_the_end(form: ToolFormat) -> None:
    for required in (True, False):
        judge = recognizer(form, required=required, parallel=False)
        state = judge.advance(judge.start(), written(form, CALLS[:1]))
        assert state is not None
        assert judge.must_end(state)
        assert not accepts(judge, written(form, CALLS[:2]))


@pytest.mark.parametrize("form", FORMATS)
def test_with_a_response_schema_it_is_that_or_calls(form: ToolFormat) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    judge = recognizer(form, response={"type": "json_schema", "json_schema": schema, "origin": "response_format"})
    for text in ('{"name":"get"}', '{"name":"x","parameters":{}}', *(written(form, [call]) for call in CALLS)):
        assert accepts(judge, text), text
    for text in ("", "Hello", '{"name":1}', "x" + written(form, CALLS[:1]), written(form, [("get", "{}")])):
        assert not accepts(judge, text), text


def test_markers_that_are_tokens_come_as_tokens() -> None:
    for required in (True, False):
        judge = recognizer(HERMES, required=required, tokens=HERMES.markers)
        assert not accepts(judge, written(HERMES, CALLS[:1]))
        state = judge.start()
        for i, (name, arguments) in enumerate(CALLS):
            if i:
                state = judge.advance(state, "\n")
                assert state is not None
            for part in ("<tool_call>", f'\n{{"name": "{name}", "arguments": {arguments}}}\n', "</tool_call>"):
                step = judge.advance_special if part in HERMES.markers else judge.advance
                state = step(state, part)
                assert state is not None, part
            assert judge.is_complete(state)
    judge = recognizer(LLAMA3, tokens=LLAMA3.markers)
    tagged = judge.advance_special(judge.start(), "<|python_tag|>")
    assert tagged is not None
    called = judge.advance(tagged, written(LLAMA3, CALLS[:1]))
    assert called is not None
    assert judge.must_end(called)
    assert judge.advance(tagged, "Hello") is None


@pytest.mark.parametrize("form", FORMATS)
def test_strict_closes_the_objects_of_that_tool_alone(form: ToolFormat) -> None:
    schema = '{"type":"object","properties":{"a":{"type":"integer"}}}'
    judge = recognizer(form, [Tool("open", schema), Tool("closed", schema, strict=True)], required=True)
    assert accepts(judge, written(form, [("open", '{"a":1,"b":2}')]))
    assert not accepts(judge, written(form, [("closed", '{"a":1,"b":2}')]))
    assert accepts(judge, written(form, [("closed", '{"a":1}')]))


@pytest.mark.parametrize("form", FORMATS)
def test_a_schema_that_cannot_be_closed_is_left_open_where_closing_is_only_preferred(form: ToolFormat) -> None:
    closable = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
    needy = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["b"]}'
    tools = [Tool("closable", closable, "preferred"), Tool("needy", needy, "preferred", "tools/1/parameters")]
    source = tools_constraint(tools, form, required=True, parallel=True)
    productions, ignored, _ = read_structural_tag(source, StructuredOptions())
    judge = Recognizer(productions.prune(), {text: i for i, text in enumerate(form.markers)})
    assert accepts(judge, written(form, [("closable", '{"a":1}')]))
    assert not accepts(judge, written(form, [("closable", '{"a":1,"b":2}')]))
    assert accepts(judge, written(form, [("needy", '{"a":1,"b":2}')]))
    assert ignored == ["/1/parameters: closed"]


def token_ids(row: Bitmask) -> list[int]:
    ids: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return ids


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("required", [True, False])
def test_whatever_is_sampled_is_valid_and_is_read(
    form: ToolFormat, required: bool, vocabulary: Vocabulary, backends: Backends
) -> None:
    """Random tokens under the mask, with a budget: every answer is text or whole calls with valid arguments."""
    source = tools_constraint(TOOLS, form, required=required, parallel=True)
    constraint = Constraint(kind="structural_tag", source=source)
    compiled = compile_constraint(constraint, backends)
    template = load(compiled, backends)
    endings = {t for t, data in enumerate(vocabulary.table) if data in (b'"', b"}", b"<", b">", b"]")}
    ending_mask = vocabulary.mask_of(endings.union(vocabulary.eos_ids))
    called = 0
    for seed in range(8):
        rng = random.Random(seed)
        grammar = template.new()
        tokens: list[int] = []
        budget = max(rng.randint(40, 120), compiled.min_tokens)
        if not required and not form.in_text and rng.random() < 0.7:
            for token in vocabulary.encode(form.trigger):
                assert grammar.accept(token)
                tokens.append(token)
        while not grammar.is_terminated():
            row = grammar.mask()
            token = rng.choice(token_ids(row))
            short = token_ids(row & ending_mask)
            if short and rng.random() < 0.3:
                token = rng.choice(short)
            if not grammar.fits(token, budget - len(tokens) - 1):
                tokens += grammar.closing()
                break
            assert grammar.accept(token)
            if token not in vocabulary.eos_ids:
                tokens.append(token)
        text = text_of(vocabulary, tokens)
        assert len(tokens) <= budget
        parser = ToolCallParser(form, TOOLS)
        parts = [*parser.feed(text), *parser.finish()]
        names = [part.name for part in parts if isinstance(part, CallBegin)]
        assert parser.complete == bool(names)
        assert bool(names) or not required
        called += len(names)
        for i, name in enumerate(names):
            arguments = "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == i)
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        said = "".join(part.text for part in parts if isinstance(part, Text))
        assert form.trigger not in said or not form.in_text
    assert called or not required


def test_generic_calls_are_one_json_array() -> None:
    assert json.loads(written(GENERIC_JSON, CALLS))[1] == {"name": "get_time", "arguments": {"zone": "CET"}}
