"""Streams and asyncio give the results of `generate`, and leaving a stream early aborts its request."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from radixrt.engine.engine import Chunk, Completion, Engine
from tests.engine.helpers import (
    GREEDY,
    LONG,
    SEEDED,
    TEXT,
    WAIT_S,
    assert_at_rest,
    assert_eventually,
    assert_same_logprobs,
    generated,
    ids_of,
    many,
    one,
)
from tests.tiny_models import IM_END_ID

# --- streaming ---


def assert_streamed(chunks: list[Chunk], whole: Completion) -> None:
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids
    assert [chunk.completion is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1].completion
    assert last is not None
    for name in ("text", "token_ids", "finish_reason", "matched_stop", "prompt_token_ids"):
        assert getattr(last, name) == getattr(whole, name), name
    if whole.logprobs is None:
        assert last.logprobs is None
    else:
        assert_same_logprobs(last.logprobs, whole.logprobs)
    assert last.usage.completion_tokens == whole.usage.completion_tokens


STREAMED = {
    "greedy": {**GREEDY, "max_tokens": 40},
    "sampled": {"seed": 5, "max_tokens": 40, "ignore_eos": True},
    "ended": {"temperature": 0, "max_tokens": 40, "logit_bias": {IM_END_ID: 100}},
    "scored": {**GREEDY, "logprobs": 0},
}


@pytest.mark.parametrize("params", STREAMED.values(), ids=STREAMED)
async def test_streams_give_what_generate_gives(engine: Engine, params: dict[str, Any]) -> None:
    whole = one(engine, TEXT, params)
    chunks = list(engine.stream(TEXT, params))
    assert_streamed(chunks, whole)
    assert_streamed([chunk async for chunk in engine.async_stream(TEXT, params)], whole)
    alone = await engine.async_generate(TEXT, params)
    assert isinstance(alone, Completion)
    assert (alone.text, alone.token_ids, alone.matched_stop) == (whole.text, whole.token_ids, whole.matched_stop)
    if len(whole.token_ids) > 1:
        assert len(chunks) > 1


def test_a_stop_string_never_shows_in_a_stream(engine: Engine) -> None:
    text = one(engine, TEXT, SEEDED).text
    stop = text[20:26]
    chunks = list(engine.stream(TEXT, {**SEEDED, "stop": stop}))
    assert "".join(chunk.text for chunk in chunks) == text[: text.index(stop)]


def test_leaving_a_stream_early_aborts_it(engine: Engine) -> None:
    before = generated(engine)
    for chunk in engine.stream(TEXT, LONG):
        assert chunk.completion is None
        break
    assert_at_rest(engine)
    assert 0 < generated(engine) - before < LONG["max_tokens"]


async def test_leaving_an_async_stream_early_aborts_it(engine: Engine) -> None:
    before = generated(engine)
    async with aclosing(engine.async_stream(TEXT, LONG)) as chunks:
        async for chunk in chunks:
            assert chunk.completion is None
            break
    await asyncio.to_thread(assert_at_rest, engine)
    assert 0 < generated(engine) - before < LONG["max_tokens"]


# --- asyncio ---


async def test_async_generate_takes_lists_and_n(engine: Engine) -> None:
    out = await engine.async_generate(["a", "b"], {**GREEDY, "n": 2})
    assert isinstance(out, list)
    assert ids_of(out) == ids_of(many(engine, ["a", "a", "b", "b"], GREEDY))


async def test_async_calls_share_the_batch(engine: Engine) -> None:
    prompts = [f"Numbers {i}" for i in range(12)]
    expected = many(engine, prompts, GREEDY)
    long = asyncio.ensure_future(engine.async_generate(TEXT, LONG))
    out = await asyncio.gather(*[engine.async_generate(prompt, GREEDY) for prompt in prompts])
    assert not long.done()  # they did not wait for it
    assert [c.token_ids for c in out if isinstance(c, Completion)] == ids_of(expected)
    result = await long
    assert isinstance(result, Completion)
    assert len(result.token_ids) == LONG["max_tokens"]


async def test_cancelling_async_generate_aborts_all_its_requests(engine: Engine) -> None:
    before = generated(engine)
    task = asyncio.ensure_future(engine.async_generate(["a", "b", "c"], LONG))
    other = asyncio.ensure_future(engine.async_generate("d", GREEDY))
    await asyncio.wait_for(other, WAIT_S)
    assert engine.client.open_requests == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(assert_at_rest, engine)
    assert generated(engine) - before < 3 * LONG["max_tokens"]
    assert (await engine.async_generate("d", GREEDY)).token_ids == other.result().token_ids  # type: ignore[union-attr]


async def test_two_event_loops_may_use_one_engine(engine: Engine) -> None:
    def elsewhere() -> Any:
        return asyncio.run(engine.async_generate("elsewhere", GREEDY))  # type: ignore[arg-type]

    here, there = await asyncio.gather(engine.async_generate("elsewhere", GREEDY), asyncio.to_thread(elsewhere))
    assert isinstance(here, Completion)
    assert here.token_ids == there.token_ids


class Interrupt(BaseException):
    """Like KeyboardInterrupt, which would end the whole test run if it came too late."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Raises Interrupt in the main thread, whatever it waits for."""

    def handler(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_aborts_the_whole_list(engine: Engine, interrupt: Callable[[], None]) -> None:
    """Ctrl-C in a notebook: nothing may continue in the background."""
    before = generated(engine)

    def wait_and_interrupt() -> None:
        assert_eventually(lambda: engine.client.open_requests == 4)
        interrupt()

    thread = threading.Thread(target=wait_and_interrupt)
    thread.start()
    with pytest.raises(Interrupt):
        engine.generate(["a", "b", "c", "d"], LONG)
    thread.join()
    assert_at_rest(engine)
    assert generated(engine) - before < 3 * LONG["max_tokens"]
