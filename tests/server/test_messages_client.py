"""The real server as Anthropic's own client sees it: `radixrt launch` in a process of its own, the default model.

`server_url` and `model_name` come from tests/conftest.py. The client has no `temperature` since its second major line,
so it goes into `extra_body`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel, Field

QUESTION = [{"role": "user", "content": "Name three colours."}]
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
}
FORECAST = {"name": "forecast", "description": "Weather forecast of a city.", "input_schema": CITY, "strict": True}
CLOCK = {"name": "clock", "description": "The time of day.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def fields(model_name: str) -> Callable[..., dict[str, Any]]:
    def make(**given: Any) -> dict[str, Any]:
        greedy = {"temperature": 0, **given.pop("extra_body", {})}
        return {"model": model_name, "messages": QUESTION, "max_tokens": 8, "extra_body": greedy, **given}

    return make


@pytest.fixture(scope="module")
def whole(client: anthropic.Anthropic, fields: Callable) -> anthropic.types.Message:
    """The answer of 12 tokens to the question."""
    return client.messages.create(**fields(max_tokens=12))


def content(message: Any) -> list[dict[str, Any]]:
    """The blocks of a message, without the ids of calls, which are new in every answer."""
    blocks = [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content]
    return [{name: value for name, value in block.items() if value is not None} for block in blocks]


def test_message(client: anthropic.Anthropic, fields: Callable, model_name: str) -> None:
    answer = client.messages.create(**fields(system="You are brief.", max_tokens=4))
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", model_name)
    assert answer.id.startswith("msg_")
    assert answer._request_id
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert 1 <= answer.usage.output_tokens <= 4
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 10


def test_stream_equals_the_whole_message(client: anthropic.Anthropic, fields: Callable, whole: Any) -> None:
    with client.messages.stream(**fields(max_tokens=12)) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    assert content(streamed) == content(whole)
    for name in ("model", "role", "type", "stop_reason", "stop_sequence"):
        assert getattr(streamed, name) == getattr(whole, name)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    prompts = [each.input_tokens + each.cache_read_input_tokens for each in (streamed.usage, whole.usage)]
    assert prompts[0] == prompts[1] == events[0].message.usage.input_tokens
    assert [event.type for event in events if event.type not in ("text", "content_block_delta")] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert "".join(event.text for event in events if event.type == "text") == whole.content[0].text
    assert len(events) > 10


def test_second_turn_reads_the_cache(client: anthropic.Anthropic, fields: Callable) -> None:
    billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={time.time()};"}
    rules = {"type": "text", "text": f"{time.time()} Be kind. " * 4, "cache_control": {"type": "ephemeral"}}
    first = client.messages.create(**fields(system=[billing, rules], max_tokens=2))
    turns = [*QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": "Thanks."}]
    billing["text"] += "changed"
    second = client.messages.create(**fields(system=[billing, rules], messages=turns, max_tokens=1))
    before = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens >= before - 2 > 40


def test_stop_sequences(client: anthropic.Anthropic, fields: Callable, whole: Any) -> None:
    text = whole.content[0].text
    word = text.split()[3]
    given = fields(max_tokens=12, stop_sequences=["never", word])
    answer = client.messages.create(**given)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == text[: text.index(word)]
    with client.messages.stream(**given) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", word)
    assert content(streamed) == content(answer)


def test_answer_goes_on_where_the_last_message_ends(client: anthropic.Anthropic, fields: Callable, whole: Any) -> None:
    text = whole.content[0].text
    begun = " ".join(text.split()[:3])
    given = fields(messages=[*QUESTION, {"role": "assistant", "content": begun}], max_tokens=3)
    answer = client.messages.create(**given).content[0].text
    assert answer
    assert text.startswith(begun + answer)


def test_tools_round_trip(client: anthropic.Anthropic, fields: Callable) -> None:
    turns = [{"role": "user", "content": "What will the weather be in Rome for 3 days?"}]
    given = fields(
        messages=turns,
        tools=[FORECAST, CLOCK],
        tool_choice={"type": "tool", "name": "forecast"},
        max_tokens=64,
    )
    answer = client.messages.create(**given)
    (call,) = answer.content
    assert (answer.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "forecast")
    assert set(call.input) == {"city", "days"}
    assert 1 <= call.input["days"] <= 9
    with client.messages.stream(**given) as stream:
        fragments = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert content(streamed) == content(answer)
    assert streamed.stop_reason == "tool_use"
    assert len(fragments) > 2
    turns.append({"role": "assistant", "content": answer.content})
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "Sunny, 30 degrees."}],
    }
    turns.append({"role": "user", "content": [result, {"type": "text", "text": "Answer in one sentence."}]})
    final = client.messages.create(**{**given, "messages": turns, "tool_choice": {"type": "none"}, "max_tokens": 4})
    assert [block.type for block in final.content] == ["text"]


def test_any_tool_and_one_call(client: anthropic.Anthropic, fields: Callable) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answer = client.messages.create(**fields(tools=[FORECAST, CLOCK], tool_choice=choice, max_tokens=64))
    assert [block.type for block in answer.content] == ["tool_use"]
    assert answer.stop_reason == "tool_use"


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


def test_parse(client: anthropic.Anthropic, fields: Callable) -> None:
    turns = [{"role": "user", "content": "Maria is 34 years old. As JSON:"}]
    answer = client.messages.parse(**fields(messages=turns, output_format=Person, max_tokens=48))
    assert isinstance(answer.parsed_output, Person)


@pytest.mark.parametrize(
    "tools", [{}, {"tools": [FORECAST, CLOCK]}, {"tools": [CLOCK], "tool_choice": {"type": "none"}}]
)
def test_count_tokens_is_the_usage_of_the_message(client: anthropic.Anthropic, fields: Callable, tools: Any) -> None:
    given = fields(system="Be brief.", max_tokens=4, **tools)
    usage = client.messages.create(**given).usage
    for name in ("max_tokens", "extra_body"):
        del given[name]
    assert client.messages.count_tokens(**given).input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_are_the_clients_own(client: anthropic.Anthropic, fields: Callable, server_url: str) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist; this server serves"):
        client.messages.create(**fields(model="claude-x"))
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be at least 1") as refused:
        client.messages.create(**fields(max_tokens=0))
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id
    with pytest.raises(anthropic.NotFoundError, match="batches are not served: send each request to /v1/messages"):
        client.messages.batches.create(requests=[{"custom_id": "a", "params": fields()}])
