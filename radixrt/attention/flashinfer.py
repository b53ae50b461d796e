"""The FlashInfer backend: paged attention on NVIDIA GPUs that reads keys and values where they lie in the pool.

A step is planned once, on the host, for all layers of a kind (layers differ at most in their sliding window). Planning
never waits for the device: every number it needs is on the host, what it copies lies in pinned memory, and the lists of
pages are made on the device from req_to_token. The wrappers keep one pinned area each for their plans; planning step
N + 1 begins after step N - 1 has been answered, and the plan of step N was copied right behind that, so an event says
at once that the area may be written again.

Where a step says which decode rows share what, FlashInfer computes each row's own part, and `CascadeRunner` the shared
ones and the merge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cascade import SharedGroups
from radixrt.attention.cascade_plan import CascadePlan, Tile
from radixrt.attention.cascade_runner import CascadeRunner, PlacedPlan
from radixrt.executor.forward_batch import ForwardBatch, ForwardMode
from radixrt.executor.kv_cache import KVCache
from radixrt.executor.upload import Uploader
from radixrt.kernels.triton.kv_indices import write_kv_indices
from radixrt.messages import Int32Array

WORKSPACE_BYTES = 384 * 2**20
"""Scratch for partial results of rows whose keys are split over several programs, shared by all plans."""

MAX_GRAPH_PAGES = 2**24
"""Pages that one captured decode step can read at most (64 MB of page numbers); longer steps run uncaptured."""

TENSOR_CORE_GROUP = 4
"""From this many query heads to a kv head on, decode rows go through the tensor cores."""


@dataclass(frozen=True)
class _Shape:
    """What all layers have in common."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float


