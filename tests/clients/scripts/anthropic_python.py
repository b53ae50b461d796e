"""Anthropic's own client, of each major line."""

from __future__ import annotations

from typing import Literal

import anthropic
from harness import MODEL, URL, case, main, raises
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300)
QUESTION = [{"role": "user", "content": "Name three colours."}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
}
TOOL = {"name": "forecast", "description": "The weather forecast.", "input_schema": WEATHER}


class City(BaseModel):
    """No bounds: the client moves them from the schema into descriptions, where nothing enforces them."""

    size: Literal["small", "large"]
    old: bool


@case
def message():
    system = [{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}]
    # From 1.0 on the client has no arguments for sampling.
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5} if anthropic.__version__.startswith("0.") else {}
    answer = client.messages.create(
        model=MODEL, max_tokens=8, messages=QUESTION, system=system, stop_sequences=["\n\n\n"],
        metadata={"user_id": "me"}, **fields,
    )  # fmt: skip
    assert answer.content[0].text
    assert answer.usage.output_tokens <= 8


@case
def message_stream():
    with client.messages.stream(model=MODEL, max_tokens=8, messages=QUESTION) as stream:
        assert "".join(stream.text_stream)
        assert stream.get_final_message().stop_reason in ("end_turn", "max_tokens")


@case
async def message_async():
    async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0) as made:
        answer = await made.messages.create(model=MODEL, max_tokens=4, messages=QUESTION)
        assert answer.content[0].text


@case
def message_parse():
    answer = client.messages.parse(model=MODEL, max_tokens=48, messages=QUESTION, output_format=City)
    assert isinstance(answer.parsed_output, City)


@case
def tools():
    turns = [{"role": "user", "content": "The weather in Rome?"}]
    fields = {"model": MODEL, "max_tokens": 64, "tools": [TOOL]}
    choice = {"type": "tool", "name": "forecast", "disable_parallel_tool_use": True}
    answer = client.messages.create(messages=turns, tool_choice=choice, **fields)
    (call,) = answer.content
    assert {"city", "days"} <= set(call.input)  # strict is not given, so others may come too
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
    turns += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=turns, tool_choice={"type": "none"}, **fields).content[0].text is not None


@case
def tools_stream():
    with client.messages.stream(
        model=MODEL, max_tokens=64, messages=QUESTION, tools=[TOOL], tool_choice={"type": "any"}
    ) as stream:
        assert any(event.type == "input_json" for event in stream)
        assert stream.get_final_message().content[0].input["days"] >= 1


@case
def beta_messages():
    answer = client.beta.messages.create(model=MODEL, max_tokens=4, messages=QUESTION, betas=["context-1m-2025-08-07"])
    assert answer.content[0].text


@case
def count_tokens():
    assert client.messages.count_tokens(model=MODEL, messages=QUESTION, tools=[TOOL]).input_tokens > 10


@case
def models():
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@case
def errors():
    raises(
        anthropic.NotFoundError, lambda: client.messages.create(model="claude-x", max_tokens=4, messages=QUESTION),
        "claude-x",
    )  # fmt: skip
    raises(anthropic.BadRequestError, lambda: client.messages.create(model=MODEL, max_tokens=0, messages=QUESTION))


main()
