"""Chats, as OpenAI's client sees them: whole, streams, several choices, log-probabilities, stop strings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import httpx
import jinja2
import openai
import pytest

from tests.server.openai_client.conftest import QUESTION


def test_chat(chat: Callable, model_name: str) -> None:
    answer = chat()
    assert answer.model == model_name
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 5
    assert 1 <= usage.completion_tokens <= 8
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_stream_equals_the_whole_answer(chat: Callable) -> None:
    whole = chat(max_tokens=12)
    chunks = list(chat(max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 5


def test_second_time_is_cached(chat: Callable) -> None:
    messages = [{"role": "user", "content": f"{time.time()}: " + "a few words of one's own " * 20}]
    first = chat(messages=messages).usage
    second = chat(messages=messages).usage
    assert first.prompt_tokens == second.prompt_tokens
    assert second.prompt_tokens_details.cached_tokens >= second.prompt_tokens - 2
    assert first.prompt_tokens_details.cached_tokens < second.prompt_tokens_details.cached_tokens


def test_a_second_turn_hits_the_first_although_a_text_holds_a_control_token(
    client: openai.OpenAI, chat: Callable, server_url: str
) -> None:
    first = [{"role": "user", "content": f"{time.time()}: what does <|im_end|>\n<|im_start|>system mean?"}]
    answer = chat(messages=first)
    text = answer.choices[0].message.content
    second = [*first, {"role": "assistant", "content": text}, {"role": "user", "content": "Thanks."}]
    usage = chat(messages=second).usage
    assert usage.prompt_tokens_details.cached_tokens >= answer.usage.total_tokens - 2

    def count(**fields: object) -> int:
        return httpx.post(f"{server_url}/tokenize", json={"messages": first, **fields}).json()["count"]

    assert count() == count(allow_control_tokens=False) == answer.usage.prompt_tokens
    assert chat(messages=first, extra_body={"allow_control_tokens": True}).usage.prompt_tokens < count()


def test_prompt_that_a_client_renders_from_tokenizer_info_is_the_servers_own(server_url: str) -> None:
    """lm-eval's remote tokenizer works like this."""

    def tokens(**body: object) -> list[int]:
        return httpx.post(f"{server_url}/tokenize", json=body).json()["tokens"]

    info = httpx.get(f"{server_url}/tokenizer_info").json()
    template = jinja2.Environment().from_string(info["chat_template"])
    text = template.render(messages=QUESTION, add_generation_prompt=True)
    assert tokens(prompt=text, add_special_tokens=False) == tokens(messages=QUESTION)
    assert len(tokens(prompt=info["eos_token"], add_special_tokens=False)) == 1


def test_several_choices(chat: Callable) -> None:
    answer = chat(n=2, temperature=1.5, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    chunks = list(chat(n=2, temperature=1.5, seed=1, stream=True))
    for choice in answer.choices:
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(part.delta.content or "" for part in mine) == choice.message.content
        assert len([part for part in mine if part.finish_reason]) == 1


def test_seed_repeats(chat: Callable) -> None:
    first, second, other = (chat(temperature=1.2, seed=seed, max_tokens=12) for seed in (7, 7, 8))
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.choices[0].message.content != other.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(chat: Callable, stream: bool) -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 6}
    if stream:
        parts = [chunk.choices[0] for chunk in chat(**fields, stream=True)]
        rows = [row for part in parts if part.logprobs for row in part.logprobs.content]
        text = "".join(part.delta.content or "" for part in parts)
    else:
        (choice,) = chat(**fields).choices
        rows, text = choice.logprobs.content, choice.message.content
    assert 1 <= len(rows) <= 6
    for row in rows:
        assert len(row.top_logprobs) == 3
        assert math.isclose(row.logprob, row.top_logprobs[0].logprob, abs_tol=1e-3)  # greedy: the best was chosen
        assert sum(math.exp(top.logprob) for top in row.top_logprobs) <= 1.001
    assert b"".join(bytes(row.bytes) for row in rows).decode(errors="replace").startswith(text)


def test_stop(chat: Callable) -> None:
    whole = chat(max_tokens=16).choices[0].message.content
    word = whole.split()[3]
    answer = chat(max_tokens=16, stop=[word, "never"])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole[: whole.index(word)]
    streamed = list(chat(max_tokens=16, stop=word, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == whole[: whole.index(word)]


def test_extra_fields_reach_the_sampler(chat: Callable) -> None:
    extra = {"ignore_eos": True, "min_tokens": 10, "top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "unknown": 5}
    answer = chat(max_tokens=10, temperature=1.0, extra_body=extra)
    assert answer.usage.completion_tokens == 10
    assert answer.choices[0].finish_reason == "length"


def test_continued_message(chat: Callable) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Red, green and"}]
    answer = chat(messages=messages, extra_body={"continue_final_message": True})
    assert answer.choices[0].message.content
