"""Attention of prompts over shared prefixes: a plan, made on the host, and `PromptCascade`, which executes it on CUDA.

Every query of a prompt that extends a shared prefix sees the whole prefix, so attention to the prefix needs no mask:
the queries of all rows of a group are concatenated and attend to the group's positions like the queries of a single
prompt. The kernels for prompts without sharing compute the suffix of each prompt, and both results are merged by
log-sum-exp.

`PromptCascade` lists the slots of each group once a step. Each layer then copies the keys and values of these slots to
contiguous memory, which FlashInfer's kernel reads faster than single slots.
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
    """Plan for T queries of B rows in G groups, with P partial results: one for each query and group of its row.

    Attributes:
        ends: int32 [B], the position at which each row's suffix begins.
        leaders: int32 [G], a row of the group, from which its slots are read.
        starts, key_lens: int32 [G], first position and number of positions of the group.
        query_lens: int32 [G], number of queries of all rows of the group.
        queries: int32 [P], indices of the T queries, group by group.
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
        """True if each query is in one group and the groups list the queries in order."""
        return np.array_equal(self.queries, np.arange(len(self.row_ptr) - 1))


def plan_prompts(shared: SharedGroups, extend_lens: Int32Array) -> PromptPlan:
    """Plan the rows of a step.

    Args:
        shared: groups of the step.
        extend_lens: int32 [B], number of queries of each row; the rows' queries are consecutive.
    """
    # Concatenate the rows of all groups, then the queries of these rows. A row is a member of each group on its path
    # through the prefix tree, so a query may occur several times.
    start, length, first, count = shared.segments.T
    before = np.cumsum(count) - count
    members = shared.rows[np.arange(count.sum()) + np.repeat(first - before, count)]
    lens = extend_lens[members]
    row_starts = np.cumsum(extend_lens) - extend_lens
    queries = _ranges(row_starts[members], lens)
    # Sorting by query gives, for each query, the indices of its partial results.
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
    """Return the ranges [starts[i], starts[i] + lens[i]), concatenated."""
    behind = np.cumsum(lens)
    return np.asarray(np.arange(lens.sum()) + np.repeat(starts - (behind - lens), lens), I32)


# --- on the device ---


@dataclass(frozen=True)
class SharedPrompts:
    """A step's `PromptPlan` on the device.

    Attributes:
        wrapper: FlashInfer's wrapper, planned for the groups.
        slots: int32 [N], slots of all groups, concatenated.
        queries: int32 [P], see `PromptPlan`; None if these are all queries, in order.
        row_ptr, partials: see `PromptPlan`.
    """

    wrapper: Any
    slots: torch.Tensor
    queries: torch.Tensor | None
    row_ptr: torch.Tensor
    partials: torch.Tensor


def launch_all(q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor) -> None:
    """Launch each Triton kernel of `PromptCascade` with every kind of arguments: one query, in one group of one slot.

    Args:
        q: [1, heads, dim].
    """
    from radixrt.kernels.triton.gather_kv import gather_kv
    from radixrt.kernels.triton.kv_indices import write_kv_indices
    from radixrt.kernels.triton.merge import merge

    zero = torch.zeros(1, dtype=torch.int32, device=q.device)
    ends = torch.arange(2, dtype=torch.int32, device=q.device)
    write_kv_indices(table, zero, ends, 1, torch.empty_like(zero), zero)
    gather_kv(pool, zero, q.dtype)
    lse = torch.zeros(q.shape[:2], dtype=torch.float32, device=q.device)
    merge(q.clone(), lse, ends, q, lse, torch.empty_like(q), zero)


MAX_BYTES = 2**29
"""Maximum bytes of a layer's copied keys, values and queries, and partial results. This memory was not part of the
measurement by which the pool was sized."""


class PromptCascade:
    """Computes attention of prompts over shared prefixes, for layers without a sliding window.

    Args:
        planner: the layers' planner.
        shape: shape of the layers.
        dtype: dtype of the model.
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
        """Return whether copies and partial results of the plan stay within MAX_BYTES."""
        copied = int(plan.key_lens.sum()) * self._key_bytes + 2 * len(plan.queries) * self._query_bytes
        return copied <= MAX_BYTES

    def place(self, plan: PromptPlan, table: torch.Tensor, req_pool_idx: Int32Array) -> SharedPrompts:
        """Copy a step's plan to the device, list the slots of its groups, and plan FlashInfer's wrapper.

        Args:
            table: req_to_token.
            req_pool_idx: int32 [B], row of each sequence in req_to_token.
        """
        key_ptr = np.cumsum([0, *plan.key_lens], dtype=np.int32)
        table_rows, starts, indptr, queries, row_ptr, partials = self._uploader.upload(
            [req_pool_idx[plan.leaders], plan.starts, key_ptr, plan.queries, plan.row_ptr, plan.partials]
        )
        slots = torch.empty(int(key_ptr[-1]), dtype=torch.int32, device=self._device)
        self._write_kv_indices(table, table_rows, indptr, 1, slots, starts)
        wrapper = self._planner.shared(plan.query_lens, plan.key_lens)
        return SharedPrompts(wrapper, slots, None if plan.in_order else queries, row_ptr, partials)

    def finish(
        self,
        q: torch.Tensor,
        pool: tuple[torch.Tensor, torch.Tensor],
        shared: SharedPrompts,
        suffix: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        """Merge attention over the shared prefixes into the result of each prompt's suffix, in place.

        Args:
            q: [T, heads, dim].
            pool: the layer's keys and values, [slots, kv_heads, dim] each.
            suffix, lse: result [T, heads, dim] and log-sum-exp, float32 [T, heads], to base 2.
        """
        k, v = self._gather_kv(pool, shared.slots, q.dtype)
        queries = q if shared.queries is None else q.index_select(0, shared.queries)
        partial, partial_lse = shared.wrapper.run(queries, k, v, return_lse=True)
        self._merge(suffix, lse, shared.row_ptr, partial, partial_lse, suffix, shared.partials)
