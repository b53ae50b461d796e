"""Constraints through `Engine`: where they may be said, what comes back as `parsed`, refusals that name the field."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Literal

import jsonschema
import pydantic
import pytest
import typing_extensions

from radixrt.constraint import as_structured_options
from radixrt.engine.engine import Completion, Engine
from radixrt.errors import RequestError
from radixrt.sampling_params import SamplingParams, StructuredOptions
from radixrt.tasks.generate import jobs, streamed_job
from tests.engine.helpers import TEXT, many, one, refusal

SHORT: dict[str, Any] = {"max_tokens": 60, "seed": 1}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}
BACK_REFERENCE = {"type": "string", "pattern": r"^(a+)\1$"}
EBNF = 'root ::= "yes" | "no"'


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Answer(pydantic.BaseModel):
    ok: bool
    size: Size


@dataclasses.dataclass
class Pair:
    left: bool
    right: Literal["a", "b"]


class Record(typing_extensions.TypedDict):
    ok: bool


# --- arguments, without an engine ---


def argument_error(params: Any, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        jobs([TEXT], params, options)
    return raised.value


def test_a_constraint_of_the_call_reaches_every_request() -> None:
    made = list(jobs(["a", "b"], [{"n": 2}, None], {"json_schema": Answer, "structured": {"whitespace": 2}}))
    assert len(made) == 3
    for job in made:
        assert json.loads(job.request.sampling.json_schema)["required"] == ["ok", "size"]
        assert job.request.sampling.structured == StructuredOptions(whitespace=2)
        assert job.reader is not None
        assert job.reader.schema is Answer


@pytest.mark.parametrize("place", ["keyword", "dict", "params"])
def test_where_a_constraint_may_be_said(place: str) -> None:
    if place == "keyword":
        job = next(jobs([TEXT], None, {"json_schema": Answer}))
    else:
        params: Any = {"json_schema": Answer}
        job = next(jobs([TEXT], SamplingParams(**params) if place == "params" else params, {}))
    assert job.reader is not None
    value = job.reader.value_of('{"ok":true,"size":"small"}')
    # SamplingParams keeps a schema as text, so there the type is gone.
    assert value == ({"ok": True, "size": "small"} if place == "params" else Answer(ok=True, size=Size.SMALL))


def test_a_stream_takes_the_same() -> None:
    job = streamed_job(TEXT, {"max_tokens": 9}, {"regex": "[a-z]+"})
    assert (job.request.sampling.max_tokens, job.request.sampling.regex) == (9, "[a-z]+")
    assert job.request.stream


@pytest.mark.parametrize(
    ("params", "options", "param"),
    [
        ({"json_schema": SCHEMA}, {"regex": "a"}, "regex"),
        ({"regex": "a"}, {"structured": {"whitespace": 1}}, "structured"),
        ({"regex": "a", "ebnf": EBNF}, {}, "ebnf"),
        (None, {"regex": "a", "choices": ["a"]}, "choices"),
        (None, {"json_schema": 5}, "json_schema"),
        (None, {"json_schema": {1, 2}}, "json_schema"),
        (None, {"choices": []}, "choices"),
        (None, {"choices": "yes"}, "choices"),
        (None, {"regex": 5}, "regex"),
        (None, {"regex": ""}, "regex"),
        (None, {"regex": "a", "structured": 7}, "structured"),
        (None, {"regex": "a", "structured": {"white_space": 1}}, "structured"),
        (None, {"regex": "a", "structured": {"whitespace": -1}}, "whitespace"),
        ({"regex": "a", "structured": {"backend": "guess"}}, {}, "backend"),
        ({"stop": "x"}, {"choices": ["axe"]}, "stop"),
        ({"max_tokens": 0, "prompt_logprobs": 0}, {"json_schema": SCHEMA}, "max_tokens"),
    ],
    ids=str,
)
def test_mistakes_name_the_field(params: Any, options: dict[str, Any], param: str) -> None:
    error = argument_error(params, **options)
    assert error.param == param
    assert error.status == 400


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="unknown argument 'schema'; known are json_schema"):
        jobs([TEXT], None, {"schema": SCHEMA})


def test_structured_options_from_a_dict() -> None:
    assert as_structured_options({"closed": True}) == StructuredOptions(closed=True)
    options = StructuredOptions(whitespace=3)
    assert as_structured_options(options) is options


def test_the_value_is_what_follows_the_reasoning() -> None:
    options = {"json_schema": Record, "structured": {"reasoning_end": "</think>"}}
    job = next(jobs([TEXT], None, options))
    assert not job.request.sampling.skip_special_tokens
    asked = job.reader
    assert asked is not None
    assert asked.value_of('{"ok":false} is it?</think>{"ok":true}') == {"ok": True}


# --- values through the engine ---


@pytest.mark.parametrize(
    ("options", "test"),
    [
        ({"json_schema": SCHEMA}, lambda value: jsonschema.validate(value, SCHEMA) is None),
        ({"json_schema": json.dumps(SCHEMA)}, lambda value: jsonschema.validate(value, SCHEMA) is None),
        ({"json_schema": Answer}, lambda value: isinstance(value, Answer) and isinstance(value.size, Size)),
        ({"json_schema": Pair}, lambda value: isinstance(value, Pair)),
        ({"json_schema": Record}, lambda value: set(value) == {"ok"}),
        ({"json_schema": Size}, lambda value: isinstance(value, Size)),
        ({"json_schema": bool}, lambda value: isinstance(value, bool)),
        ({"json_schema": list[Literal[1, 2]]}, lambda value: set(value) <= {1, 2}),
        ({"regex": "[a-c]{3}"}, lambda value: len(value) == 3 and set(value) <= set("abc")),
        ({"ebnf": EBNF}, lambda value: value in ("yes", "no")),
        ({"choices": ["left", "right"]}, lambda value: value in ("left", "right")),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_what_was_asked_for_comes_back(engine: Engine, options: Any, test: Callable[[Any], bool]) -> None:
    for c in many(engine, [TEXT] * 3, [{**SHORT, "seed": seed} for seed in range(3)], **options):
        assert test(c.parsed), c.text
        assert c.finish_reason == ("length" if c.forced_close else "stop")
        assert c.constraint is not None
        assert c.constraint.backend in ("llguidance", "xgrammar")


def test_without_a_constraint_there_is_no_value(engine: Engine) -> None:
    c = one(engine, TEXT, {"max_tokens": 4})
    assert (c.parsed, c.constraint, c.forced_close) == (None, None, False)


def test_an_output_that_is_cut_is_whole(engine: Engine) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    for seed in range(5):
        params = {"max_tokens": 12, "seed": seed, "temperature": 2.0}
        c = one(engine, TEXT, params, json_schema=schema)
        assert isinstance(c.parsed, list)
        assert len(c.token_ids) <= 12
        if c.forced_close:
            assert c.finish_reason == "length"
            assert c.constraint is not None
            as_stop = one(engine, TEXT, params, json_schema=schema, structured={"on_length": "stop"})
            assert (as_stop.text, as_stop.finish_reason, as_stop.forced_close) == (c.text, "stop", True)


def test_several_prompts_with_constraints_of_their_own(engine: Engine) -> None:
    params = [{**SHORT, "choices": ["a", "b"]}, SHORT, {**SHORT, "json_schema": Record, "n": 2}]
    choice, free, *records = many(engine, [TEXT] * 3, params)
    assert choice.parsed in ("a", "b")
    assert free.parsed is None
    assert [set(c.parsed) for c in records] == [{"ok"}, {"ok"}]


def test_log_probabilities_tell_where_the_grammar_left_a_choice(engine: Engine) -> None:
    c = one(engine, TEXT, {**SHORT, "logprobs": 0}, json_schema=SCHEMA)
    assert c.logprobs is not None
    assert all(row.allowed is not None and row.allowed >= 1 for row in c.logprobs)
    assert all(row.forced for row in c.logprobs if row.allowed == 1)
    text = "".join(row.text for row in c.logprobs if row.forced)
    assert "ok" in text
    assert "size" in text
    free = next(row for row in c.logprobs if not row.forced)
    assert free.allowed is not None
    assert free.allowed > 1
    plain = one(engine, TEXT, {"max_tokens": 4, "logprobs": 0})
    assert plain.logprobs is not None
    assert all(row.allowed is None and not row.forced for row in plain.logprobs)


@pytest.mark.parametrize("marker", ["</think>", "<|im_start|>", "."])
def test_reasoning_comes_first_and_is_not_part_of_the_value(engine: Engine, marker: str) -> None:
    structured = {"reasoning_end": marker, "reasoning_budget": 12}
    for c in many(engine, [TEXT] * 3, {**SHORT, "seed": None}, json_schema=Answer, structured=structured):
        assert marker in c.text
        assert isinstance(c.parsed, Answer)


def test_streams_end_with_the_value(engine: Engine) -> None:
    *_, last = engine.stream(TEXT, SHORT, json_schema=Answer)
    assert last.completion is not None
    assert isinstance(last.completion.parsed, Answer)


async def test_the_same_in_an_event_loop(engine: Engine) -> None:
    c = await engine.async_generate(TEXT, SHORT, json_schema=Pair)
    assert isinstance(c, Completion)
    assert isinstance(c.parsed, Pair)
    async with aclosing(engine.async_stream(TEXT, SHORT, choices=["x", "y"])) as stream:
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.parsed == "".join(chunk.text for chunk in chunks)


def test_a_rule_that_only_the_type_knows_is_told_when_the_value_is_read(engine: Engine) -> None:
    class Never(pydantic.BaseModel):
        ok: bool

        @pydantic.field_validator("ok")
        @classmethod
        def never(cls, value: bool) -> bool:
            raise ValueError("not this one")

    c = one(engine, TEXT, SHORT, json_schema=Never)
    assert set(json.loads(c.text)) == {"ok"}
    with pytest.raises(pydantic.ValidationError, match="not this one"):
        _ = c.parsed


def test_keys_come_in_the_order_that_the_model_chooses(engine: Engine) -> None:
    members: dict[str, Any] = {name: {"type": "null"} for name in "abcdef"}
    schema = {"type": "object", "properties": members, "required": ["c", "f"], "additionalProperties": False}
    params = [{"seed": seed, "temperature": 2.0, "max_tokens": 40} for seed in range(8)]
    orders: set[tuple[str, ...]] = set()
    for each in params:
        answer = one(engine, TEXT, each, json_schema=schema, structured={"key_order": "any"})
        pairs = json.loads(answer.text, object_pairs_hook=list)
        names = tuple(name for name, _ in pairs)
        assert len(set(names)) == len(names)
        jsonschema.validate(dict(pairs), schema)
        orders.add(names)
    assert any(list(names) != sorted(names) for names in orders)
    for most in range(12, 40, 3):
        short = one(
            engine, TEXT, {**params[0], "max_tokens": most}, json_schema=schema, structured={"key_order": "any"}
        )
        jsonschema.validate(json.loads(short.text), schema)


# --- refusals of the engine ---


@pytest.mark.parametrize(
    ("options", "param", "said"),
    [
        ({"json_schema": {"type": "object", "required": 5}}, "json_schema", "/required"),
        ({"json_schema": {"properties": {"a": BACK_REFERENCE}}}, "json_schema", "'pattern' at '/properties/a'"),
        ({"json_schema": False}, "json_schema", "No value"),
        ({"json_schema": "{"}, "json_schema", "not JSON"),
        ({"regex": "(a"}, "regex", "at character"),
        ({"regex": r"(a+)\1"}, "regex", "at character"),
        ({"ebnf": "root ::= other"}, "ebnf", "other"),
        ({"structural_tag": {"type": "structural_tag"}}, "structural_tag", "format"),
        ({"structural_tag": "{"}, "structural_tag", "JSON"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_with_the_place(
    engine: Engine, options: dict[str, Any], param: str, said: str
) -> None:
    error = refusal(engine, TEXT, SHORT, **options)
    assert (error.param, error.status) == (param, 400)
    assert said in error.message
    assert one(engine, TEXT, {"max_tokens": 2}).finish_reason


def test_a_budget_below_the_shortest_answer_is_refused_with_it(engine: Engine) -> None:
    error = refusal(engine, TEXT, {"max_tokens": 2}, json_schema=SCHEMA)
    assert error.param == "max_tokens"
    least = next(int(word) for word in error.message.split() if word.isdigit() and int(word) > 2)
    c = one(engine, TEXT, {"max_tokens": least}, json_schema=SCHEMA)
    jsonschema.validate(c.parsed, SCHEMA)


def test_what_is_ignored_on_request_is_reported(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"name": BACK_REFERENCE}, "required": ["name"]}
    refusal(engine, TEXT, SHORT, json_schema=schema)
    c = one(engine, TEXT, SHORT, json_schema=schema, structured={"on_unsupported": "ignore"})
    assert c.constraint is not None
    assert c.constraint.ignored == ["/properties/name: pattern"]
    assert isinstance(c.parsed["name"], str)


@pytest.mark.parametrize("whitespace", [0, 1])
@pytest.mark.parametrize("kind", ["integers", "numbers", "arrays"])
def test_an_enumeration_of_thousands(engine: Engine, kind: str, whitespace: int) -> None:
    values = {"integers": lambda i: 7 * i, "numbers": lambda i: i + 0.5, "arrays": lambda i: [i]}[kind]
    listed = [values(i) for i in range(3_000)]
    schema = {"enum": listed}
    if kind == "arrays" and whitespace:
        with pytest.raises(RequestError, match="3000 options") as caught:
            engine.generate("A number: ", json_schema=schema, structured={"whitespace": whitespace})
        assert caught.value.status == 400
        return
    answer = engine.generate("A number: ", {"seed": 1}, json_schema=schema, structured={"whitespace": whitespace})
    assert json.loads(answer.text) in listed
