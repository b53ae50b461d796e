"""openai-python, of each major line."""

from __future__ import annotations

import json
from typing import Literal

import openai
from harness import MODEL, V1, case, main, raises
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)
QUESTION = [{"role": "user", "content": "Name three colours."}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"type": "string", "enum": ["c", "f"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER, "strict": True},
}
FLAT_TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": WEATHER,
    "strict": True,
}


class City(BaseModel):
    name: str = Field(max_length=12)
    size: Literal["small", "large"]


@case
def models():
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve(MODEL).id == MODEL


@case
def chat():
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_completion_tokens=8, temperature=0.5, top_p=0.9, seed=1, n=2, stop=["\n\n"],
        presence_penalty=0.1, frequency_penalty=0.1, logprobs=True, top_logprobs=2, user="me", metadata={"a": "b"},
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


@case
def chat_stream():
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].usage.completion_tokens <= 8
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@case
async def chat_async():
    async with openai.AsyncOpenAI(base_url=V1, api_key="none", max_retries=0) as made:
        answer = await made.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4)
        assert answer.choices[0].message.content
        stream = await made.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4, stream=True)
        assert [chunk async for chunk in stream][-1].choices[0].finish_reason


@case
def chat_parse():
    parse = getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse
    answer = parse(model=MODEL, messages=QUESTION, response_format=City, max_tokens=48)
    assert isinstance(answer.choices[0].message.parsed, City)


@case
def chat_parse_stream():
    stream = getattr(client.chat.completions, "stream", None) or client.beta.chat.completions.stream
    with stream(model=MODEL, messages=QUESTION, response_format=City, max_tokens=48) as events:
        kinds = {event.type for event in events}
        assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
        assert isinstance(events.get_final_completion().choices[0].message.parsed, City)


@case
def chat_json_object():
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_format={"type": "json_object"}, max_tokens=32
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@case
def chat_tools():
    turns = [{"role": "user", "content": "The weather in Rome?"}]
    fields = {"model": MODEL, "tools": [TOOL], "max_tokens": 48}
    answer = client.chat.completions.create(messages=turns, tool_choice="required", **fields).choices[0]
    (call,) = answer.message.tool_calls[:1]
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    message = answer.message.model_dump(exclude_none=True, exclude={"tool_calls": {"__all__": {"parsed_arguments"}}})
    results = [{"role": "tool", "tool_call_id": each.id, "content": "Sunny."} for each in answer.message.tool_calls]
    last = client.chat.completions.create(messages=[*turns, message, *results], tool_choice="none", **fields)
    assert last.choices[0].message.content is not None


@case
def chat_tools_stream():
    stream = getattr(client.chat.completions, "stream", None) or client.beta.chat.completions.stream
    with stream(
        model=MODEL, messages=QUESTION, tools=[openai.pydantic_function_tool(City)], max_tokens=64,
        tool_choice={"type": "function", "function": {"name": "City"}}, parallel_tool_calls=False,
    ) as events:  # fmt: skip
        assert any(event.type == "tool_calls.function.arguments.delta" for event in events)
        (call,) = events.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, City)


@case
def completions():
    answer = client.completions.create(
        model=MODEL, prompt=["One, two,", "A, b,"], max_tokens=4, n=2, logprobs=2, echo=True, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    chunks = list(client.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, stream=True))
    assert chunks[-1].choices[0].finish_reason


@case
def embeddings():
    answer = client.embeddings.create(model=MODEL, input=["a cat", "a dog"])
    assert len(answer.data) == 2
    assert len(answer.data[0].embedding) > 100
    assert client.embeddings.create(model=MODEL, input="a cat", encoding_format="float").data[0].embedding


@case
def responses():
    first = client.responses.create(
        model=MODEL, instructions="Be brief.", input="Name a colour.", max_output_tokens=16, temperature=0.5, store=True
    )
    assert first.output_text
    again = client.responses.create(
        model=MODEL,
        input=[{"role": "user", "content": "Another."}],
        previous_response_id=first.id,
        max_output_tokens=16,
    )
    assert again.previous_response_id == first.id
    assert client.responses.retrieve(first.id).id == first.id
    assert client.responses.input_items.list(first.id).data
    client.responses.delete(first.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(first.id))


@case
def responses_stream():
    with client.responses.stream(model=MODEL, input="A city.", text_format=City, max_output_tokens=64) as stream:
        kinds = [event.type for event in stream]
        assert isinstance(stream.get_final_response().output_parsed, City)
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert kinds[-1] == "response.completed"


@case
def responses_stream_cut():
    events = list(client.responses.create(model=MODEL, input="Count to 100.", max_output_tokens=4, stream=True))
    assert events[-1].type == "response.incomplete"
    with client.responses.stream(model=MODEL, input="Count to 100.", max_output_tokens=4) as stream:
        # The client knows response.completed alone.
        raises(RuntimeError, stream.get_final_response, "response.completed")


@case
def responses_parse():
    answer = client.responses.parse(model=MODEL, input="A city.", text_format=City, max_output_tokens=48)
    assert isinstance(answer.output_parsed, City)


@case
def responses_tools():
    fields = {"model": MODEL, "tools": [FLAT_TOOL], "max_output_tokens": 64}
    first = client.responses.create(input="The weather in Rome?", tool_choice="required", **fields)
    calls = [item for item in first.output if item.type == "function_call"]
    assert set(json.loads(calls[0].arguments)) == {"city", "unit"}
    results = [{"type": "function_call_output", "call_id": each.call_id, "output": "Sunny."} for each in calls]
    last = client.responses.create(input=results, previous_response_id=first.id, tool_choice="none", **fields)
    assert last.output_text is not None


@case
def errors():
    error = raises(
        openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-x", messages=QUESTION), "gpt-x"
    )
    assert error.code == "model_not_found"
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    raises(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=MODEL, messages=QUESTION, response_format=bad),
        "nothing",
    )


main()
