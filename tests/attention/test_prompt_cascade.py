"""Prompts with shared prefixes: each query attends to its groups once, and the result equals that without sharing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.prompt_cascade import plan_prompts
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.forward_batch.forward_batch import SharedGroups
from tests.attention.shared_batches import extend_step, random_tree

CPU = torch.device("cpu")


def test_the_queries_of_each_group_and_the_partial_results_of_each_query() -> None:
    groups = SharedGroups(np.array([[0, 9, 0, 3], [9, 4, 1, 2]], np.int32), np.array([2, 3, 0, 1], np.int32))
    plan = plan_prompts(groups, np.array([2, 1, 3, 4], np.int32))
    assert plan.ends.tolist() == [13, 0, 9, 13]
    assert plan.leaders.tolist() == [2, 3]
    assert plan.starts.tolist() == [0, 9]
    assert plan.key_lens.tolist() == [9, 4]
    assert plan.query_lens.tolist() == [9, 6]
    # Rows 2, 3 and 0, whose tokens are 3 to 5, 6 to 9, and 0 and 1; then 3 and 0.
    assert plan.queries.tolist() == [3, 4, 5, 6, 7, 8, 9, 0, 1, 6, 7, 8, 9, 0, 1]
    assert not plan.in_order
    of_token = [plan.partials[a:b].tolist() for a, b in zip(plan.row_ptr, plan.row_ptr[1:], strict=False)]
    assert of_token == [[7, 13], [8, 14], [], [0], [1], [2], [3, 9], [4, 10], [5, 11], [6, 12]]
    assert {a.dtype for a in (plan.ends, plan.leaders, plan.query_lens, plan.queries, plan.row_ptr, plan.partials)} == {
        np.dtype(np.int32)
    }


def test_one_group_of_all_rows_leaves_the_queries_as_they_are() -> None:
    groups = SharedGroups(np.array([[0, 9, 0, 3]], np.int32), np.arange(3, dtype=np.int32))
    assert plan_prompts(groups, np.array([2, 1, 3], np.int32)).in_order


@pytest.mark.parametrize("seed", range(20))
def test_each_query_meets_every_group_of_its_row_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 12, levels=4, run=30, own=9)
    if not len(tree.shared.segments):
        return
    extends = rng.integers(1, 8, 12).astype(np.int32)
    plan = plan_prompts(tree.shared, extends)
    row_of = np.repeat(np.arange(12), extends)
    group_of = np.repeat(np.arange(len(tree.shared.segments)), plan.query_lens)
    for token, row in enumerate(row_of.tolist()):
        partials = plan.partials[plan.row_ptr[token] : plan.row_ptr[token + 1]]
        assert (plan.queries[partials] == token).all()
        mine = [
            group
            for group, (_, _, first, count) in enumerate(tree.shared.segments.tolist())
            if row in tree.shared.rows[first : first + count]
        ]
        assert sorted(group_of[partials].tolist()) == mine
    assert np.array_equal(np.sort(plan.partials), np.arange(len(plan.queries)))


def test_groups_of_some_rows_alone() -> None:
    groups = SharedGroups(
        np.array([[0, 9, 0, 2], [0, 5, 2, 3], [5, 2, 3, 2]], np.int32), np.array([1, 0, 4, 3, 5], np.int32)
    )
    assert groups.between(0, 6) is groups
    first, second = groups.between(0, 2), groups.between(3, 6)
    assert first is not None
    assert second is not None
    assert (first.segments.tolist(), first.rows.tolist()) == ([[0, 9, 0, 2]], [1, 0])
    assert (second.segments.tolist(), second.rows.tolist()) == ([[0, 5, 0, 3], [5, 2, 1, 2]], [1, 0, 2])
    assert groups.between(2, 3) is None
    assert groups.segments[1, 2] == 2, "the step's own groups are left alone"


def test_groups_of_the_rows_that_sample() -> None:
    """Rows that share nothing do not count, though `rows` may hold them."""
    groups = SharedGroups(np.array([[0, 9, 1, 2], [0, 5, 4, 2]], np.int32), np.array([6, 1, 0, 5, 4, 3], np.int32))
    chosen = np.array([1, 1, 1, 1, 1, 0, 0], bool)
    among = groups.among(chosen)
    assert among is not None
    assert [among.rows[f : f + n].tolist() for _, _, f, n in among.segments.tolist()] == [[1, 0], [4, 3]]
    chosen[2] = False
    among = groups.among(chosen)
    assert among is not None
    assert [among.rows[f : f + n].tolist() for _, _, f, n in among.segments.tolist()] == [[1, 0], [3, 2]]
    chosen[4] = False
    assert groups.among(chosen) is None


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("seed", range(6))
def test_the_reference_gives_what_it_gives_without_sharing(seed: int, window: int | None) -> None:
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    prompts = random_tree(rng, 9, levels=4, run=60, own=30, least=3)
    single = random_tree(rng, 6, levels=3, run=40, own=10)
    batch = extend_step(prompts, single, rng, CPU)
    assert batch.shared is not None
    layer = AttentionLayer(0, 4, 2, 16, 0.25, window)
    q, k, v = (torch.randn(batch.num_tokens, n, 16, generator=generator) for n in (4, 2, 2))
    kv = KVCache([layer], prompts.num_slots + single.num_slots, 1, torch.float32, CPU)
    for pool in (kv.k[0], kv.v[0]):
        pool.copy_(torch.randn(pool.shape, generator=generator))
    backend, sinks = TorchNativeBackend(kv), torch.tensor([-2.0, 0.0, 1.0, 3.0]) if seed % 2 else None
    found = []
    for each in (batch, replace(batch, shared=None, narrowed=None)):
        backend.prepare(each)
        found.append(backend.attend(layer, q, k, v, each, sinks))
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)
    if batch.narrowed is not None:
        backend.prepare(batch)
        last = backend.attend(layer, q[batch.logits_index], None, None, batch.narrowed, sinks)
        torch.testing.assert_close(last[:-3], found[1][batch.logits_index[:-3]], atol=1e-6, rtol=1e-5)
