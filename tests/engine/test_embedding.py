"""Embeddings through a real engine: many prompts, generations beside them, mistakes, cancelling."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from radixrt.engine.engine import Embedding, Engine
from radixrt.errors import RequestError
from tests.engine.helpers import GREEDY, TEXT, many, one


def test_more_prompts_than_one_request_takes(engine: Engine) -> None:
    ids = [[3 + i % 400, 7, 3 + i % 7] for i in range(300)]
    found = engine.embed(ids)
    assert found.vectors.shape == (300, 64)
    assert found.usage.prompt_tokens == 900
    for i in (0, 63, 64, 299):
        np.testing.assert_allclose(found.vectors[i], engine.embed(ids[i]).vectors[0], atol=1e-5)


def test_embeddings_beside_generations(engine: Engine) -> None:
    alone = one(engine, TEXT, GREEDY)
    vectors = engine.embed([TEXT, TEXT * 4]).vectors

    async def go() -> list[object]:
        return await asyncio.gather(
            engine.async_generate([TEXT] * 4, GREEDY), engine.async_embed([TEXT, TEXT * 4]), engine.async_embed(TEXT)
        )

    completions, both, first = asyncio.run(go())
    assert isinstance(both, Embedding)
    assert isinstance(first, Embedding)
    np.testing.assert_allclose(both.vectors, vectors, atol=1e-5)
    np.testing.assert_allclose(first.vectors, vectors[:1], atol=1e-5)
    assert isinstance(completions, list)
    assert [c.token_ids for c in completions] == [alone.token_ids] * 4
    assert [c.token_ids for c in many(engine, [TEXT] * 2, GREEDY)] == [alone.token_ids] * 2


def test_a_cancelled_call_leaves_nothing_behind(engine: Engine) -> None:
    async def go() -> None:
        task = asyncio.create_task(engine.async_embed([[3 + i % 400] * 100 for i in range(2000)]))
        while not engine.client.open_requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())


@pytest.mark.parametrize(
    ("prompts", "options", "param"),
    [
        ([], {}, "prompts"),
        (5, {}, "prompt"),
        (["a", ""], {}, "prompts[1]"),
        ([[3]] * 100 + [[10**6]], {}, "prompts[100]"),
        ([[3]] * 70 + [["x"]], {}, "prompts[70]"),
        (["a", "b " * 600], {}, "prompts[1]"),
        ("a", {"dimensions": 0}, "dimensions"),
        ("a", {"dimensions": "4"}, "dimensions"),
        ("a", {"dimensions": 65}, "dimensions"),
        ("a", {"normalize": 1}, "normalize"),
        ("a", {"prompt_name": 5}, "prompt_name"),
        ("a", {"prompt_name": "query"}, "prompt_name"),
        ("a", {"prompt": ["b"]}, "prompt"),
        ([[3]], {"prompt": "b"}, "prompt"),
        ("a", {"priority": "high"}, "priority"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_mistakes_name_the_field(engine: Engine, prompts: object, options: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        engine.embed(prompts, **options)  # type: ignore[arg-type]
    assert raised.value.param == param
