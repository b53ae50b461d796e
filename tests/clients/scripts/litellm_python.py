"""LiteLLM: its providers openai, hosted_vllm and anthropic."""

from __future__ import annotations

import json
import os
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched

import litellm
from harness import MODEL, URL, V1, case, main, raises
from pydantic import BaseModel, Field

litellm.suppress_debug_info = True
QUESTION = [{"role": "user", "content": "Name a city."}]
OPENAI = {"model": f"openai/{MODEL}", "api_base": V1, "api_key": "none", "max_retries": 0, "timeout": 300}
VLLM = {**OPENAI, "model": f"hosted_vllm/{MODEL}"}
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}}


class City(BaseModel):
    name: str = Field(max_length=12)
    size: Literal["small", "large"]


@case
def completion():
    for provider in (OPENAI, VLLM):
        answer = litellm.completion(**provider, messages=QUESTION, max_tokens=8, temperature=0.5)
        assert answer.choices[0].message.content


@case
def completion_stream():
    for provider in (OPENAI, VLLM):
        chunks = list(
            litellm.completion(
                **provider, messages=QUESTION, max_tokens=8, stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert litellm.stream_chunk_builder(chunks).usage.completion_tokens <= 8


@case
async def completion_async():
    answer = await litellm.acompletion(**OPENAI, messages=QUESTION, max_tokens=4)
    assert answer.choices[0].message.content


@case
def structured():
    for provider in (OPENAI, VLLM):
        answer = litellm.completion(**provider, messages=QUESTION, max_tokens=64, response_format=City)
        assert City.model_validate_json(answer.choices[0].message.content)


@case
def tools():
    for provider in (OPENAI, VLLM):
        fields = {**provider, "tools": [TOOL], "max_tokens": 64}
        answer = litellm.completion(messages=QUESTION, tool_choice="required", **fields).choices[0].message
        assert json.loads(answer.tool_calls[0].function.arguments)["city"] in ("Rome", "Oslo")
        results = [{"role": "tool", "tool_call_id": call.id, "content": "Sunny."} for call in answer.tool_calls]
        turns = [*QUESTION, answer.model_dump(), *results]
        assert litellm.completion(messages=turns, tool_choice="none", **fields).choices[0].message.content is not None


@case
def reasoning_effort():
    answer = litellm.completion(
        **VLLM, messages=QUESTION, max_tokens=8, reasoning_effort="low", allowed_openai_params=["reasoning_effort"]
    )
    assert answer.choices[0].message.content


@case
def text_completion():
    assert litellm.text_completion(**OPENAI, prompt="One, two,", max_tokens=4).choices[0].text
    text = {**OPENAI, "model": f"text-completion-openai/{MODEL}"}
    assert list(litellm.text_completion(**text, prompt="One, two,", max_tokens=4, stream=True))


@case
def embedding():
    for provider in (OPENAI, VLLM):
        answer = litellm.embedding(**provider, input=["a cat", "a dog"])
        assert len(answer.data) == 2
    assert litellm.embedding(**OPENAI, input=["a cat"], encoding_format="base64").data


@case
def responses():
    answer = litellm.responses(**OPENAI, input="Name a city.", max_output_tokens=16)
    assert answer.output[0].content[0].text
    events = list(litellm.responses(**OPENAI, input="Name a city.", max_output_tokens=16, stream=True))
    assert events[-1].type in ("response.completed", "response.incomplete")


@case
def anthropic():
    fields = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none", "max_retries": 0, "max_tokens": 64}
    assert litellm.completion(**fields, messages=QUESTION).choices[0].message.content
    assert list(litellm.completion(**fields, messages=QUESTION, stream=True))
    answer = litellm.completion(**fields, messages=QUESTION, tools=[TOOL], tool_choice="required")
    assert answer.choices[0].message.tool_calls


@case
def rerank():
    # A generative model scores no documents; the refusal must say so.
    fields = {"model": f"hosted_vllm/{MODEL}", "api_base": URL, "api_key": "none"}
    raises(Exception, lambda: litellm.rerank(**fields, query="a", documents=["b", "c"]), "not_a_scoring_model")


@case
def errors():
    raises(litellm.NotFoundError, lambda: litellm.completion(**{**OPENAI, "model": "openai/gpt-x"}, messages=QUESTION))
    long = [{"role": "user", "content": "\U00012000" * 2_500}]  # a sign of four bytes, each of them a token
    raises(litellm.ContextWindowExceededError, lambda: litellm.completion(**OPENAI, messages=long))


main()
