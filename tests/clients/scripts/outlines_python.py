"""Outlines on its vLLM, SGLang and OpenAI models: types, JSON schemas, regular expressions, choices, streams."""

from __future__ import annotations

import json
import re
from typing import Literal

import openai
import outlines
from harness import MODEL, V1, case, main, raises
from outlines.inputs import Chat
from outlines.types import CFG, JsonSchema, Regex
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)
vllm = outlines.from_vllm(client, MODEL)
sglang = outlines.from_sglang(client, MODEL)
plain = outlines.from_openai(client, MODEL)


class City(BaseModel):
    name: str = Field(max_length=12)
    size: Literal["small", "large"]


@case
def text():
    for model in (vllm, sglang, plain):
        assert model("Name a colour.", max_tokens=8)
        assert "".join(model.stream("Name a colour.", max_tokens=8))
    assert vllm(Chat([{"role": "user", "content": "Hello"}]), max_tokens=4)


@case
def json_type():
    for model in (vllm, sglang, plain):
        assert City.model_validate_json(model("A city.", City, max_tokens=64))
        assert City.model_validate_json("".join(model.stream("A city.", City, max_tokens=64)))


@case
def json_schema():
    schema = JsonSchema(json.dumps(City.model_json_schema()))
    for model in (vllm, sglang, plain):
        assert City.model_validate_json(model("A city.", schema, max_tokens=64))


@case
def json_with_whitespace_pattern():
    schema = JsonSchema(json.dumps(City.model_json_schema()), whitespace_pattern=r"[ ]?")
    assert City.model_validate_json(vllm("A city.", schema, max_tokens=64))


@case
def regex():
    for model in (vllm, sglang):
        assert re.fullmatch("[a-z]{3,5}-[0-9]{2}", model("A code.", Regex("[a-z]{3,5}-[0-9]{2}"), max_tokens=16))


@case
def choices():
    for model in (vllm, sglang):
        assert model("A colour.", Literal["red", "blue"], max_tokens=8) in ("red", "blue")


@case
def simple_types():
    for model in (vllm, sglang):
        assert int(model("A number.", int, max_tokens=8)) is not None
        assert model("Yes?", bool, max_tokens=8) in ("True", "False")
        assert model("A day.", outlines.types.date, max_tokens=16).count("-") == 2


@case
def cfg():
    grammar = CFG('start: greeting " " name\ngreeting: "hello" | "hi"\nname: "Ada" | "(" name ")"\n')
    for model in (vllm, sglang):
        assert re.match(r"(hello|hi) \(*Ada", model("Greet.", grammar, max_tokens=32))


@case
def openai_regex_is_refused():
    # Outlines itself refuses: OpenAI's API has no regular expressions.
    raises(TypeError, lambda: plain("A code.", Regex("[a-z]+"), max_tokens=8))


@case
def generator():
    make = outlines.Generator(vllm, list[Literal["a", "b"]])
    assert set(json.loads(make("Letters.", max_tokens=16))) <= {"a", "b"}


main()
