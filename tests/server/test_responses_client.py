"""/v1/responses of the real server as OpenAI's own client sees it: the default model, in a process of its own.

`server_url` and `model_name` come from tests/conftest.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.server_process import wait_for, wait_idle

GET_WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Colour(BaseModel):
    name: Literal["red", "green"]
    warm: bool


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def ask(client: openai.OpenAI, model_name: str) -> Any:
    def create(given: Any = "Name three colours.", **fields: Any) -> Any:
        fields = {"model": model_name, "max_output_tokens": 8, "temperature": 0, **fields}
        return client.responses.create(input=given, **fields)

    return create


def test_a_response_is_that_of_a_chat(client: openai.OpenAI, ask: Any, model_name: str) -> None:
    response = ask("Name three colours.", instructions="Be brief.", metadata={"a": "b"})
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name three colours."}]
    chat = client.chat.completions.create(model=model_name, messages=messages, max_tokens=8, temperature=0)
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens == 8
    assert response.metadata == {"a": "b"}
    assert client.responses.retrieve(response.id) == response
    (item,) = client.responses.input_items.list(response.id)
    assert item.content[0].text == "Name three colours."
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.retrieve(response.id)
    assert gone.value.code == "response_not_found"


def test_a_stream_adds_up_to_the_whole_response(client: openai.OpenAI, ask: Any, model_name: str) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "string", "maxLength": 20}}}
    with client.responses.stream(model=model_name, input="Say hi.", temperature=0, text=form) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text
    assert final.status == "completed"
    whole = ask("Say hi.", max_output_tokens=None, text=form)
    assert (whole.output_text, whole.usage.output_tokens) == (text, final.usage.output_tokens)


def test_a_structured_response_is_parsed(client: openai.OpenAI, model_name: str) -> None:
    response = client.responses.parse(model=model_name, input="A colour?", text_format=Colour, temperature=0)
    assert isinstance(response.output_parsed, Colour)
    assert response.text.format.type == "json_schema"


def test_a_tool_is_called_and_its_result_continues_the_conversation(ask: Any) -> None:
    first = ask("Weather in Rome?", tools=[GET_WEATHER], tool_choice="required", parallel_tool_calls=False,
                max_output_tokens=64)  # fmt: skip
    (call,) = first.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Rome", "Paris")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    stored = ask([output], previous_response_id=first.id, tools=[GET_WEATHER])
    items = [{"role": "user", "content": "Weather in Rome?"}, *first.output, output]
    sent = ask(items, tools=[GET_WEATHER])
    assert stored.output == sent.output or stored.output_text == sent.output_text
    assert stored.usage.input_tokens == sent.usage.input_tokens > first.usage.input_tokens


def test_a_continued_response_finds_its_conversation_in_the_cache(ask: Any) -> None:
    first = ask(f"{time.time()}: " + "a few words of one's own " * 10)
    second = ask("And now?", previous_response_id=first.id)
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 2


def test_a_background_response_is_cancelled(client: openai.OpenAI, ask: Any, server_url: str) -> None:
    made = ask("Count to a thousand.", background=True, max_output_tokens=2000)
    assert made.status == "queued"
    assert wait_for(lambda: client.responses.retrieve(made.id).status == "in_progress")
    assert client.responses.cancel(made.id).status == "cancelled"
    wait_idle(server_url)


def test_errors_are_those_of_the_client(ask: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(tools=[{"type": "web_search"}])
    assert (refused.value.param, refused.value.code) == ("tools[0].type", "unsupported_parameter")
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(text={"format": {"type": "json_schema", "name": "x", "schema": schema}})
    assert refused.value.param == "text.format"
    with pytest.raises(openai.BadRequestError) as refused:
        ask("long " * 20_000)
    assert (refused.value.param, refused.value.code) == ("input", "context_length_exceeded")
    bad = {**GET_WEATHER, "parameters": {"type": "object", "properties": {"x": {"pattern": "("}}}}
    with pytest.raises(openai.BadRequestError, match="/0/parameters/properties/x") as refused:
        ask(tools=[bad])
    assert refused.value.param == "tools"
