"""Greedy output and log-probabilities equal transformers' where every prefill step is narrowed, however small."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from radixrt.forward_batch import batch_builder
from tests.equivalence.reference import reference_logits
from tests.equivalence.test_tiny_models import KINDS, VARIANTS, assert_same, engine, prompts

NARROWED = ["default", "chunk-16", "chunk-16-page-16-depth-1", "torch-native-chunk-16", "retracting"]


@pytest.fixture(autouse=True)
def narrow_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_builder, "MIN_SAVED_TOKENS", 1)


@pytest.mark.parametrize(("kind", "variant"), [*itertools.product(KINDS, NARROWED), ("qwen3_moe", "chunk-16")])
def test_greedy_equals_transformers(kind: str, variant: str, tiny_model: Callable[[str], Path]) -> None:
    folder, inputs = tiny_model(kind), prompts()
    lengths = [4 + i % 13 for i in range(len(inputs))]
    params = [{"temperature": 0, "max_tokens": n, "min_tokens": n} for n in lengths]
    with engine(folder, **VARIANTS[variant]) as e:
        cold = e.generate(inputs, params)
        warm = e.generate(inputs, params)
    assert_same(folder, inputs, cold, lengths)
    assert_same(folder, inputs, warm, lengths)


@pytest.mark.parametrize("variant", ["default", "chunk-16"])
def test_prompt_logprobs_of_some_among_others(variant: str, tiny_model: Callable[[str], Path]) -> None:
    folder, inputs = tiny_model("llama"), prompts()[:12]
    plain = {"temperature": 0, "max_tokens": 5, "min_tokens": 5}
    params = [{**plain, "prompt_logprobs": 1} if i % 3 == 0 else plain for i in range(len(inputs))]
    with engine(folder, **VARIANTS[variant]) as e:
        results = e.generate(inputs, params)
    assert_same(folder, inputs, results, [5] * len(inputs))
    for ids, result, wanted in zip(inputs, results, params, strict=True):
        if "prompt_logprobs" not in wanted:
            continue
        expected = reference_logits(folder, ids).log_softmax(-1)
        got = [entry.logprob for entry in result.prompt_logprobs[1:]]
        np.testing.assert_allclose(got, [expected[i - 1, ids[i]].item() for i in range(1, len(ids))], atol=1e-4)
