"""Prefixes of models with recurrent layers: a state leaves the pool with its prefix, and comes back with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from radixrt.errors import InvariantError
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.kv_moves import STATE_TOKEN, KVIn, KVLoad, KVOut, KVSave
from radixrt.messages.parts import ProgramHint
from radixrt.messages.state_slots import RESERVED_STATES
from radixrt.messages.wire import unpack_i32
from radixrt.parts.tiers import ends
from radixrt.parts.tiers.ends import PageEnds, StateEnds
from radixrt.parts.tiers.tier import Tier, root_name
from tests.parts.tiers.events import run
from tests.parts.tiers.harness import Sizes, TieredHarness

PROMPT = [1 + i * i % 37 for i in range(200)]
ROWS = 5
SEQUENCES, EVENTS = 150, 120


def harness(rows: int = ROWS, *, states: int = 12, ranks: int = 1, **options: Any) -> TieredHarness:
    """A harness of a model whose states take `rows` rows, with moves that end at once."""
    sizes = Sizes(ranks=ranks, host_pages=60, file_pages=60, state_rows=rows)
    options = {"eager": 0.9, "num_slots": 1024, "max_context": 1024, "max_running_requests": 4, **options}
    return TieredHarness(sizes, num_states=RESERVED_STATES + states, **options)


def ask(h: TieredHarness, rid: str, prompt: list[int], **fields: Any) -> int:
    """Serve a request to its end; return the number of its prompt tokens that were not computed."""
    h.add(rid, prompt, **{"max_tokens": 1, "ignore_eos": True, **fields})
    h.drain()
    h.assert_output(rid)
    return h.usages[rid].cached_tokens


def forget_pool(h: TieredHarness) -> None:
    """Copy all that is worth it, then evict the pool."""
    h.rest()
    h.cache.evict(h.cache.evictable_size)
    assert h.cache.total_size == 0
    h.orders.clear()


def kept(h: TieredHarness, tokens: list[int]) -> int:
    """Length of the longest prefix in the host tier."""
    return h.tiers.kept(np.array(tokens, np.int32), "")["host"]


@pytest.mark.parametrize("rows", [1, ROWS, 64, 150])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prompt_comes_back_with_the_state_before_its_last_token(rows: int, ranks: int) -> None:
    h = harness(rows, ranks=ranks)
    ask(h, "first", PROMPT)
    forget_pool(h)
    computed = h.runner.tokens_computed
    assert ask(h, "again", PROMPT) == 199
    assert h.runner.tokens_computed == computed + 1
    assert h.usages["again"].fetched_tokens == {"host": 199}
    moved = np.concatenate([unpack_i32(order.slots) for order in h.sent_orders(KVIn)])
    assert (moved < 0).sum() == rows
    assert len(moved) == 199 + rows, "nothing of the padding is copied"
    h.check_idle()


def test_a_prefix_without_a_state_of_its_own_does_not_come_back() -> None:
    h = harness()
    ask(h, "first", PROMPT)
    forget_pool(h)
    assert kept(h, PROMPT[:190]) == 0
    assert ask(h, "other", PROMPT[:190] + [7] * 20) == 0
    assert not h.sent_orders(KVIn)


def test_a_fork_comes_back_at_the_end_of_its_shared_prefix() -> None:
    h = harness()
    hint = ProgramHint("p", "0/2", fork_len=150, siblings=2, will_continue=True)
    ask(h, "branch", PROMPT[:150] + [7] * 60, program=hint)
    forget_pool(h)
    assert kept(h, PROMPT) == 150
    assert ask(h, "sibling", PROMPT[:150] + [8] * 60) == 150


def test_a_state_alone_comes_back_for_keys_and_values_that_are_in_the_pool() -> None:
    h = harness()
    ask(h, "first", PROMPT)
    h.rest()
    assert h.cache.node_states is not None
    h.cache.node_states.evict_all()
    h.orders.clear()
    assert ask(h, "again", PROMPT) == 199
    (order,) = h.sent_orders(KVIn)
    assert (unpack_i32(order.slots) < 0).all()
    h.check_idle()


def test_states_are_copied_once_states_were_evicted_though_no_token_was() -> None:
    h = harness(states=3, num_slots=4096)
    for i in range(6):
        ask(h, f"r{i}", [i + 1, *PROMPT])
    assert h.cache.evicted_tokens == 0
    assert h.sent_orders(KVOut)
    assert max(ask(h, f"again{i}", [i + 1, *PROMPT]) for i in range(3)) == 200
    h.check_idle()


def test_a_state_near_another_one_is_not_kept() -> None:
    h = harness()
    ask(h, "first", PROMPT, max_tokens=20)
    forget_pool(h)
    assert kept(h, [*PROMPT, *h.outputs["first"]]) == 199, "the end of the answer is less than a page behind"


def test_keys_and_values_without_a_state_leave_the_host_tier_first() -> None:
    h = harness()
    ask(h, "old", PROMPT)
    ask(h, "new", [9, *PROMPT])
    forget_pool(h)
    host = h.tiers.host
    whole = np.array([9, *PROMPT], np.int32)[:192]
    leaf = host.match(h.tiers._ends.key(np.array([9, *PROMPT[:199]], np.int32)), root_name("")).node
    assert host.cache.node_at(whole, root_name("")) is leaf.parent, "the state is a node of its own now"
    assert host.cache.remove(leaf)
    assert kept(h, [9, *PROMPT]) == 0
    host.cache.evict(1)
    assert host.match_len(whole, root_name("")) == 0
    assert kept(h, PROMPT) == 199


@pytest.mark.parametrize("keeps_memory", [True, False])
def test_a_new_scheduler_finds_states_in_memory_and_a_new_engine_on_disk(keeps_memory: bool) -> None:
    h = harness(70)
    ask(h, "first", PROMPT)
    h.rest()
    assert h.sent_orders(KVSave)
    h.restart_engine(keeps_memory=keeps_memory)
    h.check_tiers()
    assert ask(h, "again", PROMPT) == 199
    assert bool(h.sent_orders(KVLoad)) is not keeps_memory
    h.check_idle()


@pytest.mark.parametrize("page", [0, 3, 4, 5])
def test_a_damaged_page_of_a_prefix_or_of_its_state_means_that_all_is_computed(page: int) -> None:
    h = harness(150)
    ask(h, "first", PROMPT)
    h.rest()
    h.restart_engine()
    (files,) = h.host.files
    files[sorted(files)[page]].cells[10, 0] ^= 1
    assert ask(h, "again", PROMPT) == 0
    h.check_idle()


def test_a_state_slot_that_a_fetch_has_reserved_is_not_missed_by_running_requests() -> None:
    h = harness(states=4)
    ask(h, "first", PROMPT)
    forget_pool(h)
    h.eager = 0.0
    h.add("again", PROMPT, max_tokens=1)
    assert not h.submit()
    assert len(h.scheduler.kv.copies.reserved_states) == 1
    for i in range(4):
        h.add(f"r{i}", [40 + i] * 100, max_tokens=4, ignore_eos=True)
    for _ in range(8):
        h.turn()
    h.eager = 0.9
    h.drain()
    for rid in ("again", *(f"r{i}" for i in range(4))):
        h.assert_output(rid)
    h.check_idle()


def test_no_prompt_has_the_token_of_states() -> None:
    assert STATE_TOKEN < 0


# --- mutants: each mistake is found by random sequences of all events ---

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(patch: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[patch.__name__] = patch
    return patch


@mutant
def a_state_moves_before_the_step_that_writes_it(patch: Patch) -> None:
    def send_orders(self: TieredHarness) -> None:
        first = len(self.sent)
        real(self)
        self.sent.rotate(len(self.sent) - first)

    real = TieredHarness.send_orders
    patch.setattr(TieredHarness, "send_orders", send_orders)


@mutant
def a_prefix_moves_with_the_state_of_another_node(patch: Patch) -> None:
    def leaving(self: StateEnds, end: TreeNode) -> ends.Leaving:
        found = real(self, end)
        others = [node for node in self._cache.iter_nodes() if node.state is not None and node is not end]
        if others and others[0].state is not None:
            count = len(found.slots) - (found.slots < 0).sum()
            slots = found.slots.copy()
            slots[slots < 0] = ends.state_slots(others[0].state.slot, self._rows)
            assert len(slots) == count + self._rows
            return found._replace(slots=slots)
        return found

    real = StateEnds.leaving
    patch.setattr(StateEnds, "leaving", leaving)


@mutant
def a_state_is_free_while_a_copy_reads_it(patch: Patch) -> None:
    """Later pieces of the state wait for their turn."""
    patch.setattr(StateEnds, "hold", PageEnds.hold)
    patch.setattr(StateEnds, "let_go", PageEnds.let_go)


@mutant
def a_state_slot_is_free_while_a_copy_writes_it(patch: Patch) -> None:
    def begin(self: StateEnds, *args: Any) -> ends.Coming | None:
        coming = real(self, *args)
        if coming is not None:
            self._copies.cancel_state(coming.state)
        return coming

    def end(self: StateEnds, coming: ends.Coming, *, copied: bool) -> None:
        if (slot := self._states.slots.alloc()) is not None:
            self._copies.reserved_states.append(slot)
            real_end(self, coming._replace(state=slot), copied=copied)
        else:
            PageEnds.end(self, coming, copied=copied)

    real, real_end = StateEnds.begin, StateEnds.end
    patch.setattr(StateEnds, "begin", begin)
    patch.setattr(StateEnds, "end", end)


@mutant
def a_state_comes_to_another_position(patch: Patch) -> None:
    def end(self: StateEnds, coming: ends.Coming, *, copied: bool) -> None:
        arrival = coming.arrival
        PageEnds.end(self, coming, copied=copied)
        node = self._cache.node_at(arrival.tokens[:-1], arrival.namespace) if copied else None
        if node is None:
            self._copies.cancel_state(coming.state)
        else:
            self._copies.adopt_state(coming.state, node)

    patch.setattr(StateEnds, "end", end)


@mutant
def a_prefix_is_fetched_without_its_state(patch: Patch) -> None:
    """The state slot of the prefix gets no copy."""

    def begin(self: StateEnds, *args: Any) -> ends.Coming | None:
        coming = real(self, *args)
        if coming is None or not len(coming.arrival.slots):
            return coming
        return coming._replace(slots=coming.arrival.slots)

    real = StateEnds.begin
    patch.setattr(StateEnds, "begin", begin)


@mutant
def a_prefix_is_found_where_its_state_ends_early(patch: Patch) -> None:
    """The state of another tail of the same page is taken for the prefix's."""

    def found(self: StateEnds, tier: Tier, tokens: ends.Int32Array, root: str) -> int:
        length = real(self, tier, tokens, root)
        return min(length + 1, len(tokens)) if length else 0

    def key(self: StateEnds, tokens: ends.Int32Array) -> ends.Int32Array:
        right = real_key(self, tokens)
        return real_key(self, tokens[:-1]) if len(tokens) % self._page > 1 else right

    real, real_key = StateEnds.found, StateEnds.key
    patch.setattr(StateEnds, "found", found)
    patch.setattr(StateEnds, "key", key)


def found() -> int | None:
    """Return the first sequence that fails, None if none does."""
    for seed in range(SEQUENCES):
        try:
            run(seed, EVENTS, states=(2, 5, 12)[seed % 3], state_rows=(5, 70)[seed % 2])
        except (AssertionError, InvariantError, RuntimeError, IndexError, KeyError, ValueError) as error:
            print(f"sequence {seed}: {error!r:.90}")
            return seed
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        seed = found()
    assert seed is not None, f"{SEQUENCES} sequences of {EVENTS} events have not found it"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
