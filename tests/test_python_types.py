"""Python types as schemas: what each becomes, that a text of it becomes a value, and refusals that name the field."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import sys
import typing
import uuid
from collections.abc import Callable
from random import Random
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest
import typing_extensions
from pydantic import BaseModel, Field

from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.schema import normalize
from radixrt.errors import RequestError
from radixrt.python_types import parse, schema_text
from radixrt.sampling_params import SamplingParams

CHARACTERS = [chr(c) for c in range(0x20, 0x7F)] + ["é", "東"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    label: str


class Address(typing.TypedDict):
    """An address."""

    street: str
    zip: typing.NotRequired[str]


class PartialAddress(typing.TypedDict, total=False):
    street: typing.Required[str]
    zip: str


class NewAddress(typing_extensions.TypedDict, total=False):
    street: typing_extensions.Required[str]
    zip: str


@dataclasses.dataclass
class Tree:
    value: int
    children: list[Tree] = dataclasses.field(default_factory=list)


class Person(BaseModel):
    """Someone."""

    name: str = Field(min_length=1, max_length=20)
    age: int = Field(ge=0, le=150, description="in years")
    colour: Colour
    tree: Tree | None = None
    tags: set[str] = Field(default_factory=set)


class Open(BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    zebra: int
    apple: int


class Unknown:
    pass


@dataclasses.dataclass
class Broken:
    fine: int
    parts: list[Unknown]


class Outer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    by_name: dict[str, Broken]


class WithCallable(BaseModel):
    call: Callable[[int], int]


@dataclasses.dataclass
class HoldsTypedDict:
    address: Address


def schema(kind: Any) -> Any:
    return json.loads(schema_text(kind))


# --- schemas as they are ---


@pytest.mark.parametrize("value", [{"type": "object", "properties": {"b": {}, "a": {}}}, {}, True, False])
def test_a_schema_is_written_as_it_is(value: Any) -> None:
    text = schema_text(value)
    assert json.loads(text) == value
    assert schema_text(text) == text
    assert SamplingParams(json_schema=value).json_schema == text


def test_keys_keep_their_order() -> None:
    assert schema_text({"properties": {"z": {}, "a": {}}}) == '{"properties":{"z":{},"a":{}}}'


def test_unicode_is_left_alone() -> None:
    assert schema_text({"const": "Zürich 東京"}) == '{"const":"Zürich 東京"}'


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "must be a JSON object"),
        ("3", "must be a JSON object"),
        ("[" * 100_000, "not JSON"),
        ({"const": float("nan")}, "cannot be written as JSON"),
        ({"type": int}, "cannot be written as JSON"),
        (5, "neither a schema nor a type"),
        ([int], "neither a schema nor a type"),
        (b"{}", "neither a schema nor a type"),
        (lambda: None, "neither a schema nor a type"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_schema(value: Any, said: str) -> None:
    assert said in refusal(value)


def test_a_schema_that_holds_itself() -> None:
    loop: dict[str, Any] = {}
    loop["not"] = loop
    assert "cannot be written as JSON" in refusal(loop)


def refusal(value: Any) -> str:
    with pytest.raises(RequestError) as raised:
        schema_text(value)
    assert raised.value.param == "json_schema"
    assert raised.value.status == 400
    return raised.value.message


# --- types ---


def test_a_model_becomes_a_closed_object_with_its_keys_in_order() -> None:
    found = schema(Person)
    assert list(found["properties"]) == ["name", "age", "colour", "tree", "tags"]
    assert found["required"] == ["name", "age", "colour"]
    assert found["additionalProperties"] is False
    assert found["$defs"]["Tree"]["additionalProperties"] is False
    assert found["properties"]["age"] == {"type": "integer", "minimum": 0, "maximum": 150, "description": "in years"}
    assert found["description"] == "Someone."


def test_a_type_that_says_that_it_is_open_is_open() -> None:
    found = schema(Open)
    assert found["additionalProperties"] is True
    assert list(found["properties"]) == ["zebra", "apple"]


def test_properties_named_like_keywords_are_not_closed_over() -> None:
    made = pydantic.create_model("Made", properties=(dict[str, int], ...))
    assert schema(made)["properties"]["properties"] == {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize("kind", [Address, NewAddress, PartialAddress])
def test_typed_dicts_of_both_modules(kind: Any) -> None:
    found = schema(kind)
    assert found["properties"] == {"street": {"type": "string"}, "zip": {"type": "string"}}
    assert found["required"] == ["street"]
    assert found["additionalProperties"] is False


def test_typed_dicts_inside_generics_and_each_other() -> None:
    assert schema(list[Address])["$defs"]["Address"]["description"] == "An address."
    assert schema(Address | None)["anyOf"] == [{"$ref": "#/$defs/Address"}, {"type": "null"}]
    assert schema(Annotated[dict[str, Address], Field(min_length=1)])["minProperties"] == 1


TYPES: list[tuple[Any, dict[str, Any], str, Any]] = [
    (int, {"type": "integer"}, "3", 3),
    (float, {"type": "number"}, "1.5", 1.5),
    (bool, {"type": "boolean"}, "true", True),
    (str, {"type": "string"}, '"a"', "a"),
    (type(None), {"type": "null"}, "null", None),
    (Any, {}, "[1]", [1]),
    (list[int], {"type": "array", "items": {"type": "integer"}}, "[1,2]", [1, 2]),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, '{"a":1}', {"a": 1}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
    (typing.Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "4", 4),  # noqa: UP045
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, '"b"', "b"),
    (Annotated[int, Field(gt=3)], {"type": "integer", "exclusiveMinimum": 3}, "4", 4),
    (Annotated[int, ["unhashable"]], {"type": "integer"}, "4", 4),
    (Colour, {"enum": ["red", "blue"], "title": "Colour", "type": "string"}, '"red"', Colour.RED),
    (
        Point,
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        '[1,"a"]',
        Point(1, "a"),
    ),
    (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1,1]", {1}),
    (Address, {}, '{"street":"s"}', {"street": "s"}),
    (Tree, {}, '{"value":1,"children":[{"value":2}]}', Tree(1, [Tree(2)])),
]


@pytest.mark.parametrize(("kind", "expected", "text", "value"), TYPES, ids=lambda x: str(x)[:40])
def test_what_types_become_and_back(kind: Any, expected: dict[str, Any], text: str, value: Any) -> None:
    found = schema(kind)
    assert {name: found[name] for name in expected} == expected
    back = parse(kind, text)
    assert back == value
    assert type(back) is type(value)


def test_a_model_comes_back_whole() -> None:
    text = '{"name":"Ada","age":36,"colour":"blue","tree":{"value":1},"tags":["x","x"]}'
    assert parse(Person, text) == Person(name="Ada", age=36, colour=Colour.BLUE, tree=Tree(1), tags={"x"})


def test_schemas_come_back_as_plain_json() -> None:
    for given in ({"type": "array"}, True, '{"type":"array"}'):
        assert parse(given, '[{"a":1.5}]') == [{"a": 1.5}]


def test_schemas_are_made_once_for_each_type() -> None:
    assert schema_text(Person) is schema_text(Person)


# --- where pydantic's schema would let through what its validation refuses ---


STRICT_TYPES: list[Any] = [
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    pydantic.AwareDatetime,
    pydantic.NaiveDatetime,
    uuid.UUID,
    pydantic.UUID4,
    pydantic.HttpUrl,
    pydantic.AnyUrl,
    pydantic.PostgresDsn,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    pydantic.IPvAnyAddress,
    pydantic.Base64Bytes,
    bytes,
    float,
    pydantic.FiniteFloat,
    decimal.Decimal,
    Annotated[decimal.Decimal, Field(ge=0, max_digits=6, decimal_places=2)],
    Annotated[float, Field(gt=0.5, le=3)],
    Annotated[int, Field(multiple_of=7, ge=10, lt=1000)],
    Annotated[str, Field(pattern=r"^\d{3}-\w+$")],
    Annotated[set[int], Field(max_length=3)],
    dict[int, str],
    tuple[int, str],
    Person,
]


@pytest.mark.parametrize("kind", STRICT_TYPES, ids=str)
def test_every_text_of_the_schema_becomes_a_value(kind: Any) -> None:
    grammar = Recognizer(normalize(schema(kind)).productions().prune())
    random = Random(7)
    for length in (0, 4, 8, 16, 32) * 6:
        parse(kind, random_text(grammar, random, length))


def random_text(grammar: Recognizer, random: Random, length: int) -> str:
    """A text of the grammar: random characters, then the shortest way to an end."""
    state, text = grammar.start(), ""
    for _ in range(length):
        possible = [(c, after) for c in CHARACTERS if (after := grammar.advance(state, c)) is not None]
        if not possible:
            break
        char, state = random.choice(possible)
        text += char
    return text + "".join(str(piece) for piece in grammar.closing(state).pieces)


def test_a_decimal_is_a_number_within_its_digits() -> None:
    assert schema(decimal.Decimal)["type"] == "number"
    found = schema(Annotated[decimal.Decimal, Field(ge=0, max_digits=6, decimal_places=2)])
    assert found["minimum"] == 0
    assert found["allOf"] == [{"multipleOf": 0.01, "exclusiveMinimum": -10_000, "exclusiveMaximum": 10_000}]


def test_keys_of_a_dict_of_integers_are_integers() -> None:
    assert parse(dict[int, str], '{"-3":"a"}') == {-3: "a"}
    assert "pattern" in schema(dict[int, str])["propertyNames"]


def test_a_url_is_of_the_schemes_of_its_type() -> None:
    pattern = schema(pydantic.HttpUrl)["pattern"]
    assert pattern.startswith("^(http|https)://")
    assert "format" not in schema(pydantic.HttpUrl)


def test_times_exclude_what_python_does_not_have() -> None:
    assert all("pattern" in part for part in schema(datetime.datetime)["allOf"])
    assert "pattern" in schema(datetime.date)
    assert "pattern" in schema(datetime.time)


# --- what has no JSON form ---


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Unknown, "Unknown cannot be expressed"),
        (Broken, "field parts of Broken cannot"),
        (list[Broken], "field parts of"),
        (Outer, "field by_name.parts of Outer cannot"),
        (WithCallable, "field call of WithCallable cannot"),
        (complex, "complex number"),
        (pydantic.Json, "JSON inside a string"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refusal_names_the_field_and_the_reason(kind: Any, said: str) -> None:
    message = refusal(kind)
    assert said in message
    assert "cannot be expressed as a JSON Schema" in message
    assert len(message) < 300
    assert "\n" not in message


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes it from Python 3.12 on")
def test_a_typed_dict_that_pydantic_refuses_is_told_with_the_fix() -> None:
    message = refusal(HoldsTypedDict)
    assert "field address of HoldsTypedDict" in message
    assert "typing_extensions.TypedDict" in message


def test_a_name_that_nobody_defined() -> None:
    made = pydantic.create_model("Made", other=("Nowhere", ...))  # type: ignore[call-overload]
    assert "Made cannot be expressed" in refusal(made)


def test_a_rule_of_the_types_own_is_an_error_of_pydantics() -> None:
    class Even(BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("odd")
            return value

    assert parse(Even, '{"number":2}').number == 2
    with pytest.raises(pydantic.ValidationError, match="odd"):
        parse(Even, '{"number":3}')
