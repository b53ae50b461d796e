"""Hybrid models: greedy output equals transformers', from whatever states and keys are cached."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import radixrt
from radixrt.attention.hybrid import StateBackend
from radixrt.attention.state_pool import RecurrentLayer
from radixrt.engine.engine import Completion
from radixrt.errors import ConfigError
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.messages.state_slots import ZERO_STATE
from radixrt.sampling_params import SamplingParams
from tests.equivalence.constraints import SCHEMAS
from tests.equivalence.reference import greedy_continuation, reference_logits
from tests.equivalence.test_embedding import reference as reference_vector
from tests.equivalence.test_tiny_models import assert_same, engine, prompts
from tests.tiny_models import HYBRID_KINDS

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "no-cache-depth-1": {"prefix_cache": False, "max_inflight_steps": 1},
    "chunk-5": {"chunked_prefill_size": 5},
    "chunk-64-depth-1": {"chunked_prefill_size": 64, "max_inflight_steps": 1, "attention_backend": "torch_native"},
    "few-states": {"num_states": 6, "max_running_requests": 3},
    "evicting": {"kv_cache_tokens": 128, "max_running_requests": 3},
    "retracting": {"kv_cache_tokens": 160, "schedule_conservativeness": 0.0, "max_running_requests": 8},
}
CASES = [
    *itertools.product(("qwen3_5",), VARIANTS),
    *itertools.product(("lfm2",), ("default", "no-cache-depth-1", "chunk-5", "few-states")),
    *itertools.product(("qwen3_next", "qwen3_5_moe"), ("default", "retracting")),
]


def lengths_of(inputs: list[list[int]]) -> list[int]:
    return [4 + i % 13 for i in range(len(inputs))]


def generate(e: radixrt.Engine, inputs: list[list[int]]) -> list[Completion]:
    return e.generate(inputs, [{"temperature": 0, "max_tokens": n, "min_tokens": n} for n in lengths_of(inputs)])


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_greedy_equals_transformers(kind: str, variant: str, tiny_model: Callable[[str], Path]) -> None:
    folder, inputs = tiny_model(kind), prompts()
    with engine(folder, **VARIANTS[variant]) as e:
        cold, warm = generate(e, inputs), generate(e, inputs)
        second_turn = [ids + r.token_ids + [5, 6] for ids, r in zip(inputs, cold, strict=True)]
        turned = generate(e, second_turn)
        fork = e.generate(inputs[3], {"temperature": 0, "max_tokens": 6, "min_tokens": 6, "n": 3})
        stats = e.client.control("check")
    assert stats.ok, stats.message
    for asked, results in ((inputs, cold), (inputs, warm), (second_turn, turned)):
        assert_same(folder, asked, results, lengths_of(inputs))
    assert [branch.token_ids for branch in fork] == [greedy_continuation(folder, inputs[3], fork[0].token_ids)] * 3
    if variant in ("default", "chunk-5"):
        assert sum(r.usage.cached_tokens for r in warm) > 500
        assert sum(r.usage.cached_tokens for r in turned) > 1000
    if variant == "retracting":
        assert sum(r.timings.retractions for r in cold + warm + turned) > 0


@pytest.mark.parametrize("kind", HYBRID_KINDS)
def test_states_count(kind: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of this file would fail without them: an engine in which all rows begin with zeros is wrong soon."""
    mix = StateBackend.mix

    def forgetful(self: StateBackend, layer: RecurrentLayer, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        assert batch.states is not None
        zeros = torch.full_like(batch.states.src, ZERO_STATE)
        return mix(self, layer, x, replace(batch, states=replace(batch.states, src=zeros)))

    folder, inputs = tiny_model(kind), prompts()[:12]
    monkeypatch.setattr(StateBackend, "mix", forgetful)
    with engine(folder) as e:
        results = generate(e, inputs)
    right = [
        ours == theirs
        for ids, r in zip(inputs, results, strict=True)
        for ours, theirs in zip(r.token_ids[1:], greedy_continuation(folder, ids, r.token_ids)[1:], strict=True)
    ]
    assert sum(right) < len(right) / 4


def constrained(e: radixrt.Engine) -> list[Completion]:
    """Constrained requests, some with tokens that are appended or replaced without sampling, beside free ones."""
    params = []
    for i, name in enumerate(("person", "nested", "strings", "unicode", "numbers")):
        params.append(SamplingParams(json_schema=SCHEMAS[name], max_tokens=150, temperature=float(i % 2), seed=i))
        params.append(SamplingParams(max_tokens=12, temperature=1.0, seed=i, ignore_eos=True))
    return e.generate([[5 + i % 7, 6, 7, 8, 9, 10 + i // 4] for i in range(len(params))], params)


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5"])
def test_jump_forward(kind: str, tiny_model: Callable[[str], Path]) -> None:
    """Answers do not depend on what is cached, and what they leave in the cache is right."""
    folder = tiny_model(kind)
    with engine(folder, prefix_cache=False, max_inflight_steps=1, max_running_requests=1) as e:
        expected = constrained(e)
    for options in ({}, {"chunked_prefill_size": 8, "num_states": 7, "max_running_requests": 4}):
        with engine(folder, **options) as e:
            found = constrained(e)
            asked = [[5 + i % 7, 6, 7, 8, 9, 10 + i // 4, *r.token_ids, 9] for i, r in enumerate(found)]
            turned = generate(e, asked)
            e.check_invariants()
        assert [r.token_ids for r in found] == [r.token_ids for r in expected]
        assert_same(folder, asked, turned, lengths_of(asked))
    assert sum(r.constraint.forced_tokens for r in found if r.constraint is not None) > 50


def test_log_probabilities_and_vectors_equal_transformers(tiny_model: Callable[[str], Path]) -> None:
    folder, inputs = tiny_model("qwen3_5"), prompts()[:6]
    params = {"temperature": 0, "max_tokens": 5, "min_tokens": 5, "logprobs": 1, "prompt_logprobs": 0}
    with engine(folder) as e:
        generate(e, inputs)
        results = e.generate(inputs, params)
        vectors = e.embed(inputs, normalize=False).vectors
    for ids, result, vector in zip(inputs, results, vectors, strict=True):
        known = ids + result.token_ids
        expected = reference_logits(folder, known).log_softmax(-1)
        found = [each.logprob for each in (*result.prompt_logprobs[1:], *result.logprobs)]
        wanted = [expected[i, token].item() for i, token in enumerate(known[1:])]
        np.testing.assert_allclose(found, wanted, atol=1e-3)
        np.testing.assert_allclose(vector, reference_vector(folder, ids, "last"), atol=1e-4)


def test_two_ranks_in_processes_of_their_own(tiny_model: Callable[[str], Path]) -> None:
    """Over ZMQ, and once more after a rank has died; new ranks have pools of the same sizes."""
    folder, inputs = tiny_model("qwen3_next"), prompts()
    with engine(folder, executor="mp", tp=2, chunked_prefill_size=32, num_states=40) as e:
        first, again = generate(e, inputs), generate(e, inputs)
        e.check_invariants()
        os.kill(e.pids["ModelRunner 1"], signal.SIGKILL)
        after = generate(e, inputs)
        e.check_invariants()
    for results in (first, again, after):
        assert_same(folder, inputs, results, lengths_of(inputs))


def test_pages_of_several_tokens_are_refused(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="page_size=16: Lfm2ForCausalLM has recurrent layers"):
        engine(tiny_model("lfm2"), page_size=16)
