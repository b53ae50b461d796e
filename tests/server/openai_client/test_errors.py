"""Errors, bad input, and clients that leave."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import openai
import pytest

from tests.server.openai_client.conftest import QUESTION


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_openai_exceptions(chat: Callable, client: openai.OpenAI, stream: bool) -> None:
    limit = client.models.list().data[0].max_model_len
    with pytest.raises(openai.BadRequestError) as caught:
        chat(messages=[{"role": "user", "content": "word " * (limit + 10)}], stream=stream)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(temperature=-1, stream=stream)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as caught:
        chat(model="gpt-4", stream=stream)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(response_format={"type": "yaml"}, stream=stream)
    assert caught.value.param == "response_format"


def test_a_deadline_before_the_first_token_is_an_error(chat: Callable, idle: Callable[[], None]) -> None:
    chat(max_tokens=1)  # gauges of the scheduler are there after its first request
    with pytest.raises(openai.APIError, match=r"timeout.*--request-timeout-s.*max_tokens"):
        chat(max_tokens=1000, extra_body={"timeout": 1e-6, "ignore_eos": True})
    idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_an_answer_with_the_text_so_far(
    chat: Callable, idle: Callable[[], None], *, stream: bool
) -> None:
    # The shortest of these times in which this machine makes a token.
    for timeout_s in (0.5, 2.0, 8.0, 30.0):
        fields = {"max_tokens": 7_000, "stream": stream, "extra_body": {"timeout": timeout_s, "ignore_eos": True}}
        try:
            answer = chat(**fields)
            choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
            break
        except openai.APIError as error:
            assert "deadline" in str(error)  # noqa: PT017 (a slow machine: another try)
    parts = [(one.delta if stream else one.message).content or "" for one in choices]
    assert "".join(parts)
    assert choices[-1].finish_reason == "length"
    assert choices[-1].model_extra["stop_reason"] == "timeout"
    idle()


@pytest.mark.parametrize("n", [1, 3])
def test_closing_a_stream_aborts(chat: Callable, idle: Callable[[], None], n: int) -> None:
    stream = chat(max_tokens=4000, n=n, stream=True, extra_body={"ignore_eos": True})
    for _, _chunk in zip(range(5), stream):
        pass
    stream.close()
    idle()


def test_leaving_without_a_stream_aborts(server_url: str, idle: Callable[[], None]) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server_url}/v1/completions", json=body, timeout=httpx.Timeout(60, read=0.5))
    idle()


def test_abort_by_id(chat: Callable, server_url: str) -> None:
    stream = chat(max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    chunks = [next(iter(stream))]
    assert httpx.post(f"{server_url}/abort", json={"rid": chunks[0].id}, timeout=60).json() == {"aborted": 1}
    chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"


TOOL = {"type": "function", "function": {"name": "f"}}
TEXT_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
BAD_BODIES: list[tuple[str, str, object]] = [
    ("empty prompt", "/v1/completions", {"prompt": ""}),
    ("no prompt", "/v1/completions", {"prompt": []}),
    ("no messages", "/v1/chat/completions", {"messages": []}),
    ("ids out of range", "/v1/completions", {"prompt": [10**6]}),
    ("ids negative", "/generate", {"input_ids": [-1]}),
    ("ids of a million digits", "/generate", b'{"input_ids": [' + b"9" * 10**6 + b"]}"),
    ("too long", "/v1/completions", {"prompt": "word " * 200_000}),
    ("too many ids", "/v1/completions", {"prompt": [5] * 1_000_000}),
    ("NaN", "/v1/completions", b'{"prompt": "x", "temperature": NaN}'),
    ("wrong type", "/v1/completions", {"prompt": "x", "max_tokens": "many"}),
    ("wrong types", "/v1/chat/completions", {"messages": {"role": 5}}),
    ("invalid UTF-8", "/v1/completions", b'{"prompt": "\xff\xfe"}'),
    ("not JSON", "/v1/completions", b"prompt=x"),
    ("deep", "/v1/completions", b'{"prompt": "x", "user": ' + b"[" * 500_000),
    ("10 MB", "/v1/completions", {"prompt": "x" * 10_000_000}),
    ("stop list", "/v1/completions", {"prompt": "x", "stop": ["x"] * 10_000}),
    ("n of a million", "/v1/completions", {"prompt": "x", "n": 1_000_000}),
    ("a billion top_logprobs", "/v1/chat/completions", {"messages": QUESTION, "logprobs": True, "top_logprobs": 10**9}),
    ("a billion prompt_logprobs", "/generate", {"text": "x", "sampling_params": {"prompt_logprobs": 10**9}}),
    ("logit_bias out of range", "/v1/completions", {"prompt": "x", "logit_bias": {"1000000": 5}}),
    ("stop ids out of range", "/v1/completions", {"prompt": "x", "stop_token_ids": [10**6]}),
    ("a schema of 10 MB", "/v1/completions", {"prompt": "x", "json_schema": {"const": "x" * 10_000_000}}),
    ("a schema of 5 MB", "/v1/completions", {"prompt": "x", "json_schema": {"const": "x" * 5_000_000}}),
    ("a deep schema", "/v1/completions", b'{"prompt": "x", "json_schema": ' + b'{"not":' * 500 + b"{}" + b"}" * 501),
    ("a bottomless schema", "/v1/completions", b'{"prompt": "x", "json_schema": ' + b'{"not":' * 100_000),
    ("an empty recursion", "/v1/completions", {"prompt": "x", "json_schema": {"$ref": "#"}}),
    ("a billion items", "/v1/completions", {"prompt": "x", "json_schema": {"type": "array", "minItems": 10**9}}),
    ("a long regex", "/v1/completions", {"prompt": "x", "regex": "a" * 20_000}),
    ("many choices", "/v1/completions", {"prompt": "x", "choice": [str(i) for i in range(20_000)]}),
    ("two constraints", "/v1/completions", {"prompt": "x", "choice": ["a"], "regex": "a"}),
    ("a bad structural tag", "/v1/completions", {"prompt": "x", "structural_tag": {"format": {"type": "or"}}}),
    ("many tools", "/v1/chat/completions", {"messages": QUESTION, "tools": [TOOL] * 300}),
    ("a tool that takes a text", "/v1/chat/completions", {"messages": QUESTION, "tools": [TEXT_TOOL]}),
    ("unknown role", "/v1/chat/completions", {"messages": [{"role": "x", "content": "y"}]}),
]


@pytest.mark.parametrize(("path", "body"), [row[1:] for row in BAD_BODIES], ids=[row[0] for row in BAD_BODIES])
def test_bad_input_is_refused_and_the_server_goes_on(
    complete: Callable, idle: Callable[[], None], server_url: str, path: str, body: object
) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = httpx.post(f"{server_url}{path}", content=raw, headers={"content-type": "application/json"}, timeout=60)
    assert response.status_code in (400, 413), response.text
    assert response.json()["error"]["message"]
    assert complete(max_tokens=2).choices[0].text
    idle()


def test_odd_but_harmless_input_is_served(complete: Callable, server_url: str) -> None:
    assert complete("\0\ufffd\u2028é🙂", max_tokens=2).choices[0].finish_reason
    assert complete("x", max_tokens=2, extra_body={"nobody_knows_this": [1, {}]}).choices[0].finish_reason
    assert complete("x", max_tokens=2, logit_bias={"5": -100}, user="u").choices[0].finish_reason
    assert httpx.post(f"{server_url}/abort", json={"rid": "nobody"}, timeout=60).json() == {"aborted": 0}
    assert httpx.get(f"{server_url}/health", timeout=60).status_code == 200
