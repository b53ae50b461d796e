"""How a step's attention is cut into tasks for the CPU kernel: pure numpy, once a step for all layers of one shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radixrt.forward_batch.shared_groups import FIRST, SharedGroups
from radixrt.messages.wire import Int32Array

TASK_ROWS = 192
"""Query rows (queries times heads of a group) in one task: enough to pay for unpacking a block of keys."""


@dataclass(frozen=True)
class StepPlan:
    """What the kernel is given.

    Attributes:
        tasks: int32 [n, 6]: row, first kv head, kv heads, the row's first token, first query, queries.
        groups: int32 [m, 5]: first entry in group_rows, rows, kv head, first entry in segments, segments.
        segments: int32 [s, 4]: positions [start, start + length) that rows of a group share, the first of these rows by
            its number in the group, and how many they are.
        group_rows: int32, the rows of each group once; their tasks are in groups alone.
    """

    tasks: Int32Array
    groups: Int32Array
    segments: Int32Array
    group_rows: Int32Array


def plan_step(
    seq_lens: Int32Array, extend_lens: Int32Array, shared: SharedGroups | None, group: int, kv_heads: int, *,
    max_queries: int, threads: int,
) -> StepPlan:  # fmt: skip
    """Cut a step into tasks.

    Args:
        seq_lens, extend_lens: int32 [B].
        shared: what rows that extend by one token have in common.
        group: query heads that share a kv head.
        max_queries: queries that a task may have.
    """
    groups, segments, group_rows = _plan_groups(shared, group, kv_heads, threads)
    alone = np.setdiff1d(np.arange(len(seq_lens), dtype=np.int32), group_rows)
    tasks = _plan_tasks(seq_lens, extend_lens, alone, group, kv_heads, max_queries, threads)
    return StepPlan(tasks, groups, segments, group_rows)


def _plan_groups(
    shared: SharedGroups | None, group: int, kv_heads: int, threads: int
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Rows below one first run are a group, in parts."""
    groups: list[tuple[int, int, int, int, int]] = []
    segments: list[tuple[int, int, int, int]] = []
    rows = [np.empty(0, np.int32)]
    runs = [] if shared is None else shared.segments.tolist()
    tops = [(first, count) for start, _, first, count in runs if start == 0]
    placed = 0
    for top, members in tops:
        within = [run for run in runs if top <= run[FIRST] < top + members]
        # Few enough rows for the kernel's scratch, and enough parts for every thread to find work.
        wanted = -(-2 * threads // (kv_heads * len(tops)))
        size = min(TASK_ROWS // group, max(2, -(-members // wanted)))
        for begin in range(top, top + members, size):
            end = min(begin + size, top + members)
            clipped = _clip(within, begin, end)
            if not clipped:
                continue  # a row by itself
            assert shared is not None
            groups += [(placed, end - begin, head, len(segments), len(clipped)) for head in range(kv_heads)]
            segments += clipped
            rows.append(shared.rows[begin:end])
            placed += end - begin
    return (
        np.array(groups, np.int32).reshape(-1, 5),
        np.array(segments, np.int32).reshape(-1, 4),
        np.concatenate(rows).astype(np.int32),
    )


def _clip(runs: list[list[int]], begin: int, end: int) -> list[tuple[int, int, int, int]]:
    """What two or more of the rows [begin, end) share, as segments of a group that starts at `begin`."""
    clipped = []
    for start, length, first, count in runs:
        low, high = max(first, begin), min(first + count, end)
        if high - low > 1:
            clipped.append((start, length, low - begin, high - low))
    return clipped


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
