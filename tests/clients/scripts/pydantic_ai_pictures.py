"""pydantic-ai: pictures in prompts and as results of tools, on chats, responses and messages."""

from __future__ import annotations

import base64
from typing import Literal

from harness import MODEL, URL, V1, case, main, picture
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=V1, api_key="none")
chat_model = OpenAIChatModel(MODEL, provider=provider)
responses_model = OpenAIResponsesModel(MODEL, provider=provider)
anthropic_model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none"))
SHORT, LONGER = {"max_tokens": 16}, {"max_tokens": 96}
QUESTION = "What is on the picture?"


class Seen(BaseModel):
    """What is seen."""

    colour: Literal["red", "green", "blue"]
    people: bool


def file(seed: int = 0) -> BinaryContent:
    return BinaryContent(base64.b64decode(picture(seed)), media_type="image/png")


def ask(model):
    """Ask about two pictures, then once more in the same conversation."""
    agent = Agent(model, model_settings=SHORT)
    first = agent.run_sync([QUESTION, file(0), file(1)])
    assert first.usage.input_tokens > 24
    again = agent.run_sync(["And on this one?", file(1)], message_history=first.all_messages())
    assert again.usage.input_tokens > first.usage.input_tokens
    typed = Agent(model, output_type=ToolOutput(Seen), model_settings=LONGER)
    assert isinstance(typed.run_sync([QUESTION, file()]).output, Seen)


@case
def chat():
    ask(chat_model)
    typed = Agent(chat_model, output_type=NativeOutput(Seen), model_settings=LONGER)
    assert isinstance(typed.run_sync([QUESTION, file()]).output, Seen)


@case
def responses():
    ask(responses_model)


@case
def messages():
    ask(anthropic_model)


main()
