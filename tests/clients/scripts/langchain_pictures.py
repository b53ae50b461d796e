"""LangChain: pictures through ChatOpenAI on chats and on responses, and through ChatAnthropic."""

from __future__ import annotations

from typing import Literal

from harness import MODEL, URL, V1, case, main, picture
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

SERVER = {"base_url": V1, "api_key": "none", "model": MODEL, "max_retries": 0, "max_tokens": 64}
chat = ChatOpenAI(**SERVER, stream_usage=True)
responses = ChatOpenAI(**SERVER, use_responses_api=True)
claude = ChatAnthropic(base_url=URL, api_key="none", model=MODEL, max_tokens=64, max_retries=0)


class Seen(BaseModel):
    """What is seen."""

    colour: Literal["red", "green", "blue"]
    people: bool


@tool
def look(page: Literal["first", "last"]) -> str:
    """Take a screenshot."""
    return page


def standard(seed: int = 0) -> dict:
    """LangChain's own content block, which it converts for each provider."""
    return {"type": "image", "base64": picture(seed), "mime_type": "image/png"}


def by_url(seed: int = 0) -> dict:
    """OpenAI's content part, which LangChain converts for other providers too."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture(seed)}", "detail": "low"}}


def question(*blocks: dict) -> list[HumanMessage]:
    return [HumanMessage([{"type": "text", "text": "What is on the picture?"}, *blocks])]


def ask(model, short):
    answer = model.invoke(question(standard(), standard(1)), **short)
    assert answer.usage_metadata["output_tokens"] <= 8
    assert model.invoke(question(by_url()), **short).usage_metadata["input_tokens"] > 12
    assert list(model.stream(question(standard()), **short))
    assert isinstance(model.with_structured_output(Seen).invoke(question(standard())), Seen)


def ask_with_result(model, none):
    """A tool answers with a picture."""
    asked = HumanMessage("Look at the first page.")
    answer = model.bind_tools([look], tool_choice="look").invoke([asked])
    shown = [{"type": "text", "text": "The page:"}, standard()]
    results = [ToolMessage(shown, tool_call_id=call["id"]) for call in answer.tool_calls]
    assert results
    assert model.bind_tools([look], tool_choice=none).invoke([asked, answer, *results]).tool_calls == []


@case
def openai_chat():
    ask(chat, {"max_tokens": 8})


@case
def openai_chat_tool_result():
    ask_with_result(chat, "none")


@case
def openai_responses():
    # On responses, LangChain prefers the model's own max_tokens to that of a call.
    ask(responses, {"max_completion_tokens": 8})


@case
def openai_responses_tool_result():
    ask_with_result(responses, "none")


@case
def anthropic():
    ask(claude, {"max_tokens": 8})


@case
def anthropic_tool_result():
    ask_with_result(claude, {"type": "none"})  # "none" would be the name of a tool


main()
