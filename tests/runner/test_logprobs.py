"""Log-probabilities of sampled tokens and of prompts against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.messages.parts import LogprobColumns
from radixrt.messages.wire import unpack_f32, unpack_i32
from radixrt.runner.logprobs import FLOOR, gather_logprobs
from tests.runner.sampling.sampling_reference import Params
from tests.runner.sampling.test_sampler import VOCAB, Bench, random_logits, step_mask


def exact(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    return x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))


def check(columns: LogprobColumns, expected: np.ndarray, token_ids: list[int], k: int) -> None:
    """expected: float64 [n, vocab]."""
    n = len(token_ids)
    assert columns.k == k
    assert unpack_f32(columns.token_logprobs) == pytest.approx(expected[np.arange(n), token_ids], abs=1e-4)
    ids = unpack_i32(columns.top_ids).reshape(n, k)
    assert ids.tolist() == [sorted(range(len(row)), key=lambda t: (-row[t], t))[:k] for row in expected]
    top = unpack_f32(columns.top_logprobs).reshape(n, k)
    assert top == pytest.approx(np.take_along_axis(expected, ids.astype(np.int64), 1), abs=1e-4)


def test_sampled_rows_that_asked_get_theirs_in_order():
    ks = [-1, 0, 5, -1, 2]
    logits = random_logits(5)
    result = Bench([Params(logprobs=k, temperature=i % 2) for i, k in enumerate(ks)]).sample(logits)
    asked = [i for i, k in enumerate(ks) if k >= 0]
    assert len(result.logprobs) == len(asked)
    for columns, i in zip(result.logprobs, asked, strict=True):
        check(columns, exact(logits[i : i + 1]), [int(result.token_ids[i])], ks[i])


def test_they_are_of_the_models_own_distribution():
    p = Params(logprobs=3, temperature=0.2, top_k=2, logit_bias={1: 30.0}, repetition_penalty=1.5, prompt=[2, 3])
    logits = random_logits(1)
    allowed = np.zeros((1, VOCAB), bool)
    allowed[0, 60] = True
    result = Bench([p]).sample(logits, mask=step_mask([0], allowed))
    assert result.token_ids.tolist() == [60]
    check(result.logprobs[0], exact(logits), [60], 3)


def test_equal_alternatives_are_ordered_by_id():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [50, 7, 33]] = 1.0
    check(Bench([Params(temperature=0.0, logprobs=2)]).sample(logits).logprobs[0], exact(logits), [7], 2)


def test_what_is_not_finite_becomes_the_floor():
    logits = np.full((2, VOCAB), -np.inf, np.float32)
    logits[0, 4] = 0.0
    logits[1] = np.nan
    result = Bench([Params(temperature=0.0, logprobs=2)] * 2).sample(logits)
    good, bad = result.logprobs
    assert unpack_f32(good.top_logprobs).tolist() == [0.0, FLOOR]
    assert unpack_f32(bad.token_logprobs).tolist() == [FLOOR]
    assert [i for i, _ in result.row_errors] == [1]


def test_a_host_copy_says_the_same():
    result = Bench([Params(logprobs=2)] * 3).sample(random_logits(3))
    copy = result.to_host()
    assert torch.equal(copy.token_ids, result.token_ids)
    assert (copy.logprobs, copy.row_errors) == (result.logprobs, result.row_errors)


def test_no_more_alternatives_than_tokens():
    picked = gather_logprobs(torch.log_softmax(torch.randn(2, 5), -1), torch.tensor([0, 1]), 9)
    assert picked.top_ids.shape == (2, 5)
