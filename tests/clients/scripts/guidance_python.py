"""guidance: its models for OpenAI, SGLang and vLLM servers; JSON, regular expressions, choices, grammars."""

from __future__ import annotations

import re

import guidance
from guidance import assistant, capture, gen, select, system, user
from guidance.models.experimental import SglangModel, VLLMModel
from harness import MODEL, V1, case, main
from pydantic import BaseModel, Field

guidance_openai = {"api_key": "none", "base_url": V1, "echo": False}


class City(BaseModel):
    name: str = Field(max_length=12)
    size: int = Field(ge=0, le=9)


def ask(model, node):
    with system():
        model += "You are brief."
    with user():
        model += "Name a city."
    with assistant():
        model += node
    return model


@case
def openai_gen():
    made = ask(guidance.models.OpenAI(MODEL, **guidance_openai), gen("answer", max_tokens=8))
    assert made["answer"]


@case
def openai_json():
    made = ask(guidance.models.OpenAI(MODEL, **guidance_openai), guidance.json("answer", schema=City, max_tokens=64))
    assert City.model_validate_json(made["answer"])


def servers():
    return SglangModel(MODEL, **guidance_openai), VLLMModel(MODEL, **guidance_openai)


@case
def engine_gen():
    for model in servers():
        assert ask(model, gen("answer", max_tokens=8))["answer"]


@case
def engine_json():
    for model in servers():
        made = ask(model, guidance.json("answer", schema=City, max_tokens=64))
        assert City.model_validate_json(made["answer"])


@case
def engine_regex():
    for model in servers():
        made = ask(model, gen("answer", regex="[a-z]{3,5}-[0-9]{2}", max_tokens=16))
        assert re.fullmatch("[a-z]{3,5}-[0-9]{2}", made["answer"])


@case
def engine_select():
    for model in servers():
        assert ask(model, select(["red", "blue"], name="answer"))["answer"] in ("red", "blue")


@case
def engine_sequence():
    for model in servers():
        made = ask(model, "It is " + select(["red", "blue"], name="colour") + ", size " + gen("size", regex="[0-9]"))
        assert made["colour"] in ("red", "blue")
        assert int(made["size"]) >= 0


@case
def engine_nested():
    for model in servers():
        number = select(["1", "2", "(" + select(["3", "4"]) + ")"])
        made = ask(model, capture(number + "+" + number, "answer"))
        assert re.fullmatch(r"(1|2|\([34]\))\+(1|2|\([34]\))", made["answer"])


main()
