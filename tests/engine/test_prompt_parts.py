"""Prompts in parts through a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import tokenizers

from radixrt.client.collector import OutputCollector
from radixrt.engine.engine import Completion, Engine
from radixrt.errors import RequestError
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.generate import as_completion
from radixrt.tasks.prompts import Part, new_rid, pack_parts
from tests.client_requests import generating
from tests.engine.helpers import GREEDY, TEXT, one


def run(engine: Engine, parts: list[Part], *, stream: bool = False) -> Completion:
    async def go() -> Completion:
        request = generating(new_rid(), SamplingParams(**GREEDY), parts=pack_parts(parts), stream=stream)
        collector = OutputCollector()
        async for output in engine.client.astream(request):
            whole = collector.add(output)
        assert whole is not None
        return as_completion(whole)

    return asyncio.run(go())


def test_what_was_generated_goes_back_as_ids_and_is_all_cached(engine: Engine, tokenizer: tokenizers.Tokenizer) -> None:
    first = run(engine, [TEXT])
    assert first.token_ids == one(engine, TEXT, GREEDY).token_ids
    assert first.prompt_token_ids == tokenizer.encode(TEXT).ids
    second = run(engine, [first.prompt_token_ids, first.token_ids, " and so"], stream=True)
    known = first.prompt_token_ids + first.token_ids
    assert second.prompt_token_ids[: len(known)] == known
    assert second.prompt_token_ids[len(known) :] == tokenizer.encode(" and so", add_special_tokens=False).ids
    assert second.usage.cached_tokens == len(known) - 1  # the last token was sampled, never computed
    assert second.token_ids == one(engine, second.prompt_token_ids, GREEDY).token_ids


@pytest.mark.parametrize("bad", [5, b"abc", {"template": "x"}, [1.5], None])
def test_parts_of_wrong_types(engine: Engine, bad: object, tiny_model: Callable[..., object]) -> None:
    with pytest.raises(RequestError, match=r"input_parts\[1\]"):
        run(engine, ["a", bad])  # type: ignore[list-item]
    with pytest.raises(RequestError, match=r"input_parts\[0\]"):
        engine.client.stream(generating("r", SamplingParams(), parts=[5]))  # type: ignore[list-item]
