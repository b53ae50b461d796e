"""The FlashInfer backend: paged attention on NVIDIA GPUs that reads keys and values where they lie in the pool.

A step is planned once, on the host, for all layers of a kind (layers differ at most in their sliding window). An EXTEND
step is cut into parts that go through different kernels, see `extend_parts`: FlashInfer's for prompts, and one of ours,
`DecodeRunner`'s, for rows with one query. Where a step says which rows share what, these compute each row's own part;
the shared ones and the merge are `CascadeRunner`'s for rows with one query, and `PromptCascade`'s for prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cascade import CascadePlan, CascadeRunner, CascadeStep, Tile
from radixrt.attention.decode_runner import DecodeRows, DecodeRunner
from radixrt.attention.flashinfer_plans import WORKSPACE_BYTES, Planner, Rows, Shape, compile_kernels, cumulated
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.prompt_cascade import PromptCascade, SharedPrompts, plan_prompts
from radixrt.forward_batch.extend_parts import ExtendParts, leading, split_extend
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode, SharedGroups
from radixrt.kernels.triton.room import empty_with_room
from radixrt.kernels.triton.store_kv import store_kv
from radixrt.messages.wire import Int32Array

MAX_GRAPH_POSITIONS = 2**24
"""Positions that one captured decode step can read at most (64 MB of slots); longer steps run uncaptured."""


Window = int | None
"""A kind of layer, by its sliding window."""


@dataclass(frozen=True)
class FreshPart:
    """Tokens [first, end) of a step, of prompts that begin in it: they read the keys and values that come with them.

    Attributes:
        wrappers: FlashInfer's, planned, by window.
    """

    first: int
    end: int
    wrappers: dict[Window, Any]


@dataclass(frozen=True)
class PagedPart:
    """The first tokens of a step, of rows that read the pool by pages: with several queries, or with one where these
    are too few for a part.

    Attributes:
        own: (first token, the one behind the last, FlashInfer's wrappers by window, planned) for each kernel that they
            go through; over what each row has for itself.
        shared: what they share; None if nothing.
    """

    own: list[tuple[int, int, dict[Window, Any]]]
    shared: SharedPrompts | None


@dataclass(frozen=True)
class DecodePart:
    """Tokens [first, end) of a step, each the one query of its row.

    Attributes:
        rows: by window.
        tile: of what they share; None if nothing.
    """

    first: int
    end: int
    rows: dict[Window, DecodeRows]
    tile: Tile | None = None


Part = PagedPart | FreshPart | DecodePart


def within(window: Window, starts: Int32Array, lens: Int32Array) -> Int32Array:
    """The positions (int32 [B]) at which the keys of each row's last query begin."""
    return starts if window is None else np.maximum(starts, lens - window)


class FlashInferBackend(AttentionBackend):
    """float16 and bfloat16 models, with a pool of the same dtype or of float8_e4m3fn.

    Args:
        dtype: of the model.
        max_rows, context_length: of a step and of a row, at most.
        early: see `CudaOps`.

    Raises:
        ImportError: FlashInfer or Triton is not installed.
        ValueError: the layers' shapes or dtypes are not covered; says which.
    """

    def __init__(
        self, kv_cache: KVCache, layers: list[AttentionLayer], *, dtype: torch.dtype, max_rows: int,
        context_length: int, early: bool = False,
    ) -> None:  # fmt: skip
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
        self._decode = DecodeRunner(
            num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, max_rows=max_rows,
            kv_dtype=kv_cache.dtype, device=self._device, early=early,
        )  # fmt: skip
        self._cascade: CascadeStep | None = None
        if windows == {None}:
            runner = CascadeRunner(
                num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, max_rows=max_rows,
                device=self._device, dtype=dtype,
            )  # fmt: skip
            self._cascade = CascadeStep(runner, self._device)
            self._prompt_cascade = PromptCascade(self._planners[None], shape, dtype, self._device)
        self._max_rows = max_rows
        self._max_graph_positions = min(max_rows * context_length, MAX_GRAPH_POSITIONS)
        self._graph_lists: dict[Window, tuple[torch.Tensor, torch.Tensor]] = {}
        compile_kernels(self._planners.values(), self._page_size, self._device)
        self._parts: list[Part] = []
        self._narrowed: ForwardBatch | None = None
        self._narrowed_parts: list[Part] = []
        self._stores = False  # whether the caller may not store, because a part reads what has just been computed

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if self._stores else self.slots(layer)

    def slots(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's keys and values by slot, [slots, num_kv_heads, head_dim] each."""
        return self._kv.k[layer.layer_id], self._kv.v[layer.layer_id]

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        store_kv(k, v, self.slots(layer), batch.out_cache_loc)

    def attend(
        self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None,
        batch: ForwardBatch,
    ) -> torch.Tensor:  # fmt: skip
        out = empty_with_room(*q.shape, dtype=q.dtype, device=q.device)
        self.attend_into(layer, q.contiguous(), k, v, batch, out)
        return out.view(q.shape[0], -1)

    def attend_into(
        self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None,
        batch: ForwardBatch, out: torch.Tensor,
    ) -> None:  # fmt: skip
        """As `attend`, with a contiguous q, into out [T, num_heads, head_dim]."""
        pool = self.slots(layer)
        if k is not None and v is not None:
            self.store(layer, k, v, batch)
        for part in self._narrowed_parts if batch is self._narrowed else self._parts:
            if isinstance(part, PagedPart):
                self._attend_paged(layer, part, q, pool, out)
                continue
            queries, result = q[part.first : part.end], out[part.first : part.end]
            if isinstance(part, DecodePart):
                self._attend_decode(layer, part, queries, pool, batch.req_to_token, result)
                continue
            assert k is not None
            assert v is not None
            wrapper = part.wrappers[layer.sliding_window]
            wrapper.run(queries, k[part.first : part.end], v[part.first : part.end], out=result)

    def _attend_paged(
        self, layer: AttentionLayer, part: PagedPart, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
    ) -> None:  # fmt: skip
        pages, tokens = self._pages[layer.layer_id], part.own[-1][1]
        lse = None
        if part.shared is not None:
            lse = torch.empty(tokens, q.shape[1], dtype=torch.float32, device=q.device)
        for first, end, wrappers in part.own:
            own_lse = None if lse is None else lse[first:end]
            wrappers[layer.sliding_window].run(
                q[first:end], pages, out=out[first:end], lse=own_lse, return_lse=lse is not None
            )
        if part.shared is not None and lse is not None:
            self._prompt_cascade.finish(q[:tokens], pool, part.shared, out[:tokens], lse)

    def _attend_decode(
        self, layer: AttentionLayer, part: DecodePart, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor],
        table: torch.Tensor, out: torch.Tensor,
    ) -> None:  # fmt: skip
        rows = part.rows[layer.sliding_window]
        if part.tile is None or self._cascade is None:
            self._decode.attend(q, pool, rows, layer.scale, out)
            return
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        self._decode.attend(q, pool, rows, layer.scale, out, lse)
        self._cascade.finish(q, pool, table, layer.scale, part.tile, out, lse)

    # --- steps that are launched kernel by kernel ---

    def prepare(self, batch: ForwardBatch) -> None:
        self._plan_parts(batch)
        narrowed = batch.narrowed
        self._narrowed, self._narrowed_parts = narrowed, []
        if narrowed is not None and narrowed.num_tokens:
            # The plan of what decode rows share has one place on the device.
            if any(isinstance(part, DecodePart) and part.tile is not None for part in self._parts):
                narrowed = replace(narrowed, shared=None)
            self._narrowed_parts.append(self._plan_decode(narrowed, 0, 0))

    def _plan_parts(self, batch: ForwardBatch) -> None:
        self._parts, self._stores = [], False
        if batch.mode is ForwardMode.DECODE:
            self._parts.append(self._plan_decode(batch, 0, 0))
            return
        split = split_extend(batch.seq_lens_cpu - batch.extend_lens_cpu, batch.extend_lens_cpu)
        tokens = cumulated(batch.extend_lens_cpu)
        if split.fresh:
            self._parts.append(self._plan_paged(batch, split, tokens))
        if split.fresh < split.single:
            lens = batch.extend_lens_cpu[split.fresh : split.single]
            wrappers = {window: planner.fresh(lens) for window, planner in self._planners.items()}
            self._parts.append(FreshPart(int(tokens[split.fresh]), int(tokens[split.single]), wrappers))
            self._stores = True
        if split.single < split.rows:
            self._parts.append(self._plan_decode(batch, split.single, int(tokens[split.single])))

    def _plan_paged(self, batch: ForwardBatch, split: ExtendParts, tokens: Int32Array) -> PagedPart:
        """The part of the first rows; row i's tokens begin at tokens[i]."""
        # Single tokens that have no part of their own do not share: that was weighed for the kernel that they miss.
        several = leading(batch.extend_lens_cpu[: split.fresh] > 1)
        groups = None if batch.shared is None or self._cascade is None else batch.shared.between(0, several)
        plan = None if groups is None else plan_prompts(groups, batch.extend_lens_cpu[: split.fresh])
        if plan is not None and not self._prompt_cascade.fits(plan):
            plan = None
        own = []
        for first, end, short in ((0, split.short, False), (split.short, split.fresh, True)):
            if first < end:
                rows = Rows(
                    batch.req_to_token, batch.req_pool_indices[first:end], batch.seq_lens_cpu[first:end],
                    None if plan is None else plan.ends[first:end],
                )  # fmt: skip
                lens = batch.extend_lens_cpu[first:end]
                wrappers = {
                    window: planner.prefill(rows, lens, short=short) for window, planner in self._planners.items()
                }
                own.append((int(tokens[first]), int(tokens[end]), wrappers))
        if plan is None:
            return PagedPart(own, None)
        return PagedPart(own, self._prompt_cascade.place(plan, batch.req_to_token, batch.req_pool_indices_cpu))

    def _plan_decode(self, batch: ForwardBatch, row: int, token: int) -> DecodePart:
        """The part of the rows from `row` on, whose tokens begin at `token`: one query each."""
        shared = None if batch.shared is None else batch.shared.between(row, len(batch.seq_lens_cpu))
        plan = self.plan_shared(shared, batch.req_pool_indices_cpu[row:])
        tile = None
        lens = batch.seq_lens_cpu[row:]
        starts = np.zeros_like(lens)
        if plan is not None and self._cascade is not None:
            self._cascade.upload(plan)
            tile, starts = plan.tile, plan.ends
        places, ends = batch.req_pool_indices[row:], batch.seq_lens[row:]
        rows = {
            window: self._decode.listed(places, within(window, starts, lens), ends, lens, batch.req_to_token)
            for window in self._planners
        }
        return DecodePart(token, batch.num_tokens, rows, tile)

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

    def plan_graph(self, starts: Int32Array, lens: Int32Array) -> list[Int32Array]:
        """The backend's numbers of a captured step: int32 arrays, whose sizes the number of rows decides.

        Args:
            starts: int32 [rows], padding rows included, from which position on each row is alone.
            lens: int32 [rows], of the sequences.
        """
        return [array for window in self._planners for array in self._decode.plan(within(window, starts, lens), lens)]

    def graph_state(
        self, tile: Tile | None, places: torch.Tensor, seq_lens: torch.Tensor, arrays: Sequence[torch.Tensor]
    ) -> DecodeState:
        """What the decode graphs for one number of rows need of the backend.

        Args:
            tile: of the shared parts; None for steps without.
            places, seq_lens: int64 [rows].
            arrays: on the device; before a replay they get what `plan_graph` returned.
        """
        each = len(arrays) // len(self._planners)
        rows = {}
        for i, window in enumerate(self._planners):
            if window not in self._graph_lists:
                sizes = self._decode.list_sizes(self._max_graph_positions, self._max_rows)
                slots, meta = (torch.zeros(size, dtype=torch.int32, device=self._device) for size in sizes)
                self._graph_lists[window] = slots, meta
            mine = arrays[i * each : (i + 1) * each]
            rows[window] = self._decode.place(places, seq_lens, mine, *self._graph_lists[window])
        return DecodeState(self, DecodePart(0, len(places), rows, tile))

    def fits_graph(self, seq_lens: Int32Array) -> bool:
        """Whether a step of these rows is small enough for a captured one, however many rows it is padded to."""
        return int(seq_lens.sum()) + self._max_rows - len(seq_lens) <= self._max_graph_positions


class DecodeState:
    """One bucket's part of the backend."""

    def __init__(self, backend: FlashInferBackend, part: DecodePart) -> None:
        self._backend, self._part = backend, part

    def begin(self, table: torch.Tensor) -> None:
        """Within the captured step, before the first layer: list the slots of req_to_token, and take over `attend`."""
        for rows in self._part.rows.values():
            self._backend._decode.list_slots(rows, table)
        self._backend._parts = [self._part]
        self._backend._stores = False
