"""How the queries of prompts attend to what prompts share, planned on the host: each group for all of its rows.

A prompt that goes on behind a shared prefix sees all of it with each of its queries, so no mask is needed there: the
queries of all rows of a group lie side by side and attend to the group's positions like those of one prompt. What each
prompt has for itself is computed as ever, and the two are merged by log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixrt.forward_batch.shared_groups import SharedGroups
from radixrt.messages.wire import I32, Int32Array


@dataclass(frozen=True)
class PromptPlan:
    """T queries of B rows, G groups and P partial results: one for each query and group that its row is in.

    Attributes:
        ends: int32 [B], the position from which on each row is alone.
        leaders: int32 [G], a row whose slots the group's are.
        starts, key_lens: int32 [G], the group's first position, and its positions.
        query_lens: int32 [G], queries of the group's rows together.
        queries: int32 [P], which of the T, group after group.
        row_ptr: int32 [T + 1], query t has the partial results partials[row_ptr[t] : row_ptr[t + 1]].
        partials: int32 [P], indices into `queries`.
    """

    ends: Int32Array
    leaders: Int32Array
    starts: Int32Array
    key_lens: Int32Array
    query_lens: Int32Array
    queries: Int32Array
    row_ptr: Int32Array
    partials: Int32Array

    @property
    def in_order(self) -> bool:
        """Each query stands in one group, and they stand there as they come."""
        return np.array_equal(self.queries, np.arange(len(self.row_ptr) - 1))


def plan_prompts(shared: SharedGroups, extend_lens: Int32Array) -> PromptPlan:
    """Plan the rows of a step that `shared` is of.

    Args:
        extend_lens: int32 [B], queries of each row; row i's lie behind those of row i - 1.
    """
    start, length, first, count = shared.segments.T
    before = np.cumsum(count) - count
    members = shared.rows[np.arange(count.sum()) + np.repeat(first - before, count)]
    lens = extend_lens[members]
    row_starts = np.cumsum(extend_lens) - extend_lens
    queries = _ranges(row_starts[members], lens)
    order = np.argsort(queries, kind="stable")
    tokens = int(extend_lens.sum())
    return PromptPlan(
        ends=shared.ends(len(extend_lens)),
        leaders=shared.rows[first],
        starts=start,
        key_lens=length,
        query_lens=np.add.reduceat(lens, before).astype(I32),
        queries=queries,
        row_ptr=np.searchsorted(queries[order], np.arange(tokens + 1)).astype(I32),
        partials=order.astype(I32),
    )


def _ranges(starts: npt.NDArray[np.int_], lens: Int32Array) -> Int32Array:
    """starts[i], starts[i] + 1, ... lens[i] numbers each, one after the other."""
    behind = np.cumsum(lens)
    return np.asarray(np.arange(lens.sum()) + np.repeat(starts - (behind - lens), lens), I32)
