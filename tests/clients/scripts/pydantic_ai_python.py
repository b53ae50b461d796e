"""pydantic-ai: agents on chats, responses and messages, with each way to a typed output, tools and streams."""

from __future__ import annotations

from typing import Literal

import openai
from harness import MODEL, URL, V1, case, expect, main
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput, UsageLimits
from pydantic_ai.embeddings import Embedder
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=V1, api_key="none")
chat = OpenAIChatModel(MODEL, provider=provider)
responses_model = OpenAIResponsesModel(MODEL, provider=provider)
anthropic_model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none"))
SHORT = {"max_tokens": 16}
LONGER = {"max_tokens": 96}


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    size: Literal["small", "large"]


@case
def run():
    agent = Agent(chat, instructions="You are brief.", model_settings=SHORT)
    first = agent.run_sync("Name a colour.")
    assert first.output
    assert first.usage.output_tokens <= 16
    assert agent.run_sync("Another.", message_history=first.all_messages()).output


@case
async def run_stream():
    async with Agent(chat, model_settings=SHORT).run_stream("Name a colour.") as result:
        assert [text async for text in result.stream_text(delta=True)]


@case
def output_by_tool():
    assert isinstance(Agent(chat, output_type=ToolOutput(City), model_settings=LONGER).run_sync("A city.").output, City)


@case
def output_native():
    agent = Agent(chat, output_type=NativeOutput(City), model_settings=LONGER)
    assert isinstance(agent.run_sync("A city.").output, City)


@case
def output_prompted():
    agent = Agent(chat, output_type=PromptedOutput(City), model_settings=LONGER)
    try:
        assert isinstance(agent.run_sync("A city.").output, City)
    except Exception as error:  # this mode asks for JSON in words; any JSON may come
        expect(error, "output retries", "validation")


@case
async def output_stream():
    async with Agent(chat, output_type=City, model_settings=LONGER).run_stream("A city.") as result:
        assert [part async for part in result.stream_output()]


@case
def tools():
    calls = []
    agent = Agent(chat, output_type=[weather_report], model_settings={**LONGER, "parallel_tool_calls": False})

    @agent.tool_plain
    def weather(city: Literal["Rome", "Oslo"]) -> str:
        """The weather in a city."""
        calls.append(city)
        return "Sunny."

    try:
        assert agent.run_sync("The weather in Rome?", usage_limits=UsageLimits(request_limit=3)).output
    except Exception as error:
        expect(error, "request_limit")  # the model may call the tool again and again


def weather_report(city: Literal["Rome", "Oslo"], weather: Literal["sun", "rain"]) -> str:
    """Report the weather."""
    return f"{weather} in {city}"


@case
def responses():
    assert Agent(responses_model, model_settings=SHORT).run_sync("Name a colour.").output
    for output in (ToolOutput(City), NativeOutput(City)):
        agent = Agent(responses_model, output_type=output, model_settings=LONGER)
        assert isinstance(agent.run_sync("A city.").output, City)


@case
async def responses_stream():
    async with Agent(responses_model, model_settings=SHORT).run_stream("Name a colour.") as result:
        assert [text async for text in result.stream_text(delta=True)]


@case
def anthropic():
    assert Agent(anthropic_model, model_settings=SHORT).run_sync("Name a colour.").output
    agent = Agent(anthropic_model, output_type=ToolOutput(City), model_settings=LONGER)
    assert isinstance(agent.run_sync("A city.").output, City)


@case
def embeddings():
    # A provider of its own: the HTTP client of the other belongs to the event loop of an earlier case.
    own = OpenAIProvider(openai_client=openai.AsyncOpenAI(base_url=V1, api_key="none"))
    made = Embedder(OpenAIEmbeddingModel(MODEL, provider=own)).embed_documents_sync(["a cat", "a dog"])
    assert len(made.embeddings) == 2


main()
