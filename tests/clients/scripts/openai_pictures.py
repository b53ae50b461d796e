"""openai-python: pictures in chats, in responses and in decisions."""

from __future__ import annotations

from typing import Literal

import openai
from harness import MODEL, V1, case, main, picture, raises
from pydantic import BaseModel

client = openai.OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)
URLS = [f"data:image/png;base64,{picture(seed)}" for seed in range(2)]
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False, "required": []},
        "strict": True,
    },
}


class Seen(BaseModel):
    colour: Literal["red", "green", "blue"]
    people: bool


def chat_turn(*urls: str, **more: str) -> list[dict]:
    parts = [{"type": "image_url", "image_url": {"url": url, **more}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "What is on the picture?"}, *parts]}]


def response_turn(*urls: str, detail: str = "auto") -> list[dict]:
    parts = [{"type": "input_image", "image_url": url, "detail": detail} for url in urls]
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is on the picture?"}, *parts]}]


@case
def chat():
    one = client.chat.completions.create(model=MODEL, messages=chat_turn(URLS[0], detail="low"), max_tokens=8)
    two = client.chat.completions.create(model=MODEL, messages=chat_turn(*URLS), max_tokens=8)
    assert one.choices[0].message.content is not None
    assert two.usage.prompt_tokens > one.usage.prompt_tokens


@case
def chat_stream():
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=chat_turn(URLS[0]), max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].usage.completion_tokens <= 8


@case
def chat_parse():
    answer = client.chat.completions.parse(model=MODEL, messages=chat_turn(*URLS), response_format=Seen, max_tokens=48)
    assert isinstance(answer.choices[0].message.parsed, Seen)


@case
def chat_continued():
    """The picture stays in the conversation, whose prefix is cached."""
    turns = chat_turn(URLS[0])
    first = client.chat.completions.create(model=MODEL, messages=turns, max_tokens=8)
    turns += [{"role": "assistant", "content": first.choices[0].message.content or ""}, *chat_turn(URLS[1])]
    again = client.chat.completions.create(model=MODEL, messages=turns, max_tokens=8)
    assert again.usage.prompt_tokens_details.cached_tokens > 0


@case
def chat_tool_result():
    turns = [{"role": "user", "content": "Look at the page."}]
    answer = client.chat.completions.create(
        model=MODEL, messages=turns, tools=[LOOK], tool_choice="required", parallel_tool_calls=False, max_tokens=48
    ).choices[0]
    turns.append({"role": "assistant", "tool_calls": [call.model_dump() for call in answer.message.tool_calls]})
    shown = [{"type": "text", "text": "The page:"}, {"type": "image_url", "image_url": {"url": URLS[0]}}]
    turns += [{"role": "tool", "tool_call_id": call.id, "content": shown} for call in answer.message.tool_calls]
    last = client.chat.completions.create(model=MODEL, messages=turns, tools=[LOOK], tool_choice="none", max_tokens=8)
    assert last.choices[0].message.content is not None


@case
def responses():
    first = client.responses.create(
        model=MODEL, instructions="Be brief.", input=response_turn(URLS[0], detail="low"), max_output_tokens=8
    )
    again = client.responses.create(
        model=MODEL, input=response_turn(URLS[1]), previous_response_id=first.id, max_output_tokens=8
    )
    assert again.usage.input_tokens > first.usage.input_tokens
    (item,) = client.responses.input_items.list(first.id).data
    assert item.content[1].image_url == URLS[0]
    client.responses.delete(first.id)


@case
def responses_stream():
    with client.responses.stream(
        model=MODEL, input=response_turn(*URLS), text_format=Seen, max_output_tokens=64
    ) as stream:
        kinds = [event.type for event in stream]
        assert isinstance(stream.get_final_response().output_parsed, Seen)
    assert kinds[-1] == "response.completed"


@case
def responses_tool_result():
    look = {"type": "function", **LOOK["function"]}
    first = client.responses.create(
        model=MODEL, input="Look at the page.", tools=[look], tool_choice="required", parallel_tool_calls=False,
        max_output_tokens=64,
    )  # fmt: skip
    calls = [item for item in first.output if item.type == "function_call"]
    shown = [{"type": "input_text", "text": "The page:"}, {"type": "input_image", "image_url": URLS[0]}]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": shown} for call in calls]
    last = client.responses.create(
        model=MODEL, input=results, previous_response_id=first.id, tools=[look], tool_choice="none", max_output_tokens=8
    )
    assert last.output_text is not None


@case
def errors():
    cut = URLS[0][:-400]
    error = raises(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=MODEL, messages=chat_turn(URLS[0], cut)),
        "messages[0].content[2]",
    )
    assert error.param.startswith("messages[0].content[2]")
    raises(
        openai.BadRequestError,
        lambda: client.responses.create(model=MODEL, input=response_turn("https://pictures.example/a.png")),
        "input[0].content[1]",
    )


main()
