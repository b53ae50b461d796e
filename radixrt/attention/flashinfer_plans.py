"""`Planner`: creates and plans FlashInfer's wrappers for each kind of rows, through FlashInfer's public API only.

Planning never waits for the device: all numbers are on the host, copies come from pinned memory, and the lists of pages
are made on the device from req_to_token. A wrapper has one pinned buffer for its plans. Planning of step N + 1 begins
after step N - 1 has been answered, and the plan of step N was copied right after that, so the event that protects the
buffer has already completed when the buffer is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixrt.attention.base import AttentionLayer
from radixrt.attention.flashinfer_modules import check_supported
from radixrt.kernels.triton.gather_kv import gather_kv
from radixrt.kernels.triton.kv_indices import write_kv_indices
from radixrt.messages.wire import Int32Array

WORKSPACE_BYTES = 384 * 2**20
"""Scratch memory for partial results of rows whose keys are split over several programs, shared by all plans."""

MAX_GATHERED_BYTES = 2**28
"""Maximum bytes of a layer's keys and values that are gathered at once. A single longer row is not divided."""


@dataclass(frozen=True)
class Shape:
    """Shape of all layers, on this rank."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float


def common_shape(layers: Sequence[AttentionLayer], dtype: torch.dtype) -> Shape:
    """Return the shape of all layers.

    Raises:
        ValueError: FlashInfer does not support the layers or the dtype.
    """
    shapes = {Shape(x.num_heads, x.num_kv_heads, x.head_dim, x.scale) for x in layers}
    if len(shapes) != 1:
        raise ValueError("its layers differ in heads or head size")
    shape = shapes.pop()
    check_supported(dtype, shape.head_dim)
    return shape


@dataclass(frozen=True)
class Rows:
    """Rows of a step that read the pool by pages.

    Attributes:
        table: req_to_token.
        table_rows: int64 [B], their rows of req_to_token, on the device.
        lens: int32 [B], lengths of the sequences.
        starts: int32 [B], first position that each row reads, a multiple of the page size; None for 0.
    """

    table: torch.Tensor
    table_rows: torch.Tensor
    lens: Int32Array
    starts: Int32Array | None = None

    @property
    def read(self) -> Int32Array:
        """int32 [B], number of positions that each row reads."""
        return self.lens if self.starts is None else self.lens - self.starts


@dataclass(frozen=True)
class GatheredPart:
    """Rows of a step that are computed together.

    Attributes:
        first, end: range of the rows' queries in the step.
        slots: int32 [keys], slots of all keys in order.
        wrapper: planned, its `run` computes.
    """

    first: int
    end: int
    slots: torch.Tensor
    wrapper: Any


class GatheredRun:
    """Planned rows whose keys and values are gathered from the pool; `run` has the arguments of FlashInfer's wrappers
    that the backend uses."""

    def __init__(self, parts: list[GatheredPart]) -> None:
        self._parts = parts

    def run(
        self,
        q: torch.Tensor,
        pages: tuple[torch.Tensor, torch.Tensor],
        *,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor:
        """Attend q [T, heads, dim] to the rows' keys in a layer's pages; the log-sum-exp in base 2 float32 [T, heads]
        is written if `return_lse`."""
        pool = (pages[0].flatten(0, 1), pages[1].flatten(0, 1))
        for part in self._parts:
            k, v = gather_kv(pool, part.slots, q.dtype)
            own = slice(part.first, part.end)
            own_lse = None if lse is None else lse[own]
            part.wrapper.run(q[own], k, v, out=out[own], lse=own_lse, return_lse=return_lse)
        return out


class Planner:
    """Creates and plans wrappers for layers of the same shape and sliding window.

    Args:
        dtype, kv_dtype: dtypes of queries and of the pool.
    """

    def __init__(
        self,
        flashinfer: Any,
        shape: Shape,
        window: int | None,
        *,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        page_size: int,
        workspace: torch.Tensor,
    ) -> None:
        self._flashinfer = flashinfer
        self._page_size = page_size
        self._device = workspace.device
        self._workspace = workspace
        self._window = window
        self._heads = (shape.num_heads, shape.num_kv_heads)
        self._shape = (*self._heads, shape.head_dim, page_size)
        self._head_dim = shape.head_dim
        # FlashInfer counts the positions to the left of the query, without itself.
        left = -1 if window is None else window - 1
        self._fresh_options: dict[str, Any] = {"sm_scale": shape.scale, "window_left": left, "q_data_type": dtype}
        self._options = {**self._fresh_options, "kv_data_type": kv_dtype}
        # Two kernels for prompts: FlashInfer's default, which on Hopper computes 128 queries of a head at a time; and,
        # for rows with few queries, a kernel that computes all heads of a kv head together, in tiles of 16, 64 or 128.
        # Only the latter reads keys of another dtype than the queries'.
        self._short = self._new_paged("fa2")
        self._prefill = None if kv_dtype != dtype else self._new_paged("auto")
        self._max_gathered = max_gathered(shape, dtype)
        self._gathered: list[Plan] = []
        self._fresh = self._new_ragged()
        self._shared: Plan | None = None

    def prefill(self, rows: Rows, extend_lens: Int32Array, *, short: bool) -> Any:
        """Return a wrapper planned for rows whose last extend_lens[i] positions are queries.

        Args:
            short: the rows have few queries each.
        """
        plan = self._short if short else self._prefill
        if plan is None:
            return self._prefill_gathered(rows, extend_lens)
        indptr, indices, last_page_len = self._pages(rows)
        qo_indptr, seq_lens = pinned(cumulated(extend_lens)), pinned(rows.read)
        return plan(
            lambda wrapper: wrapper.plan(
                qo_indptr, indptr, indices, last_page_len, *self._shape, causal=True, seq_lens=seq_lens, **self._options
            )
        )

    def _prefill_gathered(self, rows: Rows, extend_lens: Int32Array) -> GatheredRun:
        starts = np.zeros_like(rows.lens) if rows.starts is None else rows.starts
        if self._window is not None:  # a row's first query sees no key before these
            starts = np.maximum(starts, rows.lens - extend_lens - (self._window - 1))
        read, query_ptr = rows.lens - starts, cumulated(extend_lens)
        parts: list[GatheredPart] = []
        first = 0
        for end in divide(read, self._max_gathered):
            if len(parts) == len(self._gathered):
                self._gathered.append(self._new_ragged())
            own, key_ptr = slice(first, end), pinned(cumulated(read[first:end]))
            slots = torch.empty(int(key_ptr[-1]), dtype=torch.int32, device=self._device)
            write_kv_indices(
                rows.table, rows.table_rows[own], self._to_device(key_ptr), 1, slots,
                self._to_device(pinned(starts[own])),
            )  # fmt: skip
            wrapper = self._plan_ragged(
                self._gathered[len(parts)], pinned(cumulated(extend_lens[own])), key_ptr, causal=True
            )
            parts.append(GatheredPart(int(query_ptr[first]), int(query_ptr[end]), slots, wrapper))
            first = end
        return GatheredRun(parts)

    def fresh(self, lens: Int32Array) -> Any:
        """Return a wrapper planned for rows whose keys (int32 [B]) are all passed with their queries."""
        indptr = pinned(cumulated(lens))
        return self._plan_ragged(self._fresh, indptr, indptr, causal=True)

    def shared(self, query_lens: Int32Array, key_lens: Int32Array) -> Any:
        """Return a wrapper planned for groups of queries that see all keys of their group (int32 [G] each), in
        order."""
        if self._shared is None:
            self._shared = self._new_ragged()
        return self._plan_ragged(self._shared, pinned(cumulated(query_lens)), pinned(cumulated(key_lens)), causal=False)

    def _new_paged(self, backend: str) -> Plan:
        return Plan(self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=backend))

    def _new_ragged(self) -> Plan:
        return Plan(self._flashinfer.BatchPrefillWithRaggedKVCacheWrapper(self._workspace, "NHD"))

    def _plan_ragged(self, plan: Plan, query_ptr: torch.Tensor, key_ptr: torch.Tensor, *, causal: bool) -> Any:
        """Plan rows whose queries and keys begin at these (int32 [rows + 1], pinned)."""
        return plan(
            lambda wrapper: wrapper.plan(
                query_ptr, key_ptr, *self._heads, self._head_dim, causal=causal, **self._fresh_options
            )
        )

    def _pages(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the pages' indptr on the host, the pages on the device, and the tokens in each last page on the
        host."""
        indptr = pinned(cumulated(num_pages(rows.read, self._page_size)))
        indices = torch.empty(int(indptr[-1]), dtype=torch.int32, device=self._device)
        starts = None if rows.starts is None else self._to_device(pinned(rows.starts))
        write_kv_indices(rows.table, rows.table_rows, self._to_device(indptr), self._page_size, indices, starts)
        return indptr, indices, pinned(last_page_lens(rows.read, self._page_size))

    def _to_device(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._device, non_blocking=True)


