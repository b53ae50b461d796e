"""What `FlashInferBackend` plans: FlashInfer's wrappers for each kind of rows, and when they may be planned again.

Planning never waits for the device: every number it needs is on the host, what it copies lies in pinned memory, and the
lists of pages are made on the device from req_to_token. A wrapper keeps one pinned area for its plans; planning step
N + 1 begins after step N - 1 has been answered, and the plan of step N was copied right behind that, so an event says
at once that the area may be written again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixrt.kernels.triton.kv_indices import write_kv_indices
from radixrt.messages import Int32Array

WORKSPACE_BYTES = 384 * 2**20
"""Scratch for partial results of rows whose keys are split over several programs, shared by all plans."""


@dataclass(frozen=True)
class Shape:
    """What all layers have in common, on this rank."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float


@dataclass(frozen=True)
class Rows:
    """Some rows of a step, as planning needs them.

    Attributes:
        table: req_to_token.
        places: int64 [B], their rows of it, on the device.
        lens: int32 [B], of the sequences.
    """

    table: torch.Tensor
    places: torch.Tensor
    lens: Int32Array


class Planner:
    """Makes and plans wrappers for layers of one shape and one sliding window.

    Args:
        dtype, kv_dtype: of queries, and of the pool.
    """

    def __init__(
        self, flashinfer: Any, shape: Shape, window: int | None, *, dtype: torch.dtype, kv_dtype: torch.dtype,
        page_size: int, workspace: torch.Tensor,
    ) -> None:  # fmt: skip
        self._flashinfer = flashinfer
        self._page_size = page_size
        self._device = workspace.device
        self._workspace = workspace
        self._heads = (shape.num_heads, shape.num_kv_heads)
        self._shape = (*self._heads, shape.head_dim, page_size)
        self._head_dim = shape.head_dim
        # FlashInfer counts the positions to the left of the query, without itself.
        left = -1 if window is None else window - 1
        self._fresh_options: dict[str, Any] = {"sm_scale": shape.scale, "window_left": left, "q_data_type": dtype}
        self._options = {**self._fresh_options, "kv_data_type": kv_dtype}
        self._prefill = Plan(flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD"))
        self._fresh = Plan(flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD"))

    def prefill(self, rows: Rows, extend_lens: Int32Array) -> Any:
        """A wrapper for rows whose last extend_lens[i] positions are queries."""
        indptr, indices, last_page_len = self._pages(rows)
        qo_indptr, seq_lens = pinned(cumulated(extend_lens)), pinned(rows.lens)
        return self._prefill(
            lambda wrapper: wrapper.plan(
                qo_indptr, indptr, indices, last_page_len, *self._shape, causal=True, seq_lens=seq_lens, **self._options
            )
        )

    def fresh(self, lens: Int32Array) -> Any:
        """A wrapper for rows all of whose keys (int32 [B]) are given with their queries."""
        indptr = pinned(cumulated(lens))
        return self._fresh(
            lambda wrapper: wrapper.plan(
                indptr, indptr, *self._heads, self._head_dim, causal=True, **self._fresh_options
            )
        )

    def _pages(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The pages' indptr on the host, the pages on the device, and the tokens in each last page on the host."""
        indptr = pinned(cumulated(num_pages(rows.lens, self._page_size)))
        indices = torch.empty(int(indptr[-1]), dtype=torch.int32, device=self._device)
        write_kv_indices(rows.table, rows.places, indptr.to(self._device, non_blocking=True), self._page_size, indices)
        return indptr, indices, pinned(last_page_lens(rows.lens, self._page_size))


class Plan:
    """A wrapper, and when its pinned area was last copied from. Calling it plans the wrapper and returns it."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __call__(self, plan: Callable[[Any], None]) -> Any:
        self._copied.synchronize()
        plan(self.wrapper)
        self._copied.record()
        return self.wrapper


def num_pages(lens: Int32Array, page_size: int) -> Int32Array:
    return np.asarray(-(-lens // page_size), np.int32)


def last_page_lens(lens: Int32Array, page_size: int) -> Int32Array:
    return np.asarray((lens - 1) % page_size + 1, np.int32)


def cumulated(lens: Int32Array) -> Int32Array:
    """int32 [B + 1], from 0."""
    sums = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=sums[1:])
    return sums


def pinned(values: Int32Array) -> torch.Tensor:
    """In page-locked memory; torch gives it out again only when the copies that read it are done."""
    return torch.from_numpy(np.array(values, np.int32)).pin_memory()
