"""What prompts share, computed once for all: FlashInfer's kernel over keys and values side by side, and a merge.

The slots of each group of a `PromptPlan` are listed once a step. A layer copies their keys and values to where they lie
in order, which the kernel reads faster than by slots, and the queries of all rows of a group next to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from radixrt.attention.flashinfer_plans import Planner, Shape, cumulated
from radixrt.attention.prompt_plan import PromptPlan
from radixrt.forward_batch.upload import Uploader
from radixrt.kernels.triton.gather_kv import gather_kv
from radixrt.kernels.triton.kv_indices import write_kv_indices
from radixrt.kernels.triton.merge import merge
from radixrt.messages.wire import Int32Array


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
        key_ptr = cumulated(plan.key_lens)
        places, starts, indptr, queries, row_ptr, partials = self._uploader.upload(
            [req_pool_idx[plan.leaders], plan.starts, key_ptr, plan.queries, plan.row_ptr, plan.partials]
        )
        slots = torch.empty(int(key_ptr[-1]), dtype=torch.int32, device=self._device)
        write_kv_indices(table, places, indptr, 1, slots, starts)
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
        k, v = gather_kv(pool, shared.slots, q.dtype)
        queries = q if shared.queries is None else q.index_select(0, shared.queries)
        partial, partial_lse = shared.wrapper.run(queries, k, v, return_lse=True)
        merge(own, lse, shared.row_ptr, partial, partial_lse, own, shared.partials)
