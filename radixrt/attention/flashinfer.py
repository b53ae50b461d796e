"""The FlashInfer backend: paged attention on NVIDIA GPUs that reads keys and values where they lie in the pool.

A step is planned once, on the host, for all layers of a kind (layers differ at most in their sliding window). An EXTEND
step is cut into parts that go through different kernels, see `extend_parts`. Where a step says which decode rows share
what, FlashInfer computes each row's own part, and `CascadeRunner` the shared ones and the merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cascade_plan import CascadePlan, Tile
from radixrt.attention.cascade_runner import CascadeRunner, PlacedPlan
from radixrt.attention.extend_parts import split_extend
from radixrt.attention.flashinfer_plans import (
    WORKSPACE_BYTES,
    Plan,
    Planner,
    Rows,
    Shape,
    cumulated,
    last_page_lens,
    num_pages,
)
from radixrt.attention.kv_cache import KVCache
from radixrt.batch.forward_batch import ForwardBatch, ForwardMode
from radixrt.batch.shared_groups import SharedGroups
from radixrt.batch.upload import Uploader
from radixrt.kernels.triton.kv_indices import write_kv_indices
from radixrt.kernels.triton.store_kv import store_kv
from radixrt.messages import Int32Array

MAX_GRAPH_PAGES = 2**24
"""Pages that one captured decode step can read at most (64 MB of page numbers); longer steps run uncaptured."""

COMPILER_HINT = (
    "they are compiled at the first start, by nvcc (of the CUDA that torch was built for) and ninja; `radixrt doctor "
    "--device cuda --attention-backend flashinfer` says what is missing"
)

Windows = dict[int | None, Any]
"""Something for each kind of layer, by its sliding window."""


@dataclass(frozen=True)
class _Part:
    """Tokens [first, end) of a step and how they attend.

    Attributes:
        wrappers: planned, by window.
        fresh: they read the keys and values that come with them, not the pool.
        tile: of what they share; None if nothing.
    """

    first: int
    end: int
    wrappers: Windows
    fresh: bool = False
    tile: Tile | None = None


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

        shapes = {Shape(x.num_heads, x.num_kv_heads, x.head_dim, x.scale) for x in layers}
        if len(shapes) != 1:
            raise ValueError("its layers differ in heads or head size")
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"FlashInfer computes in float16 or bfloat16, not {dtype}")
        shape = shapes.pop()
        if shape.head_dim not in (64, 128, 256):
            raise ValueError(f"head_dim {shape.head_dim} is none of 64, 128 and 256")
        self._kv = kv_cache
        self._page_size = kv_cache.page_size
        self._device = kv_cache.k[0].device
        self._pages = [
            (k.view(-1, self._page_size, *k.shape[1:]), v.view(-1, self._page_size, *v.shape[1:]))
            for k, v in zip(kv_cache.k, kv_cache.v, strict=True)
        ]
        windows = {x.sliding_window for x in layers}
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        self._planners = {
            window: Planner(
                flashinfer, shape, window, dtype=dtype, kv_dtype=kv_cache.dtype, page_size=self._page_size,
                workspace=workspace,
            )
            for window in windows
        }  # fmt: skip
        self._cascade = _Cascade(shape, max_rows, dtype, self._device) if windows == {None} else None
        self._max_graph_pages = min(max_rows * max_pages, MAX_GRAPH_PAGES)
        self._graph_indices: torch.Tensor | None = None
        self._load_kernels()
        self._parts: list[_Part] = []
        self._stores = False  # whether `attend` stores, because a part reads what has just been computed

    def _load_kernels(self) -> None:
        """Compile what has not been compiled on this machine, now and not within a step."""
        table = torch.zeros(1, self._page_size, dtype=torch.int32, device=self._device)
        one = np.ones(1, np.int32)
        rows = Rows(table, torch.zeros(1, dtype=torch.int64, device=self._device), 0 * one, one)
        try:
            for planner in self._planners.values():
                planner.decode(rows)
                planner.prefill(rows, one)
                planner.fresh(one)
        except Exception as error:  # ninja's, nvcc's, the loader's: of any kind
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                f"its kernels cannot be loaded or compiled here ({text[:300]}); {COMPILER_HINT}"
            ) from error

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if self._stores else (self._kv.k[layer.layer_id], self._kv.v[layer.layer_id])

    def attend(
        self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None,
        batch: ForwardBatch,
    ) -> torch.Tensor:  # fmt: skip
        pool = (self._kv.k[layer.layer_id], self._kv.v[layer.layer_id])
        if k is not None and v is not None:
            store_kv(k, v, pool, batch.out_cache_loc)
        q, out = q.contiguous(), torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part in self._parts:
            queries, result = q[part.first : part.end], out[part.first : part.end]
            wrapper = part.wrappers[layer.sliding_window]
            if part.fresh:
                assert k is not None
                assert v is not None
                wrapper.run(queries, k[part.first : part.end], v[part.first : part.end], out=result)
            elif part.tile is None or self._cascade is None:
                wrapper.run(queries, self._pages[layer.layer_id], out=result)
            else:
                _, lse = wrapper.run(queries, self._pages[layer.layer_id], out=result, return_lse=True)
                self._cascade.finish(queries, pool, batch.req_to_token, layer.scale, part.tile, result, lse)
        return out.view(q.shape[0], -1)

    # --- steps that are launched kernel by kernel ---

    def prepare(self, batch: ForwardBatch) -> None:
        self._parts, self._stores = [], False
        if batch.mode is ForwardMode.DECODE:
            self._add_decode(batch, 0, 0)
            return
        split = split_extend(batch.seq_lens_cpu - batch.extend_lens_cpu, batch.extend_lens_cpu)
        tokens = cumulated(batch.extend_lens_cpu)
        if split.fresh:
            rows, lens = self._rows(batch, slice(0, split.fresh)), batch.extend_lens_cpu[: split.fresh]
            wrappers = {window: planner.prefill(rows, lens) for window, planner in self._planners.items()}
            self._parts.append(_Part(0, int(tokens[split.fresh]), wrappers))
        if split.fresh < split.single:
            lens = batch.extend_lens_cpu[split.fresh : split.single]
            wrappers = {window: planner.fresh(lens) for window, planner in self._planners.items()}
            self._parts.append(_Part(int(tokens[split.fresh]), int(tokens[split.single]), wrappers, fresh=True))
            self._stores = True
        if split.single < split.rows:
            self._add_decode(batch, split.single, int(tokens[split.single]))

    def _add_decode(self, batch: ForwardBatch, row: int, token: int) -> None:
        """The part of the rows from `row` on, whose tokens begin at `token`: one query each."""
        rows = self._rows(batch, slice(row, None))
        shared = None if batch.shared is None else batch.shared.from_row(row)
        plan = self.plan_shared(shared, batch.req_pool_indices_cpu[row:])
        tile = None
        if plan is not None and self._cascade is not None:
            self._cascade.upload(plan)
            tile = plan.tile
            rows = Rows(rows.table, rows.places, plan.ends, rows.lens - plan.ends)
        wrappers = {window: planner.decode(rows) for window, planner in self._planners.items()}
        self._parts.append(_Part(token, batch.num_tokens, wrappers, tile=tile))

    @staticmethod
    def _rows(batch: ForwardBatch, part: slice) -> Rows:
        lens = batch.seq_lens_cpu[part]
        return Rows(batch.req_to_token, batch.req_pool_indices[part], np.zeros_like(lens), lens)

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
        plans = {w: p.graph(rows, indptr, self._graph_indices, last_page_len) for w, p in self._planners.items()}
        return DecodeState(self, rows, tile, indptr, self._graph_indices, plans)

    def fits_graph(self, seq_lens: Int32Array, rows: int) -> bool:
        """Whether a step of these rows, padded to `rows`, is small enough for a captured one."""
        return int(num_pages(seq_lens, self._page_size).sum()) + rows - len(seq_lens) <= self._max_graph_pages


class DecodeState:
    """One bucket's part of the backend. `plan` comes before the capture and before each replay."""

    def __init__(
        self, backend: FlashInferBackend, rows: int, tile: Tile | None, indptr: torch.Tensor, indices: torch.Tensor,
        plans: dict[int | None, Plan],
    ) -> None:  # fmt: skip
        self.rows = rows
        self._backend = backend
        self._tile = tile
        self._indptr, self._indices = indptr, indices
        self._plans = plans
        self._planned = False

    def plan(self, own_lens: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Plan what each row has for itself; returns the pages' indptr and the tokens in each last page.

        Args:
            own_lens: int32 [rows], padding rows included, each at least 1.
        """
        page_size = self._backend._page_size
        indptr, last = cumulated(num_pages(own_lens, page_size)), last_page_lens(own_lens, page_size)
        indices = self._indices[: int(indptr[-1])]
        for window, plan in self._plans.items():
            self._backend._planners[window].plan_graph(plan, indptr, indices, last, again=self._planned)
        self._planned = True
        return indptr, last

    def begin(self, table: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor) -> None:
        """Within the captured step, before the first layer: list the pages, and take over `attend`.

        Args:
            table: req_to_token.
            rows: int64 [rows].
            starts: int32 [rows], the position at which each row's own part begins.
        """
        write_kv_indices(table, rows, starts, self._indptr, self._backend._page_size, self._indices)
        wrappers = {window: plan.wrapper for window, plan in self._plans.items()}
        self._backend._parts = [_Part(0, self.rows, wrappers, tile=self._tile)]
        self._backend._stores = False


class _Cascade:
    """The runner of shared parts, with the one place on the device where its plan lies."""

    def __init__(self, shape: Shape, max_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.runner = CascadeRunner(
            num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, max_rows=max_rows,
            device=device, dtype=dtype,
        )  # fmt: skip
        self._buffer = torch.zeros(self.runner.limits.packed_size, dtype=torch.int32, device=device)
        self._placed: PlacedPlan = self.runner.place(self._buffer)
        self._uploader = Uploader(device)
        self._there: CascadePlan | None = None

    def upload(self, plan: CascadePlan) -> None:
        """The same object lies there already while groups and rows stay the same."""
        if plan is not self._there:
            self._uploader.upload_into(self._buffer.view(torch.uint8), [plan.packed], [0])
            self._there = plan

    def finish(
        self, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor, scale: float, tile: Tile,
        own: torch.Tensor, lse: torch.Tensor,
    ) -> None:  # fmt: skip
        """Merge what rows share into what each has for itself (`own` and its log-sum-exp), in place."""
        self.runner.attend_shared(q, *pool, table, scale, tile, self._placed)
        self.runner.merge(own, lse, own.view(own.shape[0], -1), self._placed)
