"""Invariants of the scheduler's state. They are checked when the scheduler becomes idle, and after every step in tests
and with `check_invariants`."""

from __future__ import annotations

import numpy as np

from radixrt.errors import InvariantError
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.messages.wire import Int32Array
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Check every invariant of slots, tree, rows and parts.

    Raises:
        InvariantError: the first invariant that does not hold, with its figures.
    """
    kv = scheduler.kv
    kv.allocator.check_invariants()
    kv.cache.check_invariants([*(r.kv.last_node for r in scheduler.active), *kv.copies.held])
    check_slots(scheduler)
    check_rows(scheduler)
    kv.check(scheduler.active)
    for check in scheduler.parts.check:
        check()


def check_slots(scheduler: Scheduler) -> None:
    """Check that free + evictable + protected + private + reserved == num_slots, and that no two requests have a
    private page in common.

    A request's private slots are whole pages: row[protected_len:length] rounded up to a page. Slot 0 belongs to the
    padding page, which no request holds.

    Raises:
        InvariantError: an invariant does not hold.
    """
    kv = scheduler.kv
    private = [_private_pages(scheduler, r) for r in scheduler.active]
    pages = np.concatenate([np.empty(0, np.int32), *private])
    if len(np.unique(pages)) != len(pages) or 0 in pages:
        raise InvariantError("two requests share a private page, or one holds the padding page")
    allocator: TokenToKVPoolAllocator = kv.allocator
    parts = (
        allocator.available(),
        kv.cache.evictable_size,
        kv.cache.protected_size,
        len(pages) * allocator.page_size,
        kv.copies.reserved,
    )
    if sum(parts) != allocator.num_slots:
        raise InvariantError(
            f"free {parts[0]} + evictable {parts[1]} + protected {parts[2]} + private {parts[3]} + "
            f"reserved {parts[4]} = {sum(parts)}, not the pool's {allocator.num_slots}"
        )


def _private_pages(scheduler: Scheduler, req: Req) -> Int32Array:
    kv = scheduler.kv
    row = kv.rows.table[req.kv.req_pool_idx, req.kv.protected_len : req.kv.length]
    return row if kv.allocator.page_size == 1 else np.unique(row // kv.allocator.page_size)


def check_rows(scheduler: Scheduler) -> None:
    """Check that each active request has a row of its own, that no other row is in use, and that row[:protected_len]
    equals the slots on the request's path in the tree.

    Raises:
        InvariantError: an invariant does not hold.
    """
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
