"""How a step's attention is cut into tasks for the CPU kernel: pure numpy, once a step for all layers of one shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radixrt.messages import Int32Array

TASK_ROWS = 192
"""Query rows (queries times heads of a group) in one task: enough to pay for unpacking a block of keys."""

MIN_SHARED = 128
"""Decode rows that have at least this many slots in common go through them together."""


@dataclass(frozen=True)
class SharedPrefix:
    """Rows of the batch whose first `length` slots are the same (whole blocks, behind which each has more)."""

    rows: Int32Array
    length: int


@dataclass(frozen=True)
class StepPlan:
    """What the kernel is given.

    Attributes:
        tasks: int32 [n, 6]: row, first kv head, kv heads, the row's first token, first query, queries.
        groups: int32 [m, 4]: first entry in group_rows, rows, kv head, shared slots.
        group_rows: int32, the rows of each group once; their tasks are in groups alone.
    """

    tasks: Int32Array
    groups: Int32Array
    group_rows: Int32Array


def find_shared_prefixes(
    table: Int32Array, table_rows: np.ndarray, seq_lens: Int32Array, rows: Int32Array, block: int
) -> list[SharedPrefix]:
    """Groups of decode rows that start with the same slots.

    A slot belongs to one place in the radix tree, so two rows with the same slot at a position have the same slots at
    all positions before it: one column of the table tells who shares, and no tree is needed.

    Args:
        table: req_to_token.
        table_rows: int [B], the rows' places in it.
        seq_lens, rows: int32 [B], each longer than MIN_SHARED; and the rows' numbers in the batch.
    """
    if len(rows) < 2:
        return []
    found = []
    at = table[table_rows, MIN_SHARED - 1]
    for slot in np.unique(at):
        members = np.flatnonzero(at == slot)
        if len(members) < 2:
            continue
        # Ends of the blocks that all members have and that leave each of them its newest slot.
        ends = np.arange(MIN_SHARED, int(seq_lens[members].min()), block) - 1
        columns = table[table_rows[members][:, None], ends]
        equal = (columns == columns[0]).all(axis=0)
        shared = len(ends) if equal.all() else int(equal.argmin())
        found.append(SharedPrefix(rows[members], int(ends[shared - 1]) + 1))
    return found


def plan_step(
    seq_lens: Int32Array, extend_lens: Int32Array, shared: list[SharedPrefix], group: int, kv_heads: int, *,
    max_queries: int, threads: int,
) -> StepPlan:  # fmt: skip
    """Cut a step into tasks.

    Args:
        seq_lens, extend_lens: int32 [B].
        group: query heads that share a kv head.
        max_queries: queries that a task may have.
    """
    groups, group_rows = _plan_groups(shared, group, kv_heads, threads)
    alone = np.setdiff1d(np.arange(len(seq_lens), dtype=np.int32), group_rows)
    tasks = _plan_tasks(seq_lens, extend_lens, alone, group, kv_heads, max_queries, threads)
    return StepPlan(tasks, groups, group_rows)


def _plan_groups(shared: list[SharedPrefix], group: int, kv_heads: int, threads: int) -> tuple[Int32Array, Int32Array]:
    entries, rows, start = [], [np.empty(0, np.int32)], 0
    for prefix in shared:
        # Few enough rows for the kernel's scratch, and enough parts for every thread to find work.
        wanted = -(-2 * threads // (kv_heads * len(shared)))
        size = min(TASK_ROWS // group, max(2, -(-len(prefix.rows) // wanted)))
        for part in np.split(prefix.rows, range(size, len(prefix.rows), size)):
            entries += [(start, len(part), head, prefix.length) for head in range(kv_heads)]
            rows.append(part)
            start += len(part)
    return np.array(entries, np.int32).reshape(-1, 4), np.concatenate(rows).astype(np.int32)


def _plan_tasks(
    seq_lens: Int32Array, extend_lens: Int32Array, rows: Int32Array, group: int, kv_heads: int, max_queries: int,
    threads: int,
) -> Int32Array:  # fmt: skip
    """The tasks of the given rows, costliest first."""
    if len(rows) == 0:
        return np.empty((0, 6), np.int32)
    queries = min(max_queries, max(1, TASK_ROWS // group))
    blocks = -(-extend_lens[rows] // queries)
    row = np.repeat(rows, blocks)
    first_block = np.repeat(np.cumsum(blocks) - blocks, blocks)
    first_query = (np.arange(len(row)) - first_block) * queries
    count = np.minimum(queries, extend_lens[row] - first_query)
    first_token = (np.cumsum(extend_lens) - extend_lens)[row]
    cost = count * (seq_lens[row] - extend_lens[row] + first_query + count)
    order = np.argsort(-cost, kind="stable")
    # A task of several heads reads a slot once for all of them; but every thread must find work.
    together = kv_heads if len(row) >= 4 * threads and count.max() * group * kv_heads <= TASK_ROWS else 1
    columns = np.stack([row, row, np.full_like(row, together), first_token, first_query, count], axis=1)[order]
    tasks = np.repeat(columns, kv_heads // together, axis=0)
    tasks[:, 1] = np.tile(np.arange(0, kv_heads, together), len(columns))
    return np.ascontiguousarray(tasks, dtype=np.int32)
