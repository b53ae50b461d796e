"""Attention of prompts over shared prefixes: a plan, made on the host, and `PromptCascade`, which executes it on CUDA.

Every query of a prompt that extends a shared prefix sees all of that prefix, so no mask is needed there: the queries of
all rows of a group are placed side by side and attend to the group's positions like the queries of one prompt. The
suffix of each prompt is computed by the kernels that compute prompts without sharing, and both results are merged by
log-sum-exp.

`PromptCascade` lists the slots of each group once a step. Each layer then copies their keys and values side by side,
which FlashInfer's kernel reads faster than by slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from radixrt.forward_batch.forward_batch import SharedGroups
from radixrt.forward_batch.upload import Uploader
from radixrt.messages.wire import I32, Int32Array

if TYPE_CHECKING:
    from radixrt.attention.flashinfer_plans import Planner, Shape


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


# --- on the device ---


@dataclass(frozen=True)
class SharedPrompts:
    """A step's `PromptPlan` on the device.

    Attributes:
        wrapper: FlashInfer's, planned for the groups.
        slots: int32 [N], of all groups, one after the other.
        queries: int32 [P], see `PromptPlan`; None if they are all, in order.
        row_ptr, partials: see `PromptPlan`.
    """

    wrapper: Any
    slots: torch.Tensor
    queries: torch.Tensor | None
    row_ptr: torch.Tensor
    partials: torch.Tensor


MAX_BYTES = 2**29
"""Of what a layer copies and of its partial results: they come on top of what a step of as many tokens takes anyway,
and are not there when the pool is sized."""


class PromptCascade:
    """For layers without a sliding window.

    Args:
        planner: theirs.
        shape: of them.
        dtype: of the model.
    """

    def __init__(self, planner: Planner, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        from radixrt.kernels.triton.gather_kv import gather_kv
        from radixrt.kernels.triton.kv_indices import write_kv_indices
        from radixrt.kernels.triton.merge import merge

        self._gather_kv, self._write_kv_indices, self._merge = gather_kv, write_kv_indices, merge
        self._planner = planner
        self._key_bytes = 2 * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        self._query_bytes = shape.num_heads * shape.head_dim * dtype.itemsize
        self._device = device
        self._uploader = Uploader(device)

    def fits(self, plan: PromptPlan) -> bool:
        """Whether there is memory for what the plan shares."""
        copied = int(plan.key_lens.sum()) * self._key_bytes + 2 * len(plan.queries) * self._query_bytes
        return copied <= MAX_BYTES

    def place(self, plan: PromptPlan, table: torch.Tensor, req_pool_idx: Int32Array) -> SharedPrompts:
        """Get a step's plan to the device, and FlashInfer's.

        Args:
            table: req_to_token.
            req_pool_idx: int32 [B], each row's place in it.
        """
        key_ptr = np.cumsum([0, *plan.key_lens], dtype=np.int32)
        places, starts, indptr, queries, row_ptr, partials = self._uploader.upload(
            [req_pool_idx[plan.leaders], plan.starts, key_ptr, plan.queries, plan.row_ptr, plan.partials]
        )
        slots = torch.empty(int(key_ptr[-1]), dtype=torch.int32, device=self._device)
        self._write_kv_indices(table, places, indptr, 1, slots, starts)
        wrapper = self._planner.shared(plan.query_lens, plan.key_lens)
        return SharedPrompts(wrapper, slots, None if plan.in_order else queries, row_ptr, partials)

    def finish(
        self, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor], shared: SharedPrompts, own: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:  # fmt: skip
        """Merge what the prompts share into what each has for itself, in place.

        Args:
            q: [T, heads, dim].
            pool: the layer's keys and values, [slots, kv_heads, dim] each.
            own, lse: [T, heads, dim] and float32 [T, heads], to base 2.
        """
        k, v = self._gather_kv(pool, shared.slots, q.dtype)
        queries = q if shared.queries is None else q.index_select(0, shared.queries)
        partial, partial_lse = shared.wrapper.run(queries, k, v, return_lse=True)
        self._merge(own, lse, shared.row_ptr, partial, partial_lse, own, shared.partials)
