"""`rt.Endpoint` on the real server, compared with the same calls by other interfaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

import radixrt as rt
from radixrt.client.collector import OutputCollector
from radixrt.errors import EngineError, RequestError
from radixrt.lang.backends.base import Backend, Call, EmbedCall, Prompt
from radixrt.lang.backends.token_backend import Endpoint
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import ProgramHint, TemplateText
from radixrt.sampling_params import SamplingParams
from tests.server_process import wait_open

ASK = Prompt(
    [TemplateText("<|im_start|>user\n"), "Name three colours.", TemplateText("<|im_end|>\n<|im_start|>assistant\n")]
)


@pytest.fixture
async def backend(server_url: str) -> AsyncIterator[Endpoint]:
    made = Endpoint(f"{server_url}/v1", timeout_s=60)
    yield made
    await made.aclose()


async def deltas(
    backend: Backend, prompt: Prompt = ASK, *, stream: bool = False, timeout_s: float | None = None, **sampling: Any
) -> list[RequestOutput]:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling})
    hint = ProgramHint("p-1", "0/1", fork_len=5, siblings=2, will_continue=True)
    call = Call(prompt, params, stream=stream, timeout_s=timeout_s, hint=hint)
    return [delta async for delta in backend.generate(call)]


async def generate(backend: Backend, prompt: Prompt = ASK, **options: Any) -> RequestOutput:
    found = await deltas(backend, prompt, **options)
    result = collected(found)
    assert "".join(delta.text for delta in found) == result.text
    assert [token for delta in found for token in delta.token_ids] == result.token_ids
    return result


def collected(found: list[RequestOutput]) -> RequestOutput:
    """The whole output; only the last increment ends it."""
    collector = OutputCollector()
    *before, result = [collector.add(output) for output in found]
    assert not any(before)
    assert result is not None
    assert result.usage is not None
    return result


async def test_a_call(backend: Endpoint, server_url: str) -> None:
    result = await generate(backend)
    messages = [{"role": "user", "content": "Name three colours."}]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    async with httpx.AsyncClient(timeout=60) as client:
        chat = (await client.post(f"{server_url}/v1/chat/completions", json=body)).json()
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    with_system = [TemplateText(f"<|im_start|>system\n{system}<|im_end|>\n"), *ASK.parts]
    assert (await generate(backend, Prompt(with_system))).text == chat["choices"][0]["message"]["content"]
    assert result.prompt_ids is not None
    assert result.usage.prompt_tokens == len(result.prompt_token_ids)
    assert result.token_ids is not None
    assert result.usage.completion_tokens == len(result.token_ids)
    assert result.timings.decode_s > 0


async def test_a_stream_is_the_same(backend: Endpoint) -> None:
    whole = await generate(backend, logprobs=1)
    pieces = await deltas(backend, stream=True, logprobs=1)
    assert len(pieces) > 2
    result = collected(pieces)
    assert (result.text, result.token_ids, result.prompt_token_ids) == (
        whole.text,
        whole.token_ids,
        whole.prompt_token_ids,
    )
    assert result.logprobs is not None
    assert whole.logprobs is not None
    assert [row.token_id for row in result.logprobs] == [row.token_id for row in whole.logprobs]
    assert len(result.logprobs[0].top) == 1


async def test_hidden_states(backend: Endpoint) -> None:
    last = await generate(backend, return_hidden_states="last")
    pieces = await deltas(backend, stream=True, return_hidden_states="prompt")
    whole = collected(pieces)
    assert last.hidden_states is not None
    assert whole.hidden_states is not None
    found = whole.hidden_states.array
    assert found.shape == (len(whole.prompt_token_ids), last.hidden_states.size)
    assert last.hidden_states.array[0] == pytest.approx(found[-1], abs=0.05)  # bfloat16, in other batches


async def test_embeddings(backend: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.tasks.run.ROWS_PER_REQUEST", 2)
    texts = ["one", "two", "a third"]
    found = await backend.embed(EmbedCall(texts, dimensions=32))
    assert found.vectors.shape == (3, 32)
    assert np.linalg.norm(found.vectors, axis=1) == pytest.approx([1.0] * 3, abs=1e-5)
    assert found.usage.prompt_tokens == sum([len(await backend.tokenize([text])) for text in texts])
    with pytest.raises(RequestError) as raised:
        await backend.embed(EmbedCall(texts, prompt_name="query"))
    assert raised.value.param == "prompt_name"


async def test_going_on_from_token_ids_is_a_hit(backend: Endpoint) -> None:
    first = await generate(backend)
    assert first.prompt_ids is not None
    assert first.token_ids is not None
    ids = first.prompt_token_ids + first.token_ids
    second = await generate(backend, Prompt([ids, TemplateText("<|im_end|>\n")]))
    assert second.prompt_ids is not None
    assert second.prompt_token_ids[: len(ids)] == ids
    assert second.usage.cached_tokens >= len(ids) - 1


async def test_constraints(backend: Endpoint) -> None:
    result = await generate(backend, regex="(red|green|blue){3}")
    assert len(result.text) >= 9
    assert result.constraint is not None
    assert result.constraint.backend
    typed = await generate(backend, json_schema={"type": "object", "required": ["a"], "additionalProperties": False,
                                                 "properties": {"a": {"type": "integer"}}}, max_tokens=5)  # fmt: skip
    assert typed.forced_close
    assert typed.text.startswith('{"a":')


async def test_max_tokens_up_to_the_context(backend: Endpoint) -> None:
    result = await generate(backend, max_tokens=None, stop=(".",))
    assert result.finish_reason == "stop"
    assert result.matched_stop == "."


async def test_control_tokens_in_a_users_text_are_text(backend: Endpoint) -> None:
    plain = await generate(backend, Prompt(["<|im_end|>"]), max_tokens=1)
    control = await generate(backend, Prompt([TemplateText("<|im_end|>")]), max_tokens=1)
    assert plain.prompt_ids is not None
    assert control.prompt_ids is not None
    assert len(plain.prompt_token_ids) > len(control.prompt_token_ids)


async def test_the_tokens_that_are_in_the_text(backend: Endpoint) -> None:
    whole = await generate(backend, max_tokens=10)
    stop = whole.text[9:14]
    cut = await generate(backend, max_tokens=10, stop=stop)
    assert cut.matched_stop == stop
    assert cut.token_ids is not None
    assert cut.kept is not None
    assert cut.kept < len(cut.token_ids)
    again = await generate(backend, Prompt([cut.token_ids[: cut.kept], cut.tail]), max_tokens=1)
    assert again.prompt_ids is not None
    async with httpx.AsyncClient(timeout=60) as client:
        url = backend.name.removeprefix("Endpoint ")
        text = (await client.post(f"{url}/detokenize", json={"tokens": again.prompt_token_ids})).json()["prompt"]
    assert text == cut.text
    for options in ({"stop": stop, "include_stop_str_in_output": True, "max_tokens": 10}, {"max_tokens": 3}):
        result = await generate(backend, **options)
        assert (result.kept, result.tail) == (len(result.token_ids or ()), "")
    ended = await generate(backend, stop_token_ids=(whole.token_ids or ())[5:6])
    assert ended.kept == len(ended.token_ids or ()) - 1


async def test_select(backend: Endpoint) -> None:
    prompt = Prompt(["The sky is blue and the grass is"])
    decision = await backend.select(prompt, [" green", " rectangular", " x"], "token_length_normalized", None)
    assert decision.choice == 0
    assert sum(decision.probabilities) == pytest.approx(1.0)
    assert decision.prompt_token_ids
    assert decision.kept == len(decision.prompt_token_ids)
    assert len(decision.token_ids) == 3
    other = await backend.select(prompt, [" green", " x"], "unconditional_likelihood_normalized", None)
    assert other.logprobs[0] == pytest.approx(decision.logprobs[0], abs=1e-3)
    with pytest.raises(RequestError, match="choices"):
        await backend.select(prompt, ["a", "a"], "greedy", None)


async def test_template_and_tokens(backend: Endpoint) -> None:
    template = await backend.chat_template()
    assert template is not None
    assert "<|im_start|>" in template["templates"]["default"]
    ids = await backend.tokenize([TemplateText("<|im_start|>"), "a b"])
    assert ids == [1, *(await backend.tokenize([TemplateText("a b")]))]


@rt.function(temperature=0)
def judge(s: rt.State, essay: str) -> None:
    s += rt.system("You grade essays.") + rt.user(essay)
    views = s.fork(["clarity", "style"])
    for view, topic in views.items():
        view += rt.user(f"Comment on its {topic}.") + rt.assistant(rt.gen("note", max_tokens=5, stop=","))
    s += rt.user("Notes:\n" + rt.join(views, "note")) + rt.assistant(rt.select("grade", ["pass", "fail"]))
    s += rt.user("A number?") + rt.assistant(rt.gen("number", int))


def test_a_program(server_url: str) -> None:
    """The same program twice: equal outputs, and the second time all of each prompt but its last token is reused."""
    with httpx.Client(timeout=60) as client:
        client.post(f"{server_url}/flush_cache").raise_for_status()
    first = judge.run("The sea is wide.", backend=Endpoint(server_url))
    again = judge.run("The sea is wide.", backend=server_url)
    assert again.text() == first.text()
    assert isinstance(again["number"], int)
    for call, before in zip(again.log.calls, first.log.calls, strict=True):
        assert (call.text, call.prompt_ids) == (before.text, before.prompt_ids)
    calls = {call.name: call for call in first.log.calls}
    grade, number = calls["grade"], calls["number"]
    assert grade.prompt_ids is not None
    assert grade.output_ids is not None
    assert number.prompt_ids is not None
    begins = grade.prompt_ids + grade.output_ids
    assert number.prompt_ids[: len(begins)] == begins
    assert again.usage.cached_tokens > first.usage.cached_tokens


# --- errors and ends ---


async def test_a_refused_call_names_its_field(backend: Endpoint) -> None:
    with pytest.raises(RequestError, match="regex") as caught:
        await generate(backend, regex="(")
    assert (caught.value.status, caught.value.param) == (400, "regex")
    with pytest.raises(RequestError, match="regex"):
        await generate(backend, regex="(", stream=True)
    other = Endpoint(backend.name.removeprefix("Endpoint "), model="gpt-9")
    with pytest.raises(RequestError, match="'gpt-9' does not exist"):
        await generate(other)


async def test_a_call_that_takes_too_long(backend: Endpoint) -> None:
    with pytest.raises(RequestError) as caught:
        await generate(backend, max_tokens=4000, ignore_eos=True, timeout_s=0.3)
    assert caught.value.status == 408


async def test_cancelling_frees_the_server(backend: Endpoint, server_url: str) -> None:
    calls = [asyncio.create_task(generate(backend, max_tokens=4000, ignore_eos=True, stream=s)) for s in (True, False)]
    await asyncio.to_thread(wait_open, server_url, 2)
    for call in calls:
        call.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*calls, return_exceptions=True))
    await asyncio.to_thread(wait_open, server_url, 0)


async def test_leaving_a_stream_early_frees_the_server(backend: Endpoint, server_url: str) -> None:
    stream = backend.generate(Call(ASK, SamplingParams(max_tokens=4000, ignore_eos=True), stream=True))
    async for _ in stream:
        break
    await stream.aclose()
    await asyncio.to_thread(wait_open, server_url, 0)


async def test_many_at_once(backend: Endpoint) -> None:
    prompts = [Prompt([f"{i} is a number, and"]) for i in range(24)]
    results = await asyncio.gather(*(generate(backend, prompt, max_tokens=3) for prompt in prompts))
    assert [await generate(backend, prompt, max_tokens=3) for prompt in prompts[:3]] != []
    assert len({tuple(result.prompt_token_ids) for result in results}) == 24


async def test_no_server_and_another_kind_of_server() -> None:
    with pytest.raises(EngineError, match=r"cannot connect to 127.0.0.1:9: "):
        await generate(Endpoint("http://127.0.0.1:9"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            RequestError, match=r"/generate answered with status 404: not found; is it a radixrt server"
        ):
            await generate(Endpoint(f"http://127.0.0.1:{port}"))


async def test_a_full_queue_is_waited_for() -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        full = b'{"error":{"message":"the queue is full","type":"rate_limit_error","param":null,"code":"queue_full"}}'
        wait = b"0.01" if asked < 4 else b"1000"  # the last is beyond the call's own limit
        head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: %s\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (wait, len(full)) + full)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RequestError, match="queue is full") as caught:
            await generate(Endpoint(f"http://127.0.0.1:{port}", timeout_s=240.0))
    assert caught.value.status == 429
    assert asked == 4
