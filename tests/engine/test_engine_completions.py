"""Completions of the engine: reported fields, ends, and reproducibility by seed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from radixrt.engine.engine import Chunk, Engine
from radixrt.messages.parts import Usage
from tests.engine.helpers import (
    CONTEXT,
    GREEDY,
    LONG,
    SEEDED,
    TEXT,
    WAIT_S,
    assert_same_logprobs,
    many,
    one,
    refusal,
    start,
)
from tests.tiny_models import ENDOFTEXT_ID, IM_END_ID, VOCAB_SIZE

# --- what a completion reports ---


@pytest.mark.parametrize("k", [0, 1, 5])
def test_logprobs_of_the_output(engine: Engine, k: int, tokenizer: tokenizers.Tokenizer) -> None:
    c = one(engine, TEXT, {**GREEDY, "logprobs": k})
    assert c.prompt_logprobs is None
    assert c.logprobs is not None
    assert [row.token_id for row in c.logprobs] == c.token_ids
    for row in c.logprobs:
        assert row.logprob is not None
        assert row.logprob < 0
        assert len(row.top) == k
        assert (
            row.data.decode(errors="replace") == row.text == tokenizer.decode([row.token_id], skip_special_tokens=False)
        )
        values = [top.logprob for top in row.top]
        assert values == sorted(values, reverse=True)  # type: ignore[type-var]
        if k:  # greedy: the most probable token was taken
            assert (row.top[0].token_id, row.top[0].logprob) == (row.token_id, row.logprob)


def test_all_alternatives_are_a_distribution(engine: Engine) -> None:
    c = one(engine, TEXT, {"seed": 3, "max_tokens": 3, "ignore_eos": True, "logprobs": VOCAB_SIZE})
    assert c.logprobs is not None
    for row in c.logprobs:
        by_id = {top.token_id: top.logprob for top in row.top}
        assert len(by_id) == VOCAB_SIZE
        assert by_id[row.token_id] == row.logprob
        assert sum(np.exp(list(by_id.values()))) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("k", [0, 2])
def test_logprobs_of_the_prompt(engine: Engine, k: int) -> None:
    c = one(engine, TEXT, {**GREEDY, "prompt_logprobs": k})
    assert c.logprobs is None
    assert c.prompt_logprobs is not None
    assert [row.token_id for row in c.prompt_logprobs] == c.prompt_token_ids
    assert (c.prompt_logprobs[0].logprob, c.prompt_logprobs[0].top) == (None, [])
    for row in c.prompt_logprobs[1:]:
        assert row.logprob is not None
        assert row.logprob < 0
        assert len(row.top) == k


def test_scoring_a_prompt_generates_nothing(engine: Engine) -> None:
    scored = one(engine, TEXT, {"max_tokens": 0, "prompt_logprobs": 0})
    assert (scored.text, scored.token_ids, scored.finish_reason) == ("", [], "length")
    assert scored.usage.completion_tokens == 0
    again = one(engine, TEXT, {**GREEDY, "prompt_logprobs": 0})
    assert_same_logprobs(scored.prompt_logprobs, again.prompt_logprobs)


def test_an_output_scored_as_a_prompt_has_the_same_logprobs(engine: Engine) -> None:
    c = one(engine, TEXT, {**GREEDY, "logprobs": 0})
    whole = one(engine, c.prompt_token_ids + c.token_ids, {"max_tokens": 0, "prompt_logprobs": 0})
    assert whole.prompt_logprobs is not None
    assert_same_logprobs(c.logprobs, whole.prompt_logprobs[len(c.prompt_token_ids) :])


def test_usage_counts_the_cached_tokens_of_the_same_salt(engine: Engine) -> None:
    prompt = list(range(100, 140))

    def usage(prompt: list[int], **request: Any) -> Usage:
        return one(engine, prompt, {**GREEDY, "max_tokens": 3}, **request).usage

    assert usage(prompt, cache_salt="u") == Usage(40, 3, 0)
    assert usage(prompt, cache_salt="u") == Usage(40, 3, 39, 39)  # the last token's logits are always computed
    assert usage(prompt[:20], cache_salt="u") == Usage(20, 3, 19, 19)
    assert usage([*prompt[:30], 7, 8], cache_salt="u") == Usage(32, 3, 30, 30)
    assert usage(prompt, cache_salt="other") == Usage(40, 3, 0)
    assert usage(prompt) == Usage(40, 3, 0)


def test_flushing_the_cache_forgets_every_prefix(engine: Engine) -> None:
    first = one(engine, TEXT, GREEDY, cache_salt="f")
    warm = one(engine, TEXT, GREEDY, cache_salt="f")
    engine.flush_cache()
    cold = one(engine, TEXT, GREEDY, cache_salt="f")
    assert [c.usage.cached_tokens for c in (first, warm, cold)] == [0, len(first.prompt_token_ids) - 1, 0]
    assert first.token_ids == warm.token_ids == cold.token_ids


def test_a_prompt_to_be_scored_is_computed_whole(engine: Engine) -> None:
    one(engine, TEXT, GREEDY)
    assert one(engine, TEXT, {**GREEDY, "prompt_logprobs": 0}).usage.cached_tokens == 0


def test_a_higher_priority_overtakes_the_queue(tiny_model: Callable[[str], Path]) -> None:
    with start(tiny_model("llama"), max_running_requests=1) as engine:
        order: list[int] = []

        async def ask(priority: int) -> None:
            await engine.async_generate(f"Numbers {priority}", GREEDY, priority=priority)
            order.append(priority)

        async def all_at_once() -> None:
            async with aclosing(engine.async_stream(TEXT, LONG)) as running:
                await anext(running)
                await asyncio.wait_for(asyncio.gather(*[ask(p) for p in (0, -5, 3, 2)], finish(running)), WAIT_S)

        async def finish(running: AsyncIterator[Chunk]) -> None:
            async for _ in running:
                pass

        asyncio.run(all_at_once())
        assert order == [3, 2, 0, -5]


def test_a_deadline_ends_one_request_alone(engine: Engine) -> None:
    other: list[Any] = []
    thread = threading.Thread(target=lambda: other.append(engine.generate("Numbers", GREEDY)))
    thread.start()
    error = refusal(engine, TEXT, LONG, timeout_s=1e-6)
    assert (error.code, error.status) == ("timeout", 408)
    thread.join()
    assert len(other[0].token_ids) == 12
    assert len(one(engine, TEXT, GREEDY, timeout_s=WAIT_S).token_ids) == 12


# --- where a completion ends ---


def test_a_stop_string_ends_the_text_before_itself(engine: Engine) -> None:
    text = one(engine, TEXT, SEEDED).text
    stop = text[20:25]
    at = text.index(stop)
    c = one(engine, TEXT, {**SEEDED, "stop": stop})
    assert (c.text, c.finish_reason, c.matched_stop) == (text[:at], "stop", stop)
    assert c.usage.completion_tokens == len(c.token_ids) < 60
    kept = one(engine, TEXT, {**SEEDED, "stop": ["nowhere in it", stop], "include_stop_str_in_output": True})
    assert (kept.text, kept.finish_reason, kept.matched_stop) == (text[: at + len(stop)], "stop", stop)


def test_a_stop_token_ends_the_output_and_is_its_last_token(engine: Engine) -> None:
    free = one(engine, TEXT, SEEDED)
    token = free.token_ids[7]
    ids = free.token_ids[: free.token_ids.index(token) + 1]
    c = one(engine, TEXT, {**SEEDED, "stop_token_ids": [token]})
    assert (c.token_ids, c.finish_reason, c.matched_stop) == (ids, "stop", token)
    kept = one(engine, TEXT, {**SEEDED, "stop_token_ids": [token], "include_stop_str_in_output": True})
    assert kept.token_ids == ids
    assert kept.text.startswith(c.text)
    assert len(kept.text) > len(c.text)


@pytest.mark.parametrize("end", [IM_END_ID, ENDOFTEXT_ID])
def test_the_models_own_end_tokens(engine: Engine, end: int) -> None:
    forced = {"temperature": 0, "max_tokens": 6, "logit_bias": {end: 100}}
    c = one(engine, TEXT, forced)
    assert (c.token_ids, c.text, c.finish_reason, c.matched_stop) == ([end], "", "stop", end)
    on = one(engine, TEXT, {**forced, "ignore_eos": True})
    assert (on.token_ids, on.finish_reason, on.matched_stop) == ([end] * 6, "length", None)
    stopped = one(engine, TEXT, {**forced, "ignore_eos": True, "stop_token_ids": [end]})
    assert (stopped.token_ids, stopped.finish_reason) == ([end], "stop")


def test_min_tokens_holds_back_end_and_stop_tokens(engine: Engine) -> None:
    stop = 77
    params = {"temperature": 0, "max_tokens": 20, "min_tokens": 5, "stop_token_ids": [stop]}
    for end in (IM_END_ID, stop):
        c = one(engine, TEXT, {**params, "logit_bias": {end: 100}})
        assert not {IM_END_ID, ENDOFTEXT_ID, stop} & set(c.token_ids[:5])
        assert (c.token_ids[5:], c.finish_reason) == ([end], "stop")


def test_logit_bias_forces_and_bans_tokens(engine: Engine) -> None:
    assert one(engine, TEXT, {"max_tokens": 4, "logit_bias": {77: 100}}).token_ids == [77] * 4
    free = one(engine, TEXT, GREEDY).token_ids
    banned = one(engine, TEXT, {**GREEDY, "logit_bias": {free[0]: -100}}).token_ids
    assert free[0] not in banned


@pytest.mark.parametrize("length", [CONTEXT - 1, CONTEXT - 12])
@pytest.mark.parametrize("max_tokens", [None, 400])
def test_the_contexts_end_is_a_length(engine: Engine, length: int, max_tokens: int | None) -> None:
    c = one(engine, [3 + i % 500 for i in range(length)], {**GREEDY, "max_tokens": max_tokens})
    assert (c.finish_reason, c.matched_stop) == ("length", None)
    assert len(c.token_ids) == CONTEXT - length


def test_a_completion_may_fill_the_context_from_its_first_token(engine: Engine) -> None:
    assert len(one(engine, [9], {**GREEDY, "max_tokens": None}).token_ids) == CONTEXT - 1


# --- seeds ---

OTHERS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 1},
    {"seed": 123, "temperature": 0.3},
    {},
    {"top_k": 3},
    {"top_p": 0.5},
    {"min_p": 0.2},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "temperature": 2.0},
    {"repetition_penalty": 1.5},
    {"frequency_penalty": 1.0, "temperature": 0},
    {"presence_penalty": -1.0},
    {"logit_bias": {5: 10.0, 6: -100.0}},
    {"logprobs": 4},
    {"prompt_logprobs": 2},
    {"stop": ["e"], "n": 1},
    {"min_tokens": 8, "stop_token_ids": [9, 10]},
]


@pytest.mark.parametrize(
    "params",
    [{"seed": 123}, {"seed": -(2**63), "top_p": 0.8, "temperature": 0.7}, {"temperature": 0}],
    ids=["plain", "filtered", "greedy"],
)
def test_the_same_seed_gives_the_same_tokens_alone_and_among_others(engine: Engine, params: dict[str, Any]) -> None:
    mine = {**params, "max_tokens": 24, "ignore_eos": True}
    alone = one(engine, TEXT, mine).token_ids
    prompts = [f"{i} {TEXT}" if i % 2 else TEXT for i in range(len(OTHERS))]
    others = [{"max_tokens": 5 + 2 * i, **other} for i, other in enumerate(OTHERS)]
    at = 7
    among = many(engine, [*prompts[:at], TEXT, *prompts[at:]], [*others[:at], mine, *others[at:]])
    assert len(among) == 17
    assert among[at].token_ids == alone
    engine.flush_cache()
    assert one(engine, TEXT, mine).token_ids == alone


def test_different_seeds_and_no_seed_differ(engine: Engine) -> None:
    seeds = [0, 1, 2, -1, 2**63 - 1, None, None]
    out = many(engine, [TEXT] * 7, [{"seed": seed, "max_tokens": 10, "ignore_eos": True} for seed in seeds])
    assert len({tuple(c.token_ids) for c in out}) == 7


def test_a_new_engine_draws_the_same_seeds(tiny_model: Callable[[str], Path]) -> None:
    params = {"max_tokens": 10, "ignore_eos": True}
    drawn = []
    for random_seed in (0, 0, 1):
        with start(tiny_model("llama"), random_seed=random_seed) as engine:
            drawn.append(one(engine, TEXT, params).token_ids)
    assert drawn[0] == drawn[1] != drawn[2]
