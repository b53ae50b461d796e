"""gen's types: whatever the random model writes, the value has the requested type."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Annotated, Any, Literal

import pydantic
import pytest
import typing_extensions

import radixrt as rt
from radixrt.lang.core.answer_type import answer_type


class Color(Enum):
    RED = "red"
    GREEN = "green"


class Size(Enum):
    SMALL = 1
    LARGE = 2


class Verdict(pydantic.BaseModel):
    score: Annotated[int, pydantic.Field(ge=1, le=10)]
    reason: Annotated[str, pydantic.Field(max_length=8)]


@dataclasses.dataclass
class Point:
    x: Annotated[int, pydantic.Field(ge=0, le=9)]
    y: bool


class Movie(typing_extensions.TypedDict):
    title: Annotated[str, pydantic.Field(max_length=5)]


TYPES: list[tuple[Any, Any]] = [
    (bool, bool),
    (Annotated[int, pydantic.Field(ge=1, le=10)], int),
    (Literal["yes", "no"], str),
    (Literal[1, 2], int),
    (Color, Color),
    (Size, Size),
    (Verdict, Verdict),
    (Point, Point),
    (Movie, dict),
    (Annotated[list[Point], pydantic.Field(max_length=2)], list),
    (Annotated[str, pydantic.Field(max_length=4)], str),
    (int, int),
    (float, float),
]


@pytest.mark.parametrize(("kind", "python"), TYPES)
def test_a_value_is_of_its_type(engine: rt.Engine, kind: Any, python: type) -> None:
    @rt.function(temperature=1.0, seed=3)
    def program(s: rt.State) -> None:
        s += "Value: " + rt.gen("value", kind) + "."

    state = program.run(backend=engine)
    assert isinstance(state["value"], python)
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)
    assert adapter.validate_python(state["value"]) == state["value"]


def test_a_stop_string_ends_a_text_that_a_regex_leaves_open(engine: rt.Engine) -> None:
    newline = engine.tokenize("\n")

    @rt.function(temperature=0, logit_bias=dict.fromkeys(newline, 100.0))
    def program(s: rt.State) -> None:
        s += "Number: " + rt.gen("number", regex="[0-9]+", stop="\n", max_tokens=40) + "\nNext"

    state = program.run(backend=engine)
    meta = state.meta["number"]
    assert state["number"].isdigit()
    assert (meta.finish_reason, meta.matched_stop, meta.forced_close) == ("stop", "\n", False)
    assert state.text() == f"Number: {state['number']}\nNext"
    whole = rt.function(lambda s: s.append("Lines: " + rt.gen("lines", regex="a\nb", stop="\n")))
    with pytest.raises(rt.CallError, match="each text of the regex has a stop string in it"):
        whole.run(backend=engine)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("regex", "(a", "regex: this group is never closed"),
        ("ebnf", 'start ::= "a', "ebnf"),
        ("json_schema", {"type": "object", "properties": {"a": {"type": "text"}}}, "malformed at '/properties/a"),
        ("json_schema", '{"type": ', "not JSON"),
        ("structural_tag", "[1", "not JSON"),
    ],
)
def test_a_malformed_constraint_is_an_error_where_it_is_written(field: str, value: Any, message: str) -> None:
    with pytest.raises(rt.RequestError, match=message) as raised:
        rt.gen("value", **{field: value})
    assert raised.value.param == field


@pytest.mark.parametrize(
    ("constraint", "check"),
    [
        ({"regex": "[a-c]{3}"}, lambda value: len(value) == 3 and set(value) <= set("abc")),
        ({"choices": ["left", "right"]}, lambda value: value in ("left", "right")),
        ({"ebnf": 'root ::= "x" [0-9] "y"'}, lambda value: value[0] + value[2] == "xy"),
        ({"json_schema": {"type": "array", "items": {"enum": [1, "a"]}, "minItems": 1, "maxItems": 3}},
         lambda value: all(one in (1, "a") for one in value)),
        ({"json_schema": '{"const": {"a": null}}'}, lambda value: value == {"a": None}),
    ],
)  # fmt: skip
def test_raw_constraints(engine: rt.Engine, constraint: dict[str, Any], check: Any) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "Value: " + rt.gen("value", **constraint)

    assert check(program.run(backend=engine)["value"])


def test_texts_of_choices_stand_without_quotation_marks(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "Color: " + rt.gen("color", Color)

    state = program.run(backend=engine)
    assert state.text() == f"Color: {state['color'].value}"


def test_several_typed_values(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "Color: " + rt.gen("colors", Color, n=4)

    assert all(isinstance(value, Color) for value in program.run(backend=engine)["colors"])


def test_a_value_behind_free_reasoning(engine: rt.Engine) -> None:
    @rt.function(temperature=1.0, seed=4)
    def program(s: rt.State) -> None:
        s += "Think: "
        s += rt.gen("value", Color, structured={"reasoning_end": "\n", "reasoning_budget": 8}, max_tokens=30)

    state = program.run(backend=engine)
    assert isinstance(state["value"], Color)
    assert state.meta["value"].text.endswith(f"\n{state['value'].value}")


def test_stop_strings_of_the_program_are_for_texts_only(engine: rt.Engine) -> None:
    @rt.function(stop=["\n", "e"])
    def program(s: rt.State) -> None:
        s += "Color: " + rt.gen("color", Color) + rt.gen("other", Color, stop="\n")

    state = program.run(backend=engine)
    assert isinstance(state["color"], Color)
    assert isinstance(state["other"], Color)
    with pytest.raises(rt.RequestError, match="the choice 'red' holds 'e', which would cut it"):
        rt.gen("x", Color, stop="e")


def test_a_rule_that_the_schema_does_not_say_fails_the_gen(engine: rt.Engine) -> None:
    class Even(pydantic.BaseModel):
        n: Annotated[int, pydantic.Field(ge=1, le=9)]

        @pydantic.field_validator("n")
        @classmethod
        def check(cls, n: int) -> int:
            raise ValueError("never good enough")

    @rt.function
    def program(s: rt.State) -> None:
        s += "Value: " + rt.gen("value", Even)

    with pytest.raises(rt.CallError, match=r'(?s)program, branch 0, gen "value": .*never good enough') as raised:
        program.run(backend=engine)
    assert isinstance(raised.value.__cause__, pydantic.ValidationError)


def test_how_many_tokens_a_type_has_by_default() -> None:
    def tokens(kind: Any, **constraint: Any) -> int:
        return answer_type(kind, constraint).max_tokens

    assert tokens(str) == 256
    assert tokens(bool) == 8
    assert tokens(Annotated[int, pydantic.Field(ge=1)]) == 32
    assert tokens(Verdict) == 1024
    assert tokens(Literal["é", "a"]) == 3
    assert tokens(str, regex="a*") == 512
