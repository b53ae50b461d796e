"""Sampled tokens of requests are kept in columns, whatever comes in which order."""

from __future__ import annotations

import random

import pytest

from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.router.output_tokens import BLOCK, OutputTokens


def test_tokens_of_steps_and_of_single_requests_are_those_of_lists() -> None:
    rng, tokens = random.Random(4), OutputTokens()
    lists: dict[str, list[int]] = {}
    expected: dict[str, float] = {}
    for turn in range(1500):
        if rng.random() < 0.1 and len(lists) < 150:
            rid = f"r{turn}"
            lists[rid], expected[rid] = [], rng.choice([0.0, 50.0, 1000.0])
            tokens.add(rid, expected[rid])
        chosen = [rid for rid in lists if rng.random() < 0.7]
        rng.shuffle(chosen)
        ids = [rng.randrange(2**31) for _ in chosen]
        new = {rid for rid in chosen if not lists[rid]}
        assert set(tokens.step(chosen, pack_i32(ids))) == new
        for rid, each in zip(chosen, ids, strict=True):
            lists[rid].append(each)
        if lists and rng.random() < 0.1:
            rid = rng.choice(list(lists))
            ids = [rng.randrange(2**31) for _ in range(rng.choice([1, 3, BLOCK, 3 * BLOCK]))]
            assert tokens.extend(rid, pack_i32(ids)) == (not lists[rid])
            lists[rid] += ids
        if lists and rng.random() < 0.08:
            rid = rng.choice(list(lists))
            assert unpack_i32(tokens.of(rid)).tolist() == lists.pop(rid)
            tokens.drop(rid)
        left = sum(max(expected[rid] - len(each), 0.0) for rid, each in lists.items())
        assert tokens.remaining() == left
    assert max(map(len, lists.values())) > 2 * BLOCK
    for rid, each in lists.items():
        assert unpack_i32(tokens.of(rid)).tolist() == each


def test_a_request_that_was_not_added_is_an_error() -> None:
    with pytest.raises(KeyError):
        OutputTokens().step(["a"], pack_i32([1]))
