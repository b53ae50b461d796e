"""Invariants of the scheduler's state: run after every step in tests and with `check_invariants`, and when idle."""

from __future__ import annotations

from collections import Counter

import numpy as np

from radixrt.errors import InvariantError
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.tree_node import RETAIN_NORMAL, TreeNode
from radixrt.messages.state_slots import RESERVED_STATES, ZERO_STATE
from radixrt.messages.wire import Int32Array
from radixrt.scheduler.programs import PROGRAM_SHARE
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Every invariant of slots, tree and rows.

    Raises:
        InvariantError: the first invariant that does not hold, with its figures.
    """
    kv = scheduler.kv
    kv.allocator.check_invariants()
    kv.cache.check_invariants([r.kv.last_node for r in scheduler.active])
    check_slots(scheduler)
    check_rows(scheduler)
    check_states(scheduler)
    check_programs(scheduler)


def check_slots(scheduler: Scheduler) -> None:
    """free + evictable + protected + private == num_slots, private sets disjoint from one another and from slot 0.

    A request's private slots are whole pages: row[protected_len:length] rounded up to a page.
    """
    kv = scheduler.kv
    private = [_private_pages(scheduler, r) for r in scheduler.active]
    pages = np.concatenate([np.empty(0, np.int32), *private])
    if len(np.unique(pages)) != len(pages) or 0 in pages:
        raise InvariantError("two requests share a private page, or one holds the padding page")
    allocator: TokenToKVPoolAllocator = kv.allocator
    parts = (
        allocator.available(), kv.cache.evictable_size, kv.cache.protected_size, len(pages) * allocator.page_size
    )  # fmt: skip
    if sum(parts) != allocator.num_slots:
        raise InvariantError(
            f"free {parts[0]} + evictable {parts[1]} + protected {parts[2]} + private {parts[3]} = {sum(parts)}, "
            f"not the pool's {allocator.num_slots}"
        )


def _private_pages(scheduler: Scheduler, req: Req) -> Int32Array:
    kv = scheduler.kv
    row = kv.rows.table[req.kv.req_pool_idx, req.kv.protected_len : req.kv.length]
    return row if kv.allocator.page_size == 1 else np.unique(row // kv.allocator.page_size)


def check_states(scheduler: Scheduler) -> None:
    """free + in the tree + held by active requests == usable state slots, one owner each; pins of a node's state ==
    requests that are about to read it, and it is the state after their first state_len tokens; state_len <= length,
    and equal for a running request that decodes."""
    states = scheduler.kv.states
    if states is None:
        return
    pins: Counter[TreeNode] = Counter()
    held = list(states.slots.free_slots())
    for req in scheduler.active:
        kv = req.kv
        if kv.state_node is not None:
            pins[kv.state_node] += 1
            state = kv.state_node.state
            if state is None or state.slot != kv.state_slot or kv.state_node not in kv.last_node.path():
                raise InvariantError(f"request {req.rid} is about to read a state that its path does not have")
            if sum(node.num_tokens for node in kv.state_node.path()) != kv.state_len:
                raise InvariantError(f"request {req.rid}: its state is not after {kv.state_len} tokens")
        elif kv.state_slot != ZERO_STATE:
            held.append(kv.state_slot)
        elif kv.state_len:
            raise InvariantError(f"request {req.rid} has read {kv.state_len} tokens, but has no state")
        if kv.spare_slot != ZERO_STATE:
            held.append(kv.spare_slot)
        decodes = req.state is ReqState.RUNNING and req.member is None
        if kv.state_len > kv.length or (decodes and (kv.state_len < kv.length or kv.state_node is not None)):
            raise InvariantError(
                f"request {req.rid}: state after {kv.state_len} tokens, keys and values of {kv.length}"
            )
    for node in scheduler.kv.cache.iter_nodes():
        if node.state is not None:
            held.append(node.state.slot)
            if node.state.pins != pins[node]:
                raise InvariantError(f"{node!r}: its state has {node.state.pins} pins, {pins[node]} requests read it")
    usable = set(range(RESERVED_STATES, states.slots.num_states))
    if len(held) != len(usable) or set(held) != usable:
        raise InvariantError(f"{len(usable)} state slots, but {len(held)} owners of {len(set(held))} slots")


def check_programs(scheduler: Scheduler) -> None:
    """retention(node) == highest level of its holds for the nodes that programs hold, <= RETAIN_NORMAL for all others;
    sum of tokens over programs == held_tokens, and no bound is exceeded; sum of growth over growing programs ==
    growing_tokens."""
    programs, slots = scheduler.programs, scheduler.kv.allocator.num_slots
    holds = programs.holds()
    for node in scheduler.kv.cache.iter_nodes():
        expected = holds.get(node)
        retention = node.retention
        if retention > RETAIN_NORMAL if expected is None else retention != expected:
            raise InvariantError(f"{node!r} has retention level {retention}, its programs hold it with {expected}")
    tokens = programs.program_tokens()
    if sum(tokens) != programs.held_tokens or min(tokens, default=0) < 0:
        raise InvariantError(f"programs hold {tokens}, but held_tokens is {programs.held_tokens}")
    if sum(programs.program_growth()) != programs.growing_tokens:
        raise InvariantError(f"programs grow by {programs.program_growth()}, not {programs.growing_tokens}")
    if programs.held_tokens > programs.max_tokens or max(tokens, default=0) > PROGRAM_SHARE * slots:
        raise InvariantError(f"programs hold {tokens} of {slots} slots, which is more than they may")


def check_rows(scheduler: Scheduler) -> None:
    """Rows in use and active requests are one to one, and row[:protected_len] equals the slots on the tree path."""
    kv = scheduler.kv
    rows = [r.kv.req_pool_idx for r in scheduler.active]
    if len(set(rows)) != len(rows) or 0 in rows:
        raise InvariantError(f"active requests hold rows {rows}")
    in_use = len(kv.rows.table) - 1 - kv.rows.available()
    if in_use != len(rows):
        raise InvariantError(f"{in_use} rows are in use by {len(rows)} active requests")
    for req in scheduler.active:
        if req.state not in (ReqState.PREFILL, ReqState.RUNNING):
            raise InvariantError(f"request {req.rid} is active but {req.state.value}")
        path = kv.cache.path_slots(req.kv.last_node)
        if len(path) != req.kv.protected_len:
            raise InvariantError(
                f"request {req.rid} protects {req.kv.protected_len} slots but its path has {len(path)}"
            )
        if not np.array_equal(kv.rows.table[req.kv.req_pool_idx, : req.kv.protected_len], path):
            raise InvariantError(f"request {req.rid}: its row does not equal the slots on its tree path")
