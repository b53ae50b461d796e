"""Work items of shared prefixes: every row and position once, for any size of the device, within its buffers."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from radixrt.attention.cascade import CascadeLimits, CascadePlan, Tile, plan_cascade
from radixrt.forward_batch.forward_batch import SharedGroups
from tests.attention.shared_batches import random_tree


def limits(**changes: object) -> CascadeLimits:
    values = {
        "heads": 32, "kv_heads": 8, "processors": 132, "max_rows": 64, "max_partials": 4096, "max_items": 2048
    }  # fmt: skip
    return CascadeLimits(**(values | changes))  # type: ignore[arg-type]


def sections(plan: CascadePlan, of: CascadeLimits) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    a, b, c, _ = np.cumsum(of.sections).tolist()
    p = plan.packed
    return p[:a], p[a:b], p[b:c].reshape(-1, 2), p[c:].reshape(-1, 6)


def check(plan: CascadePlan, shared: SharedGroups, req_pool_idx: np.ndarray, of: CascadeLimits) -> None:
    lane_ptr, row_ptr, members, items = sections(plan, of)
    assert plan.packed.shape == (of.packed_size,)
    assert lane_ptr[0] == 0
    assert (np.diff(lane_ptr) >= 0).all()
    assert lane_ptr[plan.lanes] == lane_ptr[-1] == plan.num_items
    assert row_ptr[-1] == plan.num_partials
    work: dict[tuple[int, int], int] = {}  # how often a row meets a position, and through which table row
    partials = []
    for table_row, start, length, first, count, _ in items[: plan.num_items].tolist():
        assert length > 0
        assert 0 < count <= plan.tile.block_m // of.group
        for row, partial in members[first : first + count].tolist():
            assert row_ptr[row] <= partial < row_ptr[row + 1]
            partials.append(partial)
            for position in range(start, start + length):
                work[(row, position)] = work.get((row, position), 0) + 1
            holders = [
                req_pool_idx[shared.rows[f : f + n]].tolist()
                for s, size, f, n in shared.segments.tolist()
                if s <= start and start + length <= s + size and row in shared.rows[f : f + n]
            ]
            assert table_row in holders[0]
    assert sorted(partials) == list(range(plan.num_partials))
    ends = shared.ends(len(req_pool_idx))
    assert work == {(row, position): 1 for row, end in enumerate(ends.tolist()) for position in range(end)}


@given(st.integers(0, 10_000), st.integers(2, 60), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 4, 132]))
@settings(max_examples=60, deadline=None)
def test_every_row_meets_each_shared_position_once(seed, num_rows, group, processors) -> None:
    batch = random_tree(np.random.default_rng(seed), num_rows, levels=4, run=700, own=3)
    of = limits(heads=8 * group, processors=processors)
    if len(batch.shared.segments):
        plan = plan_cascade(batch.shared, batch.rows, of)
        assert plan is not None
        check(plan, batch.shared, batch.rows, of)


def test_a_long_prefix_is_split_so_that_every_processor_has_work() -> None:
    rows = np.arange(256, dtype=np.int32)
    shared = SharedGroups(np.array([[0, 4096, 0, 256]], np.int32), rows)
    of = limits(max_rows=256)
    plan = plan_cascade(shared, rows, of)
    assert plan is not None
    assert plan.tile == Tile(128, 1)  # keys and values are loaded by half as many tiles
    lane_ptr = sections(plan, of)[0]
    assert plan.num_items == 16  # 8 tiles of 32 rows, each in two halves, for 8 kv heads: 128 of 132 processors
    assert np.diff(lane_ptr)[: plan.lanes].tolist() == [1] * 16


def test_small_groups_get_small_tiles() -> None:
    rows = np.arange(64, dtype=np.int32)
    segments = [(0, 1024, first, 8) for first in range(0, 64, 8)]
    plan = plan_cascade(SharedGroups(np.array(segments, np.int32), rows), rows, limits())
    assert plan is not None
    assert plan.tile.block_m == 64


def test_splits_keep_within_the_buffers_or_there_is_no_plan() -> None:
    rows = np.arange(4, dtype=np.int32)
    shared = SharedGroups(np.array([[0, 4096, 0, 4]], np.int32), rows)
    free = plan_cascade(shared, rows, limits())
    assert free is not None
    assert free.num_items > 4
    for tight in (limits(max_items=3), limits(max_partials=12)):
        plan = plan_cascade(shared, rows, tight)
        assert plan is not None
        assert plan.num_items <= 3
        check(plan, shared, rows, tight)
    assert plan_cascade(shared, rows, limits(max_partials=3)) is None
    assert plan_cascade(shared, rows, limits(max_rows=3)) is None
