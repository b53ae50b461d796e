"""Anthropic's own client: pictures in messages and in results of tools."""

from __future__ import annotations

from typing import Literal

import anthropic
from harness import MODEL, URL, case, main, picture, raises
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300)
LOOK = {"name": "look", "description": "Take a screenshot.", "input_schema": {"type": "object", "properties": {}}}


class Seen(BaseModel):
    colour: Literal["red", "green", "blue"]
    people: bool


def block(data: str) -> dict:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def turn(*files: str) -> list[dict]:
    return [{"role": "user", "content": [*map(block, files), {"type": "text", "text": "What is on the picture?"}]}]


@case
def message():
    one = client.messages.create(model=MODEL, max_tokens=8, messages=turn(picture(0)))
    two = client.messages.create(model=MODEL, max_tokens=8, messages=turn(picture(0), picture(1)))
    tokens = [each.usage.input_tokens + each.usage.cache_read_input_tokens for each in (one, two)]
    assert tokens[1] > tokens[0] > 12
    assert client.messages.count_tokens(model=MODEL, messages=turn(picture(0))).input_tokens == tokens[0]


@case
def message_stream():
    with client.messages.stream(model=MODEL, max_tokens=8, messages=turn(picture(0))) as stream:
        assert stream.get_final_message().usage.output_tokens <= 8


@case
def message_parse():
    answer = client.messages.parse(model=MODEL, max_tokens=48, messages=turn(picture(1)), output_format=Seen)
    assert isinstance(answer.parsed_output, Seen)


@case
def tool_result():
    turns = [{"role": "user", "content": "Look at the page."}]
    fields = {"model": MODEL, "max_tokens": 48, "tools": [LOOK]}
    choice = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    answer = client.messages.create(messages=turns, tool_choice=choice, **fields)
    (call,) = answer.content
    shown = [{"type": "text", "text": "The page:"}, block(picture(0))]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": shown}
    turns += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=turns, tool_choice={"type": "none"}, **fields).content[0].text is not None


@case
def errors():
    raises(
        anthropic.BadRequestError,
        lambda: client.messages.create(model=MODEL, max_tokens=8, messages=turn(picture(0), picture(1)[:80])),
        "messages[0].content[1]",
    )


main()
