"""Answers are the same whether their request ran undisturbed, was retracted, or lost its runner and went on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixrt.errors import EngineError
from radixrt.messages.request import Request
from radixrt.messages.scheduler import RunnerRestarted
from radixrt.messages.wire import pack_i32
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.parts.recovery.scheduler import Recovery
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.reads import ChoiceTree
from tests.requests import embed_request, score_request
from tests.runner.test_model_runner import Bench
from tests.scheduler.test_scheduler import NO_JUMPS, FixedSequence

PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1}
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 11}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": DRAWN,
    "filtered": {**DRAWN, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "penalized": {**DRAWN, **PENALTIES},
    "greedy-penalized": PENALTIES,
    "biased": {**DRAWN, "logit_bias": {7: 3.0, 9: -5.0}, "min_tokens": 20, "ignore_eos": False},
    "scored": {**DRAWN, "logprobs": 2},
    "prompt-scored": {"prompt_logprobs": 1},
    "unseeded": {"temperature": 1.0},  # the scheduler's own seeds are the same in each run
}
CHOSEN_AFTER = [5, 6, 7, *range(60, 90)]
CHOICES = [[3], [4, 5, 6], [4, 5, 9], [7, 8]]
FORCED = [11, 400, 32, 31, 500, 3, 44, 45, 46, 47, 48, 12, 13, 14]
TOKENS = 24


def _start(folder: Path, **options: Any) -> Bench:
    bench = Bench(folder, **{"kv_cache_tokens": 1024, "check_invariants": True, "max_running_requests": 16, **options})
    for i, (rid, sampling) in enumerate(KINDS.items()):
        bench.send(rid, [5, 6, 7, *range(20, 30 + i)], **{"max_tokens": TOKENS, "ignore_eos": True, **sampling})
    rows = ChoiceTree(len(CHOSEN_AFTER), CHOICES).rows(0)
    bench.inbox.send(score_request("choices", [pack_i32(CHOSEN_AFTER)], rows))
    for pooling in ("last", "mean"):
        bench.inbox.send(embed_request(pooling, [pack_i32(CHOSEN_AFTER), pack_i32([5, 6, 7] * 9)], pooling))
    sampling = SamplingParams(temperature=0.9, seed=1, max_tokens=TOKENS, structured=NO_JUMPS)
    message = Request.generate("bound", pack_i32([5, 6, 7]), sampling)
    bench.core.part(Constraints).add(message, time.monotonic(), FixedSequence(FORCED, bench.runner.vocab_size))
    return bench


def _assert_same(bench: Bench, expected: Bench) -> None:
    assert bench.finishes.keys() == {*KINDS, "bound", "choices", "last", "mean"}
    assert bench.tokens == expected.tokens
    assert {rid: finish.reason for rid, finish in bench.finishes.items()} == {
        rid: finish.reason for rid, finish in expected.finishes.items()
    }
    scores, others = (np.frombuffer(each.logprobs["scored"], np.float32) for each in (bench, expected))
    np.testing.assert_allclose(scores, others, atol=1e-4)
    assert bench.scores.keys() == expected.scores.keys() == {"prompt-scored", "choices", "last", "mean"}
    for key, values in bench.scores.items():
        np.testing.assert_allclose(
            np.frombuffer(values, np.float32), np.frombuffer(expected.scores[key], np.float32), atol=1e-4
        )


@pytest.fixture(scope="module")
def undisturbed(tiny_model: Callable[[str], Path]) -> Bench:
    bench = _start(tiny_model("llama"))
    bench.drain()
    assert bench.core.counters.retractions == 0
    assert bench.tokens["bound"] == FORCED
    return bench


@pytest.mark.parametrize("depth", [1, 2])
def test_after_the_runner_died_again_and_again(
    depth: int, undisturbed: Bench, tiny_model: Callable[[str], Path]
) -> None:
    bench = _start(tiny_model("llama"), max_inflight_steps=depth)
    for _ in range(3):
        for _ in range(5):
            bench.turn()
        bench.restart()
        bench.turn()
        while bench.core.part(Recovery).num_suspects:
            bench.turn()
    bench.drain()
    _assert_same(bench, undisturbed)
    assert bench.loop.stats().runner_restarts == 3
    assert bench.loop.stats().resumed > 9
    assert bench.loop.stats().cache_resets == {"runner_restarted": 3}


def test_after_retraction(undisturbed: Bench, tiny_model: Callable[[str], Path]) -> None:
    bench = _start(tiny_model("llama"), kv_cache_tokens=130, schedule_conservativeness=0.0)
    bench.drain()
    assert bench.core.counters.retractions > 2
    _assert_same(bench, undisturbed)


def test_a_runner_with_another_pool_is_refused(tiny_model: Callable[[str], Path]) -> None:
    bench, other = (Bench(tiny_model("llama"), kv_cache_tokens=slots) for slots in (512, 256))
    bench.executor._make_worker = other.executor._make_worker
    bench.inbox.send(RunnerRestarted(1, "it was told to"))
    with pytest.raises(EngineError, match="restarted ModelRunner has 256 KV slots instead of 512"):
        bench.turn()
