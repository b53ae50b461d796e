"""Search for shared runs on random trees, against an oracle that compares slots, and bounds on its cost."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from radixrt.attention.cascade_costs import cascade_costs
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.runner import CascadeCosts, PromptCosts
from radixrt.messages.wire import unpack_i32
from radixrt.parts.sharing.costs import DecodeSharing, PromptSharing, Run
from radixrt.parts.sharing.scheduler import SharingPlanner, find_runs
from radixrt.scheduler.req import KVState
from tests.scheduler.fake_runner import FREE, Harness
from tests.step_sections import shared_in

# Few tokens, so that paths share and branch at every depth.
KEYS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), max_size=7), st.sampled_from(["", "", "other"])), min_size=1, max_size=14
)
COSTS = st.builds(
    CascadeCosts,
    step_tokens=st.sampled_from([0.0, 0.0, 5.0]),
    run_tokens=st.sampled_from([0.0, 1.0, 4.0]),
    row_tokens=st.sampled_from([0.0, 0.5, 2.0]),
    compute=st.sampled_from([0.0, 0.125, 0.5]),
    min_length=st.integers(1, 3),
)


class Tree:
    """Rows of a cache, each locked at the end of its path."""

    def __init__(self, keys: list[tuple[list[int], str]], page_size: int = 1, slots: int = 256) -> None:
        self.allocator = TokenToKVPoolAllocator(slots * page_size, page_size)
        self.cache = RadixCache(self.allocator)
        self.nodes: list[TreeNode] = []
        self.slots: list[list[int]] = []
        for tokens, namespace in keys:
            self.insert([t for t in tokens for _ in range(page_size)], namespace)
            match = self.cache.match_prefix(
                np.array([t for t in tokens for _ in range(page_size)], np.int32), namespace
            )
            self.cache.inc_lock_ref(match[1])
            self.slots.append(match[0].tolist())
            self.nodes.append(match[1])

    def insert(self, tokens: list[int], namespace: str) -> None:
        slots = self.allocator.alloc_extend(0, len(tokens), 0) if tokens else np.empty(0, np.int32)
        assert slots is not None
        existing = self.cache.insert(np.array(tokens, np.int32), slots, namespace).existing_len
        if existing:
            self.allocator.free(slots[:existing].copy())

    def find(self, costs: CascadeCosts) -> tuple[list[int], list[Run]]:
        return find_runs(self.nodes, [len(s) for s in self.slots], DecodeSharing(costs))


def shared_sets(slots: list[list[int]]) -> dict[tuple[int, frozenset[int]], None]:
    """(position, rows) of all that two rows or more have in common, by comparing slots."""
    found = {}
    for position in range(max((len(s) for s in slots), default=0)):
        by_slot: dict[int, set[int]] = {}
        for row, path in enumerate(slots):
            if position < len(path):
                by_slot.setdefault(path[position], set()).add(row)
        found |= {(position, frozenset(rows)): None for rows in by_slot.values() if len(rows) > 1}
    return found


def check_coverage(slots: list[list[int]], order: list[int], runs: list[Run]) -> None:
    """Runs have two rows or more and the same slots for all of them; those of a row cover a prefix of it, in order."""
    assert len(set(order)) == len(order)
    covered = [0] * len(slots)
    for run in runs:
        rows = order[run.first : run.first + run.count]
        assert len(rows) == run.count >= 2
        assert run.end > run.start
        assert len({tuple(slots[row][run.start : run.end]) for row in rows}) == 1
        for row in rows:
            assert covered[row] == run.start
            covered[row] = run.end
            assert run.end <= len(slots[row])


@given(KEYS, st.sampled_from([1, 1, 2]))
@settings(max_examples=300, deadline=None)
def test_where_it_costs_nothing_all_that_rows_share_is_found(keys, page_size) -> None:
    tree = Tree(keys, page_size)
    order, runs = tree.find(FREE)
    check_coverage(tree.slots, order, runs)
    found = {(p, frozenset(order[r.first : r.first + r.count])) for r in runs for p in range(r.start, r.end)}
    assert found == shared_sets(tree.slots).keys()
    rows_of = [frozenset(order[r.first : r.first + r.count]) for r in runs]
    assert len(set(rows_of)) == len(runs), "two runs of the same rows are one"


@given(KEYS, COSTS)
@settings(max_examples=300, deadline=None)
def test_what_is_chosen_covers_prefixes_and_saves_more_than_all_or_nothing(keys, costs) -> None:
    tree = Tree(keys)
    model = DecodeSharing(costs)
    order, runs = tree.find(costs)
    check_coverage(tree.slots, order, runs)
    assert all(run.end - run.start >= costs.min_length for run in runs)
    saved = sum(run.saved(model) for run in runs) - costs.step_tokens
    every = tree.find(FREE)[1]
    long_enough = all(run.end - run.start >= costs.min_length for run in every)
    everything = sum(run.saved(model) for run in every) - costs.step_tokens
    if runs:
        assert saved > 0
        assert saved >= everything or not long_enough
    elif long_enough:
        assert everything <= 0


def test_levels_that_do_not_pay_join_the_next_or_go() -> None:
    a, b, c = [1] * 40, [2] * 2, [3] * 30
    rows = [a + b + c + [i] for i in range(4, 10)] + [[*a, 9]]
    tree = Tree([(row, "") for row in rows])
    costs = CascadeCosts(step_tokens=0, run_tokens=4, row_tokens=1)
    # One row leaves after 40; the two positions after them go with the next 30.
    assert [(r.start, r.end, r.count) for r in tree.find(costs)[1]] == [(0, 40, 7), (40, 72, 6)]
    # With the branch too small to pay for itself, it is left to its two rows.
    small = Tree([([*a, 5, 6], ""), ([*a, 5, 7], ""), ([*a, 8], "")])
    assert [(r.start, r.end, r.count) for r in small.find(costs)[1]] == [(0, 40, 3)]
    # A root so short that it is cheaper read by each branch.
    short = Tree([([1] * 2 + [branch] * 40 + [leaf], "") for branch in (2, 3) for leaf in (4, 5)])
    assert [(r.start, r.end, r.count) for r in short.find(costs)[1]] == [(0, 42, 2), (0, 42, 2)]


def test_a_step_that_saves_less_than_it_costs_shares_nothing() -> None:
    tree = Tree([([1] * 30 + [leaf], "") for leaf in (2, 3)])
    assert tree.find(CascadeCosts(step_tokens=29, run_tokens=0, row_tokens=0))[1]
    assert not tree.find(CascadeCosts(step_tokens=30, run_tokens=0, row_tokens=0))[1]


def test_costs_by_device() -> None:
    assert cascade_costs("cuda", 0, 0) is None
    gpu, cpu = cascade_costs("cuda", 4096, 4096), cascade_costs("cpu", 768, 576)
    assert gpu is not None
    assert cpu is not None
    assert gpu.in_extend
    assert cpu.in_extend
    # 256 rows with 4096 positions in common pay on any device; two rows with 100 do not on a GPU.
    assert Run(0, 4096, 0, 256).saved(DecodeSharing(gpu)) > 90 * gpu.step_tokens
    assert Run(0, 100, 0, 2).saved(DecodeSharing(gpu)) < gpu.step_tokens
    # Fewer bytes a token: more of them are read in the time that a kernel takes to start.
    small = cascade_costs("cuda", 1024, 1024)
    assert small is not None
    assert small.step_tokens == 4 * gpu.step_tokens


PROMPT_COSTS = st.builds(
    PromptCosts,
    step=st.sampled_from([0.0, 0.0, 5.0]),
    run=st.sampled_from([0.0, 1.0, 4.0]),
    token=st.sampled_from([0.0, 0.01, 0.5]),
    dense=st.sampled_from([0.5, 0.75, 1.0]),
    min_length=st.integers(1, 3),
)


@given(KEYS, st.lists(st.sampled_from([2, 16, 128, 300]), min_size=14, max_size=14), PROMPT_COSTS)
@settings(max_examples=300, deadline=None)
def test_what_is_chosen_for_prompts_covers_prefixes_and_saves_more_than_all_or_nothing(keys, queries, costs) -> None:
    tree = Tree(keys)
    queries = queries[: len(keys)]
    model = PromptSharing(costs)
    order, runs = find_runs(tree.nodes, [len(s) for s in tree.slots], model, queries)
    check_coverage(tree.slots, order, runs)
    for run in runs:
        mine = [queries[row] for row in order[run.first : run.first + run.count]]
        assert run.queries == sum(mine)
        assert run.tiles == pytest.approx(sum(map(model.row_tiles, mine)))
    assert FREE.prompts is not None
    every = find_runs(tree.nodes, [len(s) for s in tree.slots], PromptSharing(FREE.prompts), queries)[1]
    long_enough = all(run.end - run.start >= costs.min_length for run in every)
    everything = sum(run.saved(model) for run in every) - costs.step
    if runs:
        saved = sum(run.saved(model) for run in runs) - costs.step
        assert saved > 0
        assert saved >= everything - 1e-9 or not long_enough
    elif long_enough:
        assert everything <= 0


def prompts_on_gpu(kv_layer_bytes: int, query_size: int) -> PromptSharing:
    costs = cascade_costs("cuda", kv_layer_bytes, query_size)
    assert costs is not None
    assert costs.prompts is not None
    return PromptSharing(costs.prompts)


def test_what_prompts_save() -> None:
    # Few queries go through small tiles: 16 of them cost a quarter of what 64 to 128 cost; many fill large ones.
    model = PromptSharing(PromptCosts(step=0, run=10, token=2, copy=0.5, dense=0.75))
    row_tiles = model.row_tiles
    assert [row_tiles(n) for n in (1, 16, 17, 64)] == [0.25, 0.25, 0.5, 1]
    assert [row_tiles(n) for n in (100, 128, 129, 1024)] == [1, 1, 2, 8]
    assert all(row_tiles(n) >= n / 128 for n in range(1, 2000))
    run = Run(0, 4096, 0, 256, queries=4096, tiles=64)
    assert run.saved(model) == pytest.approx(4096 * (64 - 0.75 * 32 - 0.5) - 10 - 2 * 4096)
    # Two rows that do not fill a tile are better left alone.
    assert Run(0, 4096, 0, 2, queries=32, tiles=0.5).saved(model) < 0
    # On a GPU: 256 prompts of 16 tokens behind 4096 pay on the 8B shape, eight of them do not.
    gpu = prompts_on_gpu(4096, 4096)
    assert run.saved(gpu) > gpu.step
    assert Run(0, 4096, 0, 8, queries=128, tiles=2).saved(gpu) < gpu.step
    # Half the queries: half the time of a position, so twice as many in the time of what is fixed.
    assert prompts_on_gpu(4096, 2048).step == 2 * gpu.step


@pytest.mark.parametrize(("root", "branches", "rows"), [(400, 32, 2), (900, 8, 6), (900, 2, 40)])
def test_a_prefix_is_not_copied_once_for_each_branch(root: int, branches: int, rows: int) -> None:
    """Runs of prompts are merged; small branches under a long root must not each include the root."""
    paths = [[1] * root + [2 + b] * 40 + [100 + r] for b in range(branches) for r in range(rows)]
    tree = Tree([(path, "") for path in paths], slots=20_000)
    costs = msgspec.structs.replace(prompts_on_gpu(4096, 4096).costs, step=0.0)
    order, runs = find_runs(tree.nodes, [len(s) for s in tree.slots], PromptSharing(costs), [16] * len(paths))
    check_coverage(tree.slots, order, runs)
    assert runs
    distinct = len({slot for path in tree.slots for slot in path})
    assert sum(run.end - run.start for run in runs) <= distinct


class Row:
    def __init__(self, node: TreeNode, length: int) -> None:
        self.kv = KVState(last_node=node, protected_len=length)


def test_runs_are_found_anew_only_when_rows_or_their_ends_change(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree([([1] * 30 + [leaf], "") for leaf in range(2, 6)])
    rows = [Row(node, 31) for node in tree.nodes]
    planner = SharingPlanner(FREE)
    first = planner.columns(rows)
    assert unpack_i32(first.segments).tolist() == [0, 30, 0, 4]
    assert sorted(unpack_i32(first.rows).tolist()) == [0, 1, 2, 3]
    tree.insert([1] * 10 + [9], "")  # splits the common node: positions and slots stay
    assert planner.columns(list(rows)) is first
    fewer = planner.columns(rows[:3])
    assert unpack_i32(fewer.segments).tolist() == [0, 30, 0, 3]
    assert unpack_i32(planner.columns(rows[:3], first_row=2).rows).min() == 2
    rows[0].kv = KVState(last_node=tree.nodes[0].parent, protected_len=30)
    assert unpack_i32(planner.columns(rows[:3]).segments).tolist() == [0, 30, 0, 3]


def test_decode_rows_that_ride_with_a_chunk_share_only_where_that_is_wanted() -> None:
    for in_extend in (True, False):
        costs = CascadeCosts(0, 0, 0, min_length=1, in_extend=in_extend)
        h = Harness(chunked_prefill_size=8, num_slots=128, cascade=costs)
        for leaf in (5, 6):
            h.add(f"r{leaf}", [1, 2, 3, 4, leaf], max_tokens=12)
        h.turn()
        h.turn()
        h.turn()
        h.add("long", list(range(10, 40)))
        h.drain()
        mixed = [s for s in h.steps if s.mode == 1 and len(s.samples) > 1 and -1 in unpack_i32(s.input_ids)]
        assert mixed
        assert any(shared_in(s).segments for s in mixed) == in_extend
        assert any(shared_in(s).segments for s in h.steps if s.mode == 2)
        for rid in ("r5", "r6", "long"):
            h.assert_output(rid)


def test_an_extend_step_says_what_its_prompts_and_its_single_tokens_share() -> None:
    tree = Tree([([1] * 30 + [leaf], "") for leaf in range(2, 8)])
    rows = [Row(node, 31) for node in tree.nodes]
    planner = SharingPlanner(FREE)
    columns = planner.extend_columns(rows[:3], [5, 6, 7], rows[3:], first_single=4)
    assert unpack_i32(columns.segments).reshape(-1, 4).tolist() == [[0, 30, 0, 3], [0, 30, 3, 3]]
    found = unpack_i32(columns.rows).tolist()
    assert (sorted(found[:3]), sorted(found[3:])) == ([0, 1, 2], [4, 5, 6])
    assert planner.extend_columns(rows[:1], [5], rows[3:], first_single=1) == planner.columns(rows[3:], 1)
    assert planner.extend_columns(rows[:2], [5, 5], [], first_single=2).segments
    alone = SharingPlanner(msgspec.structs.replace(FREE, prompts=None)).extend_columns(
        rows[:3], [5, 6, 7], rows[3:], first_single=4
    )
    assert unpack_i32(alone.segments).tolist() == [0, 30, 0, 3]
    assert min(unpack_i32(alone.rows).tolist()) == 4


def test_prompts_behind_a_cached_prefix_share_it() -> None:
    h = Harness(num_slots=256, max_running_requests=8)
    h.add("first", list(range(1, 21)), max_tokens=2)
    h.drain()
    for leaf in range(4):
        h.add(f"r{leaf}", [*range(1, 21), 30 + leaf, 40], max_tokens=3)
    h.add("cached to its last token", [*range(1, 21)], max_tokens=3)
    h.drain()
    (step,) = [s for s in h.steps if s.mode == 1 and shared_in(s).segments]
    segments = unpack_i32(shared_in(step).segments).reshape(-1, 4).tolist()
    assert [(start, length, count) for start, length, _, count in segments] == [(0, 20, 4)]
    for rid in ("first", *(f"r{leaf}" for leaf in range(4)), "cached to its last token"):
        h.assert_output(rid)


def test_without_a_radix_cache_nothing_is_shared() -> None:
    h = Harness(cache=False, num_slots=128)
    for leaf in (5, 6):
        h.add(f"r{leaf}", [1, 2, 3, 4, leaf], max_tokens=6)
    h.drain()
    assert not any(shared_in(s).segments for s in h.steps)
