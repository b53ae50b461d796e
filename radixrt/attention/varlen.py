"""`VarlenPlanner`: attention of prompts by torch's FlashAttention, which is compiled into torch.

`VarlenPlanner` replaces FlashInfer's wrappers until FlashInfer's kernels are compiled. FlashAttention cannot read the
pool by slots, so keys and values are copied to contiguous memory first, a limited number of positions at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from radixrt.attention.flashinfer_plans import Rows, Shape, cumulated, divide, max_gathered
from radixrt.forward_batch.upload import Uploader
from radixrt.kernels.triton.gather_kv import gather_kv
from radixrt.kernels.triton.kv_indices import write_kv_indices
from radixrt.messages.wire import Int32Array

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class _Part:
    """Rows that are computed together.

    Attributes:
        first, end: range of the rows' queries in the step.
        query_ptr, key_ptr: int32 [rows + 1], at which each row's queries and keys begin.
        max_queries, max_keys: maximum number of queries and of keys of a row.
        slots: int32 [keys], slots of all keys in order; None if the keys are passed to `run`.
    """

    first: int
    end: int
    query_ptr: torch.Tensor
    key_ptr: torch.Tensor
    max_queries: int
    max_keys: int
    slots: torch.Tensor | None


class VarlenRun:
    """Planned rows; `run` has the arguments of FlashInfer's wrappers that the backend uses."""

    def __init__(self, parts: list[_Part], options: dict[str, Any]) -> None:
        self._parts, self._options = parts, options

    def run(
        self, q: torch.Tensor, *keys: Any, out: torch.Tensor, lse: torch.Tensor | None = None, return_lse: bool = False
    ) -> torch.Tensor:
        """Attend q [T, heads, dim] to keys: one tuple of the layer's pages, or k and v [T, kv_heads, dim] each.

        Args:
            lse: float32 [T, heads], the log-sum-exp in base 2, written if `return_lse`.
        """
        for part in self._parts:
            if part.slots is None:
                k, v = keys
            else:
                pool_k, pool_v = (x.view(-1, *x.shape[2:]) for x in keys[0])
                k, v = gather_kv((pool_k, pool_v), part.slots, q.dtype)
            found = torch.ops.aten._flash_attention_forward(
                q[part.first : part.end],
                k,
                v,
                part.query_ptr,
                part.key_ptr,
                part.max_queries,
                part.max_keys,
                0.0,
                True,
                False,
                **self._options,
            )
            out[part.first : part.end] = found[0]
            if return_lse and lse is not None:
                lse[part.first : part.end] = found[1].T * LOG2_E  # [heads, queries] in base e
        return out


class VarlenPlanner:
    """Plans rows of layers of the same shape and sliding window, like `flashinfer_plans.Planner`.

    Args:
        dtype: dtype of the model.
    """

    def __init__(self, shape: Shape, window: int | None, dtype: torch.dtype, device: torch.device) -> None:
        # FlashAttention counts the positions to the left of the query, without itself.
        self._options = {"scale": shape.scale}
        if window is not None:
            self._options |= {"window_size_left": window - 1, "window_size_right": 0}
        self._max_keys = max_gathered(shape, dtype)
        self._device = device
        self._uploader = Uploader(device)

    def prefill(self, rows: Rows, extend_lens: Int32Array, *, short: bool) -> VarlenRun:
        """Plan rows whose last extend_lens[i] positions are queries; `short` makes no difference."""
        query_ptr, read = cumulated(extend_lens), rows.read
        parts, first = [], 0
        for end in divide(read, self._max_keys):
            lens, keys = extend_lens[first:end], read[first:end]
            part_queries, part_keys, *starts = self._uploader.upload(
                [cumulated(lens), cumulated(keys), *([] if rows.starts is None else [rows.starts[first:end]])]
            )
            slots = torch.empty(int(keys.sum()), dtype=torch.int32, device=self._device)
            write_kv_indices(rows.table, rows.table_rows[first:end], part_keys, 1, slots, *starts)
            parts.append(
                _Part(
                    int(query_ptr[first]),
                    int(query_ptr[end]),
                    part_queries,
                    part_keys,
                    int(lens.max()),
                    int(keys.max()),
                    slots,
                )
            )
            first = end
        return VarlenRun(parts, self._options)

    def fresh(self, lens: Int32Array) -> VarlenRun:
        """Plan rows whose keys (int32 [B]) are all passed with their queries."""
        (ptr,) = self._uploader.upload([cumulated(lens)])
        longest = int(lens.max())
        return VarlenRun([_Part(0, int(lens.sum()), ptr, ptr, longest, longest, None)], self._options)
