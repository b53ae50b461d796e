"""OpenAI's Agents SDK: its default model (responses) and the one on chats, with tools, handoffs, types and streams."""

from __future__ import annotations

from typing import Literal

import openai
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from harness import MODEL, V1, case, expect, main
from pydantic import BaseModel

set_tracing_disabled(True)
SHORT = ModelSettings(max_tokens=16)
LONGER = ModelSettings(max_tokens=96)


class City(BaseModel):
    name: Literal["Rome", "Oslo"]
    size: Literal["small", "large"]


@function_tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather in a city."""
    return f"Sunny in {city}."


def models():
    """The two models, on a client of their own: an event loop ends with each case."""
    client = openai.AsyncOpenAI(base_url=V1, api_key="none", max_retries=0)
    return OpenAIResponsesModel(MODEL, client), OpenAIChatCompletionsModel(MODEL, client)


@case
async def text():
    """On chats alone: the SDK raises if a response is cut, and nothing else ends what a small model writes."""
    _, model = models()
    agent = Agent(name="a", instructions="You are brief.", model=model, model_settings=SHORT)
    result = await Runner.run(agent, "Name a colour.")
    assert result.final_output
    again = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "Another."}])
    assert again.final_output


@case
async def cut_response():
    model, _ = models()
    agent = Agent(name="a", model=model, model_settings=SHORT)
    try:
        await Runner.run(agent, "Count to one hundred.")
    except ModelBehaviorError as error:
        expect(error, "response.incomplete")


@case
async def stream():
    for model in models():
        agent = Agent(name="a", model=model, model_settings=LONGER, output_type=City)
        result = Runner.run_streamed(agent, "A city.")
        kinds = {event.type async for event in result.stream_events()}
        assert {"raw_response_event", "run_item_stream_event"} <= kinds, kinds
        assert isinstance(result.final_output, City)


@case
async def output_type():
    for model in models():
        agent = Agent(name="a", model=model, model_settings=LONGER, output_type=City)
        assert isinstance((await Runner.run(agent, "A city.")).final_output, City)


@case
async def tools():
    settings = ModelSettings(max_tokens=96, tool_choice="required", parallel_tool_calls=False)
    for model in models():
        agent = Agent(
            name="a", model=model, model_settings=settings, tools=[weather], tool_use_behavior="stop_on_first_tool"
        )
        assert "Sunny in" in (await Runner.run(agent, "The weather in Rome?")).final_output


@case
async def tools_twice():
    """The SDK takes the choice back after a call, so the model may answer in words; a small one calls again."""
    settings = ModelSettings(max_tokens=48, tool_choice="weather")
    for model in models():
        agent = Agent(name="a", model=model, model_settings=settings, tools=[weather], output_type=City)
        try:
            result = await Runner.run(agent, "The weather in Rome?", max_turns=2)
        except MaxTurnsExceeded:
            continue
        assert isinstance(result.final_output, City)


@case
async def handoff():
    for model in models():
        other = Agent(
            name="Cities", model=model, model_settings=LONGER, handoff_description="Names cities.", output_type=City
        )
        settings = ModelSettings(max_tokens=96, tool_choice="required", parallel_tool_calls=False)
        first = Agent(name="Desk", model=model, model_settings=settings, handoffs=[other])
        result = await Runner.run(first, "Name a city.")
        assert result.last_agent is other


@case
async def session():
    for model in models():
        memory = SQLiteSession("a")
        agent = Agent(name="a", model=model, model_settings=LONGER, output_type=City)
        assert (await Runner.run(agent, "Name a city.", session=memory)).final_output
        assert (await Runner.run(agent, "Another.", session=memory)).final_output


@case
async def previous_response():
    model, _ = models()
    agent = Agent(name="a", model=model, model_settings=LONGER, output_type=City)
    first = await Runner.run(agent, "Name a city.")
    again = await Runner.run(agent, "Another.", previous_response_id=first.last_response_id)
    assert again.final_output


main()
