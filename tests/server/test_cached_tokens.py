"""Where the cached tokens of a prompt came from, in each API's usage, as clients' libraries read it."""

from __future__ import annotations

from typing import Any

import anthropic
import msgspec
import openai
import pytest

from radixrt.lang.backends.base import Call, Prompt
from radixrt.lang.backends.openai import OpenAI
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish, Timings, Usage
from radixrt.sampling_params import SamplingParams
from tests.server.fake_engine import MODEL, FakeEngine, Sent, answer
from tests.server.helpers import Caller, events

USAGE = Usage(2048, 1, 2047, 2047, {"host": 1024, "disk": 512, "peer": 10})
DETAILS = {"device": 501, "host": 1024, "disk": 512, "peer": 10}


@pytest.fixture(autouse=True)
def fetches(engine: FakeEngine) -> None:
    """Let the engine report tokens of all tiers."""

    def speak(request: Sent) -> list[RequestOutput]:
        return [RequestOutput(request.rid, "hi", b"\1\0\0\0", Finish("stop"), USAGE, Timings())]

    engine.script = speak


def test_openai_chats_and_completions(live: str) -> None:
    with openai.OpenAI(base_url=f"{live}/v1", api_key="none", max_retries=0, timeout=30) as client:
        hello: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        chat = client.chat.completions.create(**hello)
        *_, last = client.chat.completions.create(**hello, stream=True, stream_options={"include_usage": True})
        text = client.completions.create(model=MODEL, prompt="hi")
        for usage in (chat.usage, last.usage, text.usage):
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens == 2047
            assert usage.prompt_tokens_details.cached_tokens_details == DETAILS  # type: ignore[attr-defined]


def test_openai_responses(live: str) -> None:
    with openai.OpenAI(base_url=f"{live}/v1", api_key="none", max_retries=0, timeout=30) as client:
        whole = client.responses.create(model=MODEL, input="hi")
        *_, last = client.responses.create(model=MODEL, input="hi", stream=True)
        for response in (whole, last.response):  # type: ignore[union-attr]
            assert response.usage is not None
            details = response.usage.input_tokens_details
            assert (details.cached_tokens, details.cached_tokens_details) == (2047, DETAILS)  # type: ignore[attr-defined]


def test_anthropic_messages(live: str) -> None:
    with anthropic.Anthropic(base_url=live, api_key="none", max_retries=0, timeout=30) as client:
        hello: Any = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
        usage = client.messages.create(**hello).usage
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (1, 2047)
        assert usage.cached_tokens_details == DETAILS  # type: ignore[attr-defined]
        deltas = [event for event in client.messages.create(**hello, stream=True) if event.type == "message_delta"]
        assert deltas[-1].usage.cached_tokens_details == DETAILS  # type: ignore[attr-defined]


async def test_programs_over_openai(live: str) -> None:
    backend = OpenAI(f"{live}/v1", MODEL, max_retries=0, timeout_s=30)
    prompt = Prompt([], [{"role": "user", "content": "hi"}])
    (output,) = [delta async for delta in backend.generate(Call(prompt, SamplingParams(max_tokens=4)))]
    assert output.usage == Usage(2048, 1, 2047, 0, {"host": 1024, "disk": 512, "peer": 10})


def test_native_answers_and_decisions(engine: FakeEngine, caller: Caller) -> None:
    assert caller.post("/generate", {"text": "a"}).json()["meta_info"]["cached_tokens_details"] == DETAILS
    *_, last = events(caller.post("/generate", {"text": "a", "stream": True}))
    assert last["meta_info"]["cached_tokens_details"] == DETAILS

    def fetched(question: Sent) -> RequestOutput:
        return msgspec.structs.replace(answer(question), usage=Usage(10, 0, 4, 0, {"host": 3}))

    engine.answer = fetched
    question = {"type": "predicate", "instructions": "It is about money."}
    found = caller.post("/v1/decisions", {"model": MODEL, "input": "a", "questions": [question, question]}).json()
    details = found["usage"]["input_tokens_details"]["cached_tokens_details"]
    assert details == {"device": 2, "host": 6, "disk": 0, "peer": 0}


def test_prompts_add_up_and_choices_of_a_prompt_count_once(caller: Caller) -> None:
    details = caller.complete(["a", "b"], n=2).json()["usage"]["prompt_tokens_details"]
    assert details == {"cached_tokens": 4094, "cached_tokens_details": {name: 2 * n for name, n in DETAILS.items()}}


def test_nothing_is_said_if_the_pool_had_all_of_them(engine: FakeEngine, caller: Caller) -> None:
    engine.script = lambda request: [RequestOutput(request.rid, "", b"", Finish("stop"), Usage(9, 0, 8), Timings())]
    assert caller.chat().json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    assert "cached_tokens_details" not in caller.post("/generate", {"text": "a"}).json()["meta_info"]
