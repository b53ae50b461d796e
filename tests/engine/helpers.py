"""A small real engine in this process, and short ways to ask it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixrt.engine.engine import Completion, Engine
from radixrt.errors import RequestError
from radixrt.messages.reads import TokenLogprob

CONTEXT = 512
WAIT_S = 60.0
"""Timeout for events that are certain to occur, in seconds."""
OPTIONS: dict[str, Any] = {
    "executor": "uni",
    "num_threads": 1,
    "dtype": "float32",
    "kv_cache_tokens": 2048,
    "check_invariants": True,
}
TEXT = "The capital of France is"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
SEEDED: dict[str, Any] = {"seed": 5, "max_tokens": 60, "ignore_eos": True}
LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 450, "ignore_eos": True}


def start(folder: Path, **options: Any) -> Engine:
    return Engine(str(folder), show_progress=False, **{**OPTIONS, **options})


def assert_at_rest(engine: Engine) -> None:
    assert_eventually(lambda: engine.client.open_requests == 0)
    engine.check_invariants()


def assert_eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def one(engine: Engine, prompt: Any, params: Any = None, **request: Any) -> Completion:
    result = engine.generate(prompt, params, **request)
    assert isinstance(result, Completion)
    return result


def many(engine: Engine, prompts: Any, params: Any = None, **request: Any) -> list[Completion]:
    result = engine.generate(prompts, params, **request)
    assert isinstance(result, list)
    return result


def refusal(engine: Engine, prompts: Any, params: Any = None, **request: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        engine.generate(prompts, params, **request)
    return raised.value


def assert_same_logprobs(a: list[TokenLogprob] | None, b: list[TokenLogprob] | None) -> None:
    """The last digits may depend on what else was in the batch."""
    assert a is not None
    assert b is not None
    assert [(row.token_id, row.text, row.data) for row in a] == [(row.token_id, row.text, row.data) for row in b]
    assert [row.logprob for row in a] == pytest.approx([row.logprob for row in b], abs=1e-4)
    assert [[top.token_id for top in row.top] for row in a] == [[top.token_id for top in row.top] for row in b]


def ids_of(completions: list[Completion]) -> list[list[int]]:
    return [c.token_ids for c in completions]


def generated(engine: Engine) -> int:
    """Tokens sampled since the engine started; exact while it is at rest."""
    return 0 if engine.stats is None else engine.stats.generated_tokens