class Plan:
    """A wrapper, and the event after the last copy from the wrapper's pinned buffer. Calling the object plans and
    returns the wrapper."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __call__(self, plan: Callable[[Any], None]) -> Any:
        self._copied.synchronize()
        plan(self.wrapper)
        self._copied.record()
        return self.wrapper


def num_pages(lens: Int32Array, page_size: int) -> Int32Array:
    """Return int32 [B], the number of pages of each row."""
    return np.asarray(-(-lens // page_size), np.int32)


def last_page_lens(lens: Int32Array, page_size: int) -> Int32Array:
    """Return int32 [B], the number of tokens in each row's last page."""
    return np.asarray((lens - 1) % page_size + 1, np.int32)


def cumulated(lens: Int32Array) -> Int32Array:
    """Return int32 [B + 1], the cumulative sums from 0."""
    sums = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=sums[1:])
    return sums


def divide(lens: Int32Array, most: int) -> list[int]:
    """Divide rows with `lens` keys into runs of at most `most` keys, or of a single row; return the ends of the
    runs."""
    ends, total = [], 0
    for row, count in enumerate(lens.tolist()):
        if row and total + count > most:
            ends.append(row)
            total = 0
        total += count
    return [*ends, len(lens)] if len(lens) else []


def max_gathered(shape: Shape, dtype: torch.dtype) -> int:
    """Return how many positions' keys and values in a dtype may be gathered at once."""
    return MAX_GATHERED_BYTES // (2 * shape.num_kv_heads * shape.head_dim * dtype.itemsize)


def pinned(values: Int32Array) -> torch.Tensor:
    """Return a copy in page-locked memory; torch reuses the memory only after the copies that read it."""
    return torch.from_numpy(np.array(values, np.int32)).pin_memory()
