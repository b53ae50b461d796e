"""Several ranks, each a real process, give the results of one rank: greedy, sampled, scored and constrained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import radixrt
from tests.equivalence.reference import greedy
from tests.equivalence.test_tiny_models import assert_same, prompts

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_tokens": 4096, "num_threads": 1, "check_invariants": True, "show_progress": False,
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22]}}, "required": ["ok", "n"]}


@pytest.fixture(scope="module")
def one(tiny_model: Callable[[str], Path]) -> Iterator[radixrt.Engine]:
    with radixrt.Engine(str(tiny_model("llama")), executor="uni", **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def two(tiny_model: Callable[[str], Path]) -> Iterator[radixrt.Engine]:
    with radixrt.Engine(str(tiny_model("llama")), tp=2, **OPTIONS) as engine:
        yield engine
        engine.check_invariants()


def ids(engine: radixrt.Engine, inputs: Any, params: Any) -> list[list[int]]:
    return [c.token_ids for c in engine.generate(inputs, params)]


def test_each_rank_has_a_process(two: radixrt.Engine) -> None:
    assert set(two.pids) == {"tokenizer", "scheduler", "ModelRunner 0", "ModelRunner 1"}


def test_greedy_equals_transformers(two: radixrt.Engine, tiny_model: Callable[[str], Path]) -> None:
    inputs = prompts()
    lengths = [4 + i % 13 for i in range(len(inputs))]
    params = [{"temperature": 0, "max_tokens": n, "min_tokens": n} for n in lengths]
    for _ in range(2):  # the second time from the cache
        assert_same(tiny_model("llama"), inputs, two.generate(inputs, params), lengths)


def test_sampling_with_seeds_is_the_same(one: radixrt.Engine, two: radixrt.Engine) -> None:
    inputs = prompts()[:12]
    params = [
        {"temperature": 0.9, "seed": i, "max_tokens": 20, "ignore_eos": True, "top_k": 40 * (i % 2), "top_p": 0.9,
         "frequency_penalty": 0.5 * (i % 3)}
        for i in range(len(inputs))
    ]  # fmt: skip
    assert ids(one, inputs, params) == ids(two, inputs, params)


def test_log_probabilities_and_scores_are_the_same(one: radixrt.Engine, two: radixrt.Engine) -> None:
    params = {"temperature": 0, "max_tokens": 5, "ignore_eos": True, "logprobs": 3, "prompt_logprobs": 2}
    for ours, theirs in zip(one.generate(prompts()[:4], params), two.generate(prompts()[:4], params), strict=True):
        for kind in ("logprobs", "prompt_logprobs"):
            a, b = getattr(ours, kind), getattr(theirs, kind)
            assert [x.token_id for x in a] == [x.token_id for x in b]
            np.testing.assert_allclose(
                [x.logprob for x in a if x.logprob is not None],
                [x.logprob for x in b if x.logprob is not None],
                atol=1e-4,
            )
    choices = ["Paris", "London", "a small engine"]
    scored = [engine.score("The capital of France is ", choices) for engine in (one, two)]
    assert scored[0].choice == scored[1].choice
    np.testing.assert_allclose(scored[0].logprobs, scored[1].logprobs, atol=1e-3)


def test_embeddings_are_the_same(one: radixrt.Engine, two: radixrt.Engine) -> None:
    inputs = [*prompts()[:6], "The capital of France"]
    vectors = [engine.embed(inputs, normalize=False).vectors for engine in (one, two, two)]
    np.testing.assert_allclose(vectors[1], vectors[0], atol=1e-5)
    np.testing.assert_allclose(vectors[2], vectors[0], atol=1e-5)


def test_a_constrained_request_beside_plain_ones(one: radixrt.Engine, two: radixrt.Engine) -> None:
    inputs = ["Once upon a time", "Numbers", "The quick brown"]
    params = [
        {"temperature": 0, "max_tokens": 60, "json_schema": SCHEMA},
        {"temperature": 0, "max_tokens": 30, "ignore_eos": True},
        {"temperature": 1, "seed": 4, "max_tokens": 60, "json_schema": SCHEMA},
    ]
    split = two.generate(inputs, params)
    assert [c.token_ids for c in one.generate(inputs, params)] == [c.token_ids for c in split]
    for completion in (split[0], split[2]):
        assert set(json.loads(completion.text)) >= {"ok", "n"}


def test_four_ranks(tiny_model: Callable[[str], Path]) -> None:
    """More than there are key-value heads. tests/models splits the other kinds of models, as threads."""
    folder = tiny_model("qwen3")
    inputs = prompts()[:8]
    with radixrt.Engine(str(folder), tp=4, max_inflight_steps=1, chunked_prefill_size=16, **OPTIONS) as engine:
        assert_same(
            folder, inputs, engine.generate(inputs, {"temperature": 0, "max_tokens": 6, "min_tokens": 6}), [6] * 8
        )
        engine.check_invariants()


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_experts_are_split(kind: str, tiny_model: Callable[[str], Path]) -> None:
    folder, inputs = tiny_model(kind), prompts()[:8]
    with radixrt.Engine(str(folder), tp=2, chunked_prefill_size=16, **OPTIONS) as engine:
        results = engine.generate(inputs, {"temperature": 0, "max_tokens": 6, "min_tokens": 6})
        engine.check_invariants()
    assert_same(folder, inputs, results, [6] * 8)


def test_under_memory_pressure(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("llama")
    small = {**OPTIONS, "kv_cache_tokens": 160, "schedule_conservativeness": 0.0, "max_running_requests": 8}
    inputs = prompts()
    with radixrt.Engine(str(folder), tp=2, **small) as engine:
        results = engine.generate(inputs, {"temperature": 0, "max_tokens": 12, "min_tokens": 12})
        engine.check_invariants()
    assert [c.token_ids for c in results] == [greedy(folder, each, 12) for each in inputs]
