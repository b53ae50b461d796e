"""instructor: every mode of its OpenAI and Anthropic providers, iterables, partial objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import anthropic
import instructor
import openai
from harness import MODEL, URL, V1, case, expect, main
from instructor import Mode
from instructor.core.exceptions import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel, Field, ValidationError

QUESTION = [{"role": "user", "content": "Name a city."}]
plain = openai.OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)
claude = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    size: Literal["small", "large"]


class Colour(BaseModel):
    """A colour."""

    red: int = Field(ge=0, le=255)


CLOSED = {"structured": {"closed": True}}
"""Without it, objects may have members that their classes do not mention, and a small model writes some."""


def ask(mode: Mode, **fields):
    made = instructor.from_openai(plain, mode=mode)
    given = {"model": MODEL, "messages": QUESTION, "response_model": City, "max_tokens": 64, "max_retries": 1}
    return made.chat.completions.create(**{**given, "extra_body": CLOSED, **fields})


def cut_or_whole(call: Callable[[], Any]) -> None:
    """Check an answer whose object is open: it may be cut among members of the model's own."""
    try:
        assert isinstance(call(), City)
    except IncompleteOutputException as error:
        expect(error, "max_tokens")


@case
def tools():
    assert isinstance(ask(Mode.TOOLS), City)
    cut_or_whole(lambda: ask(Mode.TOOLS, extra_body=None))


@case
def tools_strict():
    assert isinstance(ask(Mode.TOOLS_STRICT), City)


@case
def functions():
    assert isinstance(ask(Mode.FUNCTIONS), City)


@case
def parallel_tools():
    """The mode leaves it to the model to call; this small model mostly does not, which instructor reports."""
    try:
        found = list(ask(Mode.PARALLEL_TOOLS, response_model=Iterable[City | Colour], max_tokens=96))
    except Exception as error:
        expect(error, "No tool calls", "max_tokens")
    else:
        assert all(isinstance(each, City | Colour) for each in found)


@case
def json():
    """The mode sends json_object, and the schema in words: any object may come, which instructor refuses then."""
    try:
        assert isinstance(ask(Mode.JSON, extra_body={"structured": {"on_length": "stop"}}), City)
    except InstructorRetryException as error:
        expect(error, "validation error")


@case
def json_schema():
    assert isinstance(ask(Mode.JSON_SCHEMA), City)


@case
def json_o1():
    assert isinstance(ask(Mode.JSON_O1), City)


@case
def md_json():
    """The mode asks for a code block in words and reads what it finds; the fence itself is a regex here."""
    fenced = r'```json\n\{"name": "[A-Za-z ]{1,12}", "size": "(small|large)"\}\n```'
    assert isinstance(ask(Mode.MD_JSON, extra_body={"regex": fenced}), City)


@case
def responses_tools():
    made = instructor.from_openai(plain, mode=Mode.RESPONSES_TOOLS)
    fields = {"model": MODEL, "response_model": City, "max_output_tokens": 128, "max_retries": 1}
    assert isinstance(made.responses.create(input="Name a city.", **fields), City)
    assert isinstance(made.chat.completions.create(messages=QUESTION, **fields), City)


@case
def iterable():
    """instructor's schema does not require its list, so the model may leave it out; here the request requires it."""
    item = City.model_json_schema()
    cities = {"type": "object", "properties": {"tasks": {"type": "array", "items": item, "minItems": 1, "maxItems": 2}}}
    cities |= {"required": ["tasks"], "additionalProperties": False}
    made = instructor.from_openai(plain, mode=Mode.MD_JSON)
    found = made.chat.completions.create_iterable(
        model=MODEL, messages=QUESTION, response_model=City, max_tokens=96, max_retries=1,
        extra_body={"json_schema": cities},
    )  # fmt: skip
    assert all(isinstance(city, City) for city in found)


@case
def iterable_as_sent():
    """Ask as instructor does by itself. A small model may answer `{}`, which its schema allows and it cannot read."""
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        made = instructor.from_openai(plain, mode=mode)
        try:
            found = made.chat.completions.create_iterable(
                model=MODEL, messages=QUESTION, response_model=City, max_tokens=96, max_retries=1, extra_body=CLOSED
            )
            assert all(isinstance(city, City) for city in found)
        except ValidationError as error:
            expect(error, "input_value={}")


@case
def partial():
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        made = instructor.from_openai(plain, mode=mode)
        parts = list(
            made.chat.completions.create_partial(
                model=MODEL, messages=QUESTION, response_model=City, max_tokens=64, max_retries=1, extra_body=CLOSED
            )
        )
        assert parts[-1].size in ("small", "large")


@case
def from_provider():
    made = instructor.from_provider(f"openai/{MODEL}", base_url=V1, api_key="none")
    assert isinstance(
        made.create(messages=QUESTION, response_model=City, max_tokens=64, max_retries=1, extra_body=CLOSED), City
    )


def ask_claude(mode: Mode, **fields):
    made = instructor.from_anthropic(claude, mode=mode)
    fields = {
        "model": MODEL,
        "messages": QUESTION,
        "response_model": City,
        "max_tokens": 64,
        "max_retries": 1,
        **fields,
    }
    return made.messages.create(**fields)


@case
def anthropic_tools():
    cut_or_whole(lambda: ask_claude(Mode.ANTHROPIC_TOOLS))


@case
def anthropic_parallel_tools():
    found = list(ask_claude(Mode.ANTHROPIC_PARALLEL_TOOLS, response_model=Iterable[City | Colour], max_tokens=96))
    assert all(isinstance(each, City | Colour) for each in found)


main()