class FlashInferBackend(AttentionBackend):
    """float16 and bfloat16 models, with a pool of the same dtype or of float8_e4m3fn.

    Raises:
        ImportError: FlashInfer or Triton is not installed.
        ValueError: the layers' shapes or dtypes are not covered; says which.
    """

    def __init__(
        self, kv_cache: KVCache, layers: list[AttentionLayer], *, dtype: torch.dtype, max_rows: int, max_pages: int
    ) -> None:
        import flashinfer

        self._flashinfer = flashinfer
        shapes = {_Shape(x.num_heads, x.num_kv_heads, x.head_dim, x.scale) for x in layers}
        if len(shapes) != 1:
            raise ValueError("its layers differ in heads or head size")
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"FlashInfer computes in float16 or bfloat16, not {dtype}")
        self._shape = shapes.pop()
        if self._shape.head_dim not in (64, 128, 256):
            raise ValueError(f"head_dim {self._shape.head_dim} is none of 64, 128 and 256")
        self._dtype = dtype
        self._kv = kv_cache
        self._page_size = kv_cache.page_size
        self._device = kv_cache.k[0].device
        self._pages = [
            (k.view(-1, self._page_size, *k.shape[1:]), v.view(-1, self._page_size, *v.shape[1:]))
            for k, v in zip(kv_cache.k, kv_cache.v, strict=True)
        ]
        self._windows = {x.sliding_window for x in layers}
        self._cascade = _Cascade(self._shape, max_rows, dtype, self._device) if self._windows == {None} else None
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        self._max_graph_pages = min(max_rows * max_pages, MAX_GRAPH_PAGES)
        self._graph_indices: torch.Tensor | None = None
        self._prefill = {w: _Plan(self._prefill_wrapper()) for w in self._windows}
        self._decode = {w: _Plan(self._decode_wrapper()) for w in self._windows}
        self._active: dict[int | None, Any] = {}
        self._tile: Tile | None = None  # of the step's shared parts, if it has any

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self._kv.k[layer.layer_id], self._kv.v[layer.layer_id]

    def attend(
        self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None,
        batch: ForwardBatch,
    ) -> torch.Tensor:  # fmt: skip
        if k is not None and v is not None:
            self._kv.store(layer.layer_id, batch.out_cache_loc, k, v)
        q, out = q.contiguous(), torch.empty(q.shape, dtype=q.dtype, device=q.device)
        wrapper, pages = self._active[layer.sliding_window], self._pages[layer.layer_id]
        if self._tile is None or self._cascade is None:
            wrapper.run(q, pages, out=out)
            return out.view(q.shape[0], -1)
        _, lse = wrapper.run(q, pages, out=out, return_lse=True)
        flat = out.view(q.shape[0], -1)
        keys, values = self._kv.k[layer.layer_id], self._kv.v[layer.layer_id]
        self._cascade.attend(q, keys, values, batch.req_to_token, layer.scale, self._tile)
        self._cascade.runner.merge(out, lse, flat, self._cascade.placed)
        return flat

    # --- steps that are launched kernel by kernel ---

    def prepare(self, batch: ForwardBatch) -> None:
        own_lens, ends = batch.seq_lens_cpu, np.zeros(len(batch.seq_lens_cpu), np.int32)
        self._tile = None
        if batch.mode is ForwardMode.DECODE:
            plan = self.plan_shared(batch.shared, batch.req_pool_indices_cpu)
            if plan is not None and self._cascade is not None:
                self._cascade.upload(plan)
                self._tile, ends = plan.tile, plan.ends
                own_lens = own_lens - ends
        pages = self._num_pages(own_lens)
        indptr = np.zeros(len(pages) + 1, np.int32)
        np.cumsum(pages, out=indptr[1:])
        host = _pinned(indptr)
        indices = torch.empty(int(indptr[-1]), dtype=torch.int32, device=self._device)
        starts = _pinned(ends).to(self._device, non_blocking=True)
        on_device = host.to(self._device, non_blocking=True)
        write_kv_indices(batch.req_to_token, batch.req_pool_indices, starts, on_device, self._page_size, indices)
        last_page_len = _pinned(self._last_page_len(own_lens))
        if batch.mode is ForwardMode.DECODE:
            for window, decode in self._decode.items():
                decode(self._decode_planner(host, indices, last_page_len, window))
            self._active = {window: decode.wrapper for window, decode in self._decode.items()}
            return
        qo = np.zeros(len(pages) + 1, np.int32)
        np.cumsum(batch.extend_lens_cpu, out=qo[1:])
        qo_indptr, seq_lens = _pinned(qo), _pinned(batch.seq_lens_cpu.astype(np.int32))
        for window, prefill in self._prefill.items():
            left = _window_left(window)

            def plan_prefill(wrapper: Any, left: int = left) -> None:
                wrapper.plan(
                    qo_indptr, host, indices, last_page_len, self._shape.num_heads, self._shape.num_kv_heads,
                    self._shape.head_dim, self._page_size, causal=True, sm_scale=self._shape.scale, window_left=left,
                    q_data_type=self._dtype, kv_data_type=self._kv.dtype, seq_lens=seq_lens,
                )  # fmt: skip

            prefill(plan_prefill)
        self._active = {window: prefill.wrapper for window, prefill in self._prefill.items()}

    def _prefill_wrapper(self) -> Any:
        return self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")

    def _decode_wrapper(self, **buffers: Any) -> Any:
        group = self._shape.num_heads // self._shape.num_kv_heads
        return self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_tensor_cores=group >= TENSOR_CORE_GROUP, **buffers
        )

    def _decode_planner(
        self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, window: int | None, *,
        again: bool = False,
    ) -> Callable[[Any], None]:  # fmt: skip
        """Plans a decode wrapper; `again`: one with static buffers that has been planned before, in less time."""
        shape = (self._shape.num_heads, self._shape.num_kv_heads, self._shape.head_dim, self._page_size)
        options = {
            "sm_scale": self._shape.scale,
            "window_left": _window_left(window),
            "q_data_type": self._dtype,
            "kv_data_type": self._kv.dtype,
        }

        def plan(wrapper: Any) -> None:
            if again:
                fast = self._flashinfer.decode.fast_decode_plan
                fast(wrapper, indptr, indices, last_page_len, *shape, global_override_indptr_cpu=indptr, **options)
            else:
                wrapper.plan(indptr, indices, last_page_len, *shape, **options)

        return plan

    def _num_pages(self, lens: Int32Array) -> Int32Array:
        return np.asarray(-(-lens // self._page_size), np.int32)

    def _last_page_len(self, lens: Int32Array) -> Int32Array:
        return np.asarray((lens - 1) % self._page_size + 1, np.int32)

    # --- decode steps that are captured ---

    def plan_shared(self, shared: SharedGroups | None, req_pool_idx: Int32Array) -> CascadePlan | None:
        """How a decode step's shared parts are computed (int32 [B] places in req_to_token); None: not apart."""
        if shared is None or self._cascade is None:
            return None
        return self._cascade.runner.plan(shared, req_pool_idx)

    def upload_shared(self, plan: CascadePlan) -> None:
        """Put the plan of the next captured step in place."""
        assert self._cascade is not None
        self._cascade.upload(plan)

    def graph_state(
        self, rows: int, tile: Tile | None, indptr: torch.Tensor, last_page_len: torch.Tensor
    ) -> DecodeState:
        """What the decode graphs for this many rows need of the backend.

        Args:
            tile: of the shared parts; None for steps without.
            indptr, last_page_len: int32 [rows + 1] and [rows] on the device; before a replay they get what
                `DecodeState.plan` returned.
        """
        if self._graph_indices is None:
            self._graph_indices = torch.zeros(self._max_graph_pages, dtype=torch.int32, device=self._device)
        wrappers = {
            window: _Plan(
                self._decode_wrapper(
                    use_cuda_graph=True,
                    paged_kv_indptr_buffer=indptr,
                    paged_kv_indices_buffer=self._graph_indices,
                    paged_kv_last_page_len_buffer=last_page_len,
                )
            )
            for window in self._windows
        }
        return DecodeState(self, rows, tile, indptr, wrappers)

    def fits_graph(self, seq_lens: Int32Array, rows: int) -> bool:
        """Whether a step of these rows, padded to `rows`, is small enough for a captured one."""
        return int(self._num_pages(seq_lens).sum()) + rows - len(seq_lens) <= self._max_graph_pages


class DecodeState:
    """One bucket's part of the backend. `plan` comes before the capture and before each replay."""

    def __init__(
        self, backend: FlashInferBackend, rows: int, tile: Tile | None, indptr: torch.Tensor,
        plans: dict[int | None, _Plan],
    ) -> None:  # fmt: skip
        self.rows = rows
        self._tile = tile
        self._indptr = indptr
        self._backend = backend
        self._plans = plans
        self._planned = False

    def plan(self, own_lens: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Plan what each row has for itself; returns the pages' indptr and the tokens in each last page.

        Args:
            own_lens: int32 [rows], padding rows included, each at least 1.
        """
        b = self._backend
        indptr = np.zeros(self.rows + 1, np.int32)
        np.cumsum(b._num_pages(own_lens), out=indptr[1:])
        last = b._last_page_len(own_lens)
        host, last_host = torch.from_numpy(indptr), torch.from_numpy(last)
        assert b._graph_indices is not None
        indices = b._graph_indices[: int(indptr[-1])]
        for window, plan in self._plans.items():
            plan(b._decode_planner(host, indices, last_host, window, again=self._planned))
        self._planned = True
        return indptr, last

    def begin(self, table: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor) -> None:
        """Within the captured step, before the first layer: list the pages, and take over `attend`.

        Args:
            table: req_to_token.
            rows: int64 [rows].
            starts: int32 [rows], the position at which each row's own part begins.
        """
        b = self._backend
        assert b._graph_indices is not None
        write_kv_indices(table, rows, starts, self._indptr, b._page_size, b._graph_indices)
        b._active = {window: plan.wrapper for window, plan in self._plans.items()}
        b._tile = self._tile


class _Cascade:
    """The runner of shared parts, with the one place on the device where its plan lies."""

    def __init__(self, shape: _Shape, max_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.runner = CascadeRunner(
            num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, max_rows=max_rows,
            device=device, dtype=dtype,
        )  # fmt: skip
        self._buffer = torch.zeros(self.runner.limits.packed_size, dtype=torch.int32, device=device)
        self.placed: PlacedPlan = self.runner.place(self._buffer)
        self._uploader = Uploader(device)
        self._there: CascadePlan | None = None

    def upload(self, plan: CascadePlan) -> None:
        """The same object lies there already while groups and rows stay the same."""
        if plan is not self._there:
            self._uploader.upload_into(self._buffer.view(torch.uint8), [plan.packed], [0])
            self._there = plan

    def attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, scale: float, tile: Tile
    ) -> None:
        self.runner.attend_shared(q, keys, values, table, scale, tile, self.placed)


class _Plan:
    """A wrapper, and when its pinned area was last copied from."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __call__(self, plan: Callable[[Any], None]) -> None:
        self._copied.synchronize()
        plan(self.wrapper)
        self._copied.record()


def _pinned(values: Int32Array) -> torch.Tensor:
    """In page-locked memory; torch gives it out again only when the copies that read it are done."""
    return torch.from_numpy(np.ascontiguousarray(values)).pin_memory()


def _window_left(window: int | None) -> int:
    """FlashInfer counts the positions to the left of the query, without itself."""
    return -1 if window is None else window - 1
