"""instructor: typed answers about pictures, through its OpenAI and Anthropic providers."""

from __future__ import annotations

from typing import Literal

import anthropic
import instructor
import openai
from harness import MODEL, URL, V1, case, main, picture
from instructor import Mode
from instructor.processing.multimodal import Image
from pydantic import BaseModel

plain = openai.OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)
claude = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300)
CLOSED = {"structured": {"closed": True}}
"""Without it, objects may have members that their classes do not mention, and a small model writes some."""


class Seen(BaseModel):
    """What is seen."""

    colour: Literal["red", "green", "blue"]
    people: bool


def question(*seeds: int) -> list[dict]:
    images = [Image.from_base64(f"data:image/png;base64,{picture(seed)}") for seed in seeds]
    return [{"role": "user", "content": ["What is on the picture?", *images]}]


def ask(mode: Mode, **fields):
    made = instructor.from_openai(plain, mode=mode)
    given = {"model": MODEL, "response_model": Seen, "max_tokens": 64, "max_retries": 1, "extra_body": CLOSED}
    return made.chat.completions.create(**{**given, "messages": question(0, 1), **fields})


@case
def tools():
    assert isinstance(ask(Mode.TOOLS), Seen)


@case
def json_schema():
    assert isinstance(ask(Mode.JSON_SCHEMA), Seen)


@case
def responses_tools():
    made = instructor.from_openai(plain, mode=Mode.RESPONSES_TOOLS)
    fields = {"model": MODEL, "response_model": Seen, "max_output_tokens": 128, "max_retries": 1}
    assert isinstance(made.chat.completions.create(messages=question(0), **fields), Seen)


@case
def partial():
    made = instructor.from_openai(plain, mode=Mode.JSON_SCHEMA)
    parts = list(
        made.chat.completions.create_partial(
            model=MODEL, messages=question(0), response_model=Seen, max_tokens=64, max_retries=1, extra_body=CLOSED
        )
    )
    assert parts[-1].colour in ("red", "green", "blue")


@case
def anthropic_tools():
    made = instructor.from_anthropic(claude, mode=Mode.ANTHROPIC_TOOLS)
    given = {"model": MODEL, "response_model": Seen, "max_tokens": 128, "max_retries": 1}
    assert isinstance(made.messages.create(**given, messages=question(1)), Seen)


main()
