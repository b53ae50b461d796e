"""`rt.OpenAI` with the real `openai` package against the real server, which enforces constraints."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from radixrt.client.collector import OutputCollector
from radixrt.errors import ConfigError, EngineError, RequestError
from radixrt.lang.backends.base import Backend, Call, EmbedCall, Prompt, Unsupported
from radixrt.lang.backends.openai import OpenAI
from radixrt.lang.backends.openai_schema import response_format
from radixrt.messages.client import RequestOutput
from radixrt.python_types import parse
from radixrt.sampling_params import SamplingParams
from tests.server_process import wait_open

ASK = Prompt([], [{"role": "user", "content": "Name three colours."}])


@dataclass
class Person:
    name: str
    age: int


@pytest.fixture
def backend(server_url: str, model_name: str) -> OpenAI:
    return OpenAI(f"{server_url}/v1", model_name, max_retries=0, timeout_s=60)


async def deltas(
    backend: Backend, prompt: Prompt = ASK, *, stream: bool = False, **sampling: Any
) -> list[RequestOutput]:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling})
    return [delta async for delta in backend.generate(Call(prompt, params, stream=stream))]


async def generate(backend: Backend, prompt: Prompt = ASK, **sampling: Any) -> RequestOutput:
    (delta,) = await deltas(backend, prompt, **sampling)
    assert delta.finish is not None
    assert delta.usage is not None
    return delta


def ending(text: str) -> Prompt:
    return Prompt([], [*(ASK.messages or ()), {"role": "assistant", "content": text}], open_message=True)


async def test_text(backend: OpenAI) -> None:
    result = await generate(backend)
    assert result.text
    assert result.token_ids == []
    assert result.prompt_ids is None
    assert result.finish_reason in ("stop", "length")
    assert result.usage.prompt_tokens > 5
    assert 1 <= result.usage.completion_tokens <= 8
    again = await generate(backend)
    assert again.text == result.text
    assert again.usage.cached_tokens > 0


async def test_a_stream_is_the_same_text(backend: OpenAI) -> None:
    whole = await generate(backend)
    pieces = await deltas(backend, stream=True)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert len(pieces) > 2
    collector = OutputCollector()
    *_, merged = [collector.add(piece) for piece in pieces]
    assert merged is not None
    assert merged.text == whole.text
    assert merged.usage is not None
    assert whole.usage is not None
    assert merged.usage.completion_tokens == whole.usage.completion_tokens


async def test_an_open_message_without_text_is_the_servers_own_beginning(backend: OpenAI) -> None:
    assert (await generate(backend, ending(""))).text == (await generate(backend)).text


async def test_openai_has_stops_and_logprobs(backend: OpenAI) -> None:
    result = await generate(backend, stop=("\n",), logprobs=2, max_tokens=16)
    assert "\n" not in result.text
    assert result.logprobs is not None
    assert len(result.logprobs[0].top) == 2
    assert result.logprobs[0].logprob == pytest.approx(result.logprobs[0].top[0].logprob)


# --- typed answers ---


@pytest.mark.parametrize("kind", [int, float, bool, Literal["red", "blue"], list[int], Person])
async def test_types(backend: OpenAI, kind: Any) -> None:
    result = await generate(backend, json_schema=kind, max_tokens=14)
    value = parse(kind, result.text)
    assert (
        value in ("red", "blue") if kind == Literal["red", "blue"] else isinstance(value, Person | list | int | float)
    )
    assert result.constraint is not None


async def test_choices_come_back_as_their_characters(backend: OpenAI) -> None:
    choices = ('say "hi"', "two\nlines")
    assert (await generate(backend, choices=choices, max_tokens=10)).text in choices


async def test_an_object_streams_and_what_is_not_one_comes_whole(backend: OpenAI) -> None:
    pieces = await deltas(backend, stream=True, json_schema=Person, max_tokens=20)
    assert len(pieces) > 2
    assert set(json.loads("".join(piece.text for piece in pieces))) == {"name", "age"}
    (piece,) = await deltas(backend, stream=True, json_schema=int, max_tokens=8)
    assert isinstance(json.loads(piece.text), int)


def test_formats() -> None:
    def form(**constraint: Any) -> dict[str, Any]:
        made = SamplingParams(**constraint).constraint
        assert made is not None
        return response_format(made).body["json_schema"]

    assert form(json_schema=Person)["strict"] is True
    assert form(json_schema={"type": "object", "properties": {"a": {"type": "integer"}}})["strict"] is False
    nested = form(json_schema={"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "integer"}}})
    assert nested["schema"] == {
        "type": "object",
        "$defs": {"a": {"type": "integer"}},
        "properties": {"value": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
        "required": ["value"],
        "additionalProperties": False,
    }
    with pytest.raises(Unsupported, match="refers to itself as '#'"):
        form(json_schema={"type": "array", "items": {"$ref": "#"}})


# --- what cannot be done, by name ---


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"regex": "[ab]+"}, "regular expression .*regex="),
        ({"ebnf": 'root ::= "a"'}, "grammar .*ebnf="),
        ({"structural_tag": "{}"}, "structural_tag="),
        ({"top_k": 3}, r'top_k .*extensions=\["top_k"\]'),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"return_hidden_states": "last"}, "return_hidden_states"),
    ],
)
async def test_refusals(backend: OpenAI, sampling: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        await deltas(backend, **sampling)


async def test_refused_prompts_and_operations(backend: OpenAI) -> None:
    with pytest.raises(Unsupported, match="continue_final_message"):
        await generate(backend, ending("The colours are"))
    with pytest.raises(Unsupported, match="outside of any role"):
        await generate(backend, Prompt(["Once"]))
    with pytest.raises(Unsupported, match='select="constrained"'):
        await backend.select(ASK, ["a", "b"], "token_length_normalized", None)
    with pytest.raises(Unsupported, match="token ids"):
        await backend.tokenize(["a"])
    assert await backend.chat_template() is None
    await backend.release("p")


async def test_extensions(server_url: str, model_name: str) -> None:
    names = ["top_k", "continue_final_message", "min_tokens", "ignore_eos"]
    backend = OpenAI(f"{server_url}/v1", model_name, extensions=names)
    whole = await generate(backend)
    begun, rest = whole.text[: whole.text.index(" ", 8)], whole.text[whole.text.index(" ", 8) :]
    assert (await generate(backend, ending(begun), top_k=1)).text.startswith(rest)
    assert (await generate(backend, ignore_eos=True, max_tokens=13)).usage.completion_tokens == 13
    with pytest.raises(ConfigError, match="extensions: 'top_kk'"):
        OpenAI(server_url, model_name, extensions=["top_kk"])


async def test_select_where_the_user_asked_for_it(server_url: str, model_name: str) -> None:
    backend = OpenAI(f"{server_url}/v1", model_name, select="constrained")
    decision = await backend.select(ASK, ["red", "a shade of blue"], "token_length_normalized", None)
    assert decision.choice in (0, 1)
    assert decision.probabilities == decision.logprobs == []


# --- errors ---


async def test_a_refused_request_keeps_its_field(backend: OpenAI, server_url: str) -> None:
    with pytest.raises(RequestError, match="top_logprobs must be between 0 and 20") as caught:
        await generate(backend, logprobs=21)
    assert (caught.value.param, caught.value.status) == ("top_logprobs", 400)
    with pytest.raises(RequestError, match="'nobody' does not exist") as caught:
        await generate(OpenAI(f"{server_url}/v1", "nobody"))
    assert caught.value.code == "model_not_found"


async def test_no_server() -> None:
    with pytest.raises(EngineError, match=r"cannot reach http://127.0.0.1:9/v1.*is the server running"):
        await generate(OpenAI("http://127.0.0.1:9/v1", "m", max_retries=0))


def test_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="name of a model"):
        OpenAI("http://127.0.0.1:9/v1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAI(model="m")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ConfigError, match="pip install openai"):
        OpenAI("http://127.0.0.1:9/v1", "m")


def test_each_event_loop_has_its_own_connections(backend: OpenAI) -> None:
    first = asyncio.run(generate(backend))
    assert asyncio.run(generate(backend)).text == first.text


async def test_cancelling_ends_the_request(backend: OpenAI, server_url: str, model_name: str) -> None:
    names = ["ignore_eos"]
    endless = OpenAI(f"{server_url}/v1", model_name, extensions=names)
    task = asyncio.create_task(generate(endless, ignore_eos=True, max_tokens=4000))
    await asyncio.to_thread(wait_open, server_url, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_open, server_url, 0)


async def test_embeddings(server_url: str, model_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.lang.backends.openai.EMBEDDED_AT_ONCE", 2)
    options: dict[str, Any] = {"embedding_model": model_name, "extensions": ["normalize", "prompt"]}
    backend = OpenAI(f"{server_url}/v1", "another", max_retries=0, timeout_s=60, **options)
    found = await backend.embed(EmbedCall(["one", "two", "three"], dimensions=16, normalize=False, prompt="a "))
    assert found.vectors.shape == (3, 16)
    assert found.usage.prompt_tokens > 3
    with pytest.raises(Unsupported, match=r'prompt_name is not part .*extensions=\["prompt_name"\]'):
        await backend.embed(EmbedCall(["one"], prompt_name="query"))
    with pytest.raises(RequestError):
        await backend.embed(EmbedCall(["one"], dimensions=10**6))
