"""guidance: its model for OpenAI servers and the one for SGLang, with JSON, regular expressions and choices."""

from __future__ import annotations

import json
import re

import guidance
from guidance import assistant, gen, system, user
from guidance.models.experimental import SglangModel
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


@case
def sglang_gen():
    assert ask(SglangModel(MODEL, **guidance_openai), gen("answer", max_tokens=8))["answer"]


@case
def sglang_json():
    made = ask(SglangModel(MODEL, **guidance_openai), guidance.json("answer", schema=City, max_tokens=64))
    assert set(json.loads(made["answer"])) == {"name", "size"}


@case
def sglang_regex():
    made = ask(SglangModel(MODEL, **guidance_openai), gen("answer", regex="[a-z]{3,5}-[0-9]{2}", max_tokens=16))
    assert re.fullmatch("[a-z]{3,5}-[0-9]{2}", made["answer"])


main()
