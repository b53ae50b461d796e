"""The FlashInfer backend: paged attention on NVIDIA GPUs that reads keys and values in place from the KV pool.

A step is planned once, on the host, for all layers with the same sliding window. An EXTEND step is divided into parts
for different kernels, see `extend_parts`: FlashInfer's for prompts, and `DecodeRunner`'s for rows with a single query.
Where rows of a step share prefixes, these kernels compute each row's suffix only. `CascadeRunner` computes and merges
the shared prefixes of rows with a single query, and `PromptCascade` does so for prompts. Attention sinks are applied to
the result of any kernel, by means of its log-sum-exp.

Keys and values in float8 are gathered and converted for prompts, so that these use the kernels of the model's dtype.
What a prompt reads then equals what the pool holds, also of tokens computed in the step, whatever the chunks.

While FlashInfer's kernels are being compiled, `VarlenPlanner` computes prompts, without sharing prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixrt.attention import prompt_cascade
from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cascade import CascadePlan, CascadeRunner, CascadeStep, Tile
from radixrt.attention.decode_runner import DecodeRows, DecodeRunner
from radixrt.attention.flashinfer_modules import FlashInferModules, load_modules
from radixrt.attention.flashinfer_plans import WORKSPACE_BYTES, Planner, Rows, common_shape, cumulated
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.prompt_cascade import PromptCascade, SharedPrompts, plan_prompts
from radixrt.attention.varlen import VarlenPlanner
from radixrt.forward_batch.extend_parts import ExtendParts, leading, split_extend
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode, SharedGroups
from radixrt.kernels.triton.gather_kv import gather_kv
from radixrt.kernels.triton.kv_indices import write_kv_indices
from radixrt.kernels.triton.padding import empty_padded
from radixrt.kernels.triton.sinks import apply_sinks
from radixrt.kernels.triton.store_kv import store_kv
from radixrt.messages.wire import Int32Array

MAX_GRAPH_POSITIONS = 2**24
"""Maximum number of positions that a captured decode step reads (64 MB of slots). Longer steps run uncaptured."""

Window = int | None
"""Sliding window of a layer; layers with the same window share their plans."""


@dataclass(frozen=True)
class FreshPart:
    """Tokens [first, end) of a step, of rows that begin in the step: they read only keys and values computed in the
    step, side by side.

    Attributes:
        wrappers: planned wrappers, by window; their `run` computes.
    """

    first: int
    end: int
    wrappers: dict[Window, Any]


@dataclass(frozen=True)
class PagedPart:
    """The first tokens of a step, of rows that read the pool by pages: rows with several queries, and rows with a
    single query if there are too few of them for a separate part.

    Attributes:
        suffixes: (first token, end token, planned wrappers by window) for each kernel, over the suffix of each row.
        shared: prefixes that the rows share; None if there are none.
    """

    suffixes: list[tuple[int, int, dict[Window, Any]]]
    shared: SharedPrompts | None


@dataclass(frozen=True)
class DecodePart:
    """Tokens [first, end) of a step, each the only query of its row.

    Attributes:
        rows: planned rows over the suffix of each row, by window.
        tile: tile of the kernel for shared prefixes; None if no prefix is shared.
    """

    first: int
    end: int
    rows: dict[Window, DecodeRows]
    tile: Tile | None = None


Part = PagedPart | FreshPart | DecodePart


def within(window: Window, starts: Int32Array, lens: Int32Array) -> Int32Array:
    """Return the first position (int32 [B]) whose key the last query of each row sees."""
    return starts if window is None else np.maximum(starts, lens - window)


class FlashInferBackend(AttentionBackend):
    """Backend for float16 and bfloat16 models, with a pool of the same dtype or of float8_e4m3fn.

    Args:
        dtype: dtype of the model.
        max_rows, context_length: maximum number of rows of a step, and of positions of a row.
        dependent_launch: use programmatic dependent launch, see `CudaOps`.
        modules: FlashInfer's kernels; None to compile them now.

    Attributes:
        gathers: the pool has another dtype than the model. Keys and values are then always stored before they are read.

    Raises:
        ImportError: FlashInfer or Triton is not installed.
        ValueError: the layers' shapes or dtypes are not supported, or no kernels can be had now; the message says why.
    """

    is_captured = True

    def __init__(
        self,
        kv_cache: KVCache,
        layers: list[AttentionLayer],
        *,
        dtype: torch.dtype,
        max_rows: int,
        context_length: int,
        dependent_launch: bool = False,
        modules: FlashInferModules | None = None,
    ) -> None:
        shape = common_shape(layers, dtype)
        page_size = kv_cache.page_size
        self._kv = kv_cache
        self.gathers = kv_cache.dtype != dtype
        self._device = kv_cache.k[0].device
        self._pages = [
            (k.view(-1, page_size, *k.shape[1:]), v.view(-1, page_size, *v.shape[1:]))
            for k, v in zip(kv_cache.k, kv_cache.v, strict=True)
        ]
        self._windows: list[Window] = list(dict.fromkeys(x.sliding_window for x in layers))
        # Unless the kernels are given, wait for their compilation.
        if modules is None:
            modules = load_modules(
                self._windows, head_dim=shape.head_dim, dtype=dtype, kv_dtype=kv_cache.dtype, device=self._device
            )
            modules.wait()
            if modules.error is not None:
                raise ValueError(modules.error)
        # Begin with torch's kernels for prompts. `prepare` changes to FlashInfer's as soon as they are loaded.
        self._modules, self._shape, self._dtype = modules, shape, dtype
        self._has_sinks = any(x.has_sinks for x in layers)
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        self._planners: Mapping[Window, Planner | VarlenPlanner] = {
            window: VarlenPlanner(shape, window, dtype, self._device) for window in self._windows
        }
        self._decode = DecodeRunner(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            max_rows=max_rows,
            kv_dtype=kv_cache.dtype,
            device=self._device,
            dependent_launch=dependent_launch,
        )
        # Prefixes can be shared only without sliding windows, which would end at a different position for each row.
        self._cascade: CascadeStep | None = None
        self._prompt_cascade: PromptCascade | None = None
        if self._windows == [None]:
            runner = CascadeRunner(
                num_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                max_rows=max_rows,
                device=self._device,
                dtype=dtype,
            )
            self._cascade = CascadeStep(runner, self._device)
        self._max_rows = max_rows
        self._max_graph_positions = min(max_rows * context_length, MAX_GRAPH_POSITIONS)
        self._graph_lists: dict[Window, tuple[torch.Tensor, torch.Tensor]] = {}
        self._uses_flashinfer = False
        if modules.loaded:
            self._use_flashinfer()
        self._planned: list[tuple[ForwardBatch, list[Part]]] = []
        self._stores = False  # a part reads keys and values computed in the step, so the caller must not store them

    def _use_flashinfer(self) -> None:
        """Replace the planners by FlashInfer's, whose kernels are loaded."""
        import flashinfer

        planners = {
            window: Planner(
                flashinfer,
                self._shape,
                window,
                dtype=self._dtype,
                kv_dtype=self._kv.dtype,
                page_size=self._kv.page_size,
                workspace=self._workspace,
            )
            for window in self._windows
        }
        if self._cascade is not None:
            self._prompt_cascade = PromptCascade(planners[None], self._shape, self._dtype, self._device)
        self._planners, self._uses_flashinfer = planners, True

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if self._stores else self.slots(layer)

    def slots(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's keys and values by slot, [slots, num_kv_heads, head_dim] each."""
        return self._kv.k[layer.layer_id], self._kv.v[layer.layer_id]

    def launch_all(self, req_to_token: torch.Tensor) -> None:
        shape, pool = self._shape, (self._kv.k[0], self._kv.v[0])
        q = torch.zeros(1, shape.num_heads, shape.head_dim, dtype=self._dtype, device=self._device)
        self._decode.launch_all(q, pool, req_to_token)
        if self._has_sinks:
            lse, sinks = _new_lse(q), torch.zeros(shape.num_heads, dtype=torch.float32, device=self._device)
            apply_sinks(q.clone(), lse, sinks)
        row = torch.zeros(1, dtype=torch.int64, device=self._device)
        ends = torch.arange(2, dtype=torch.int32, device=self._device)
        for page_size in {1, self._kv.page_size}:
            for starts in (None, ends):
                write_kv_indices(req_to_token, row, ends, page_size, torch.empty_like(ends), starts)
        if self._cascade is not None:
            self._cascade.runner.launch_all(q, pool, req_to_token)
        prompt_cascade.launch_all(q, pool, req_to_token)
        if self.gathers:
            gather_kv(pool, row, self._dtype)

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        store_kv(k, v, self.slots(layer), batch.out_cache_loc)

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = empty_padded(*q.shape, dtype=q.dtype, device=q.device)
        self.attend_into(layer, q.contiguous(), k, v, batch, out, sinks)
        return out.view(q.shape[0], -1)

    def attend_into(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Same as `attend` for a contiguous q, writing to out [T, num_heads, head_dim]."""
        pool = self.slots(layer)
        if k is not None and v is not None:
            self.store(layer, k, v, batch)
        for part in self.parts_of(batch):
            if isinstance(part, PagedPart):
                self._attend_paged(layer, part, q, pool, out, sinks)
                continue
            queries, result = q[part.first : part.end], out[part.first : part.end]
            if isinstance(part, DecodePart):
                self._attend_decode(layer, part, queries, pool, batch.req_to_token, result, sinks)
                continue
            wrapper, lse = part.wrappers[layer.sliding_window], None if sinks is None else _new_lse(queries)
            if self.gathers:
                new_k, new_v = gather_kv(pool, batch.out_cache_loc[part.first : part.end], q.dtype)
            else:
                assert k is not None
                assert v is not None
                new_k, new_v = k[part.first : part.end], v[part.first : part.end]
            wrapper.run(queries, new_k, new_v, out=result, lse=lse, return_lse=lse is not None)
            if sinks is not None and lse is not None:
                apply_sinks(result, lse, sinks)

    def parts_of(self, batch: ForwardBatch) -> list[Part]:
        """Return the planned parts of a batch of the current step."""
        return next(parts for planned, parts in self._planned if planned is batch)

    def _attend_paged(
        self,
        layer: AttentionLayer,
        part: PagedPart,
        q: torch.Tensor,
        pool: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        pages, tokens = self._pages[layer.layer_id], part.suffixes[-1][1]
        lse = None if part.shared is None and sinks is None else _new_lse(q[:tokens])
        for first, end, wrappers in part.suffixes:
            suffix_lse = None if lse is None else lse[first:end]
            wrappers[layer.sliding_window].run(
                q[first:end], pages, out=out[first:end], lse=suffix_lse, return_lse=lse is not None
            )
        # Sinks are added to the suffixes, before shared prefixes are merged, so that they count once.
        if sinks is not None and lse is not None:
            apply_sinks(out[:tokens], lse, sinks)
        if part.shared is not None and lse is not None and self._prompt_cascade is not None:
            self._prompt_cascade.finish(q[:tokens], pool, part.shared, out[:tokens], lse)

    def _attend_decode(
        self,
        layer: AttentionLayer,
        part: DecodePart,
        q: torch.Tensor,
        pool: tuple[torch.Tensor, torch.Tensor],
        table: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        rows, shares = part.rows[layer.sliding_window], part.tile is not None and self._cascade is not None
        lse = _new_lse(q) if shares or sinks is not None else None
        self._decode.attend(q, pool, rows, layer.scale, out, lse)
        if lse is None:
            return
        if sinks is not None:  # added to the suffix, so that sinks count once
            apply_sinks(out, lse, sinks)
        if part.tile is not None and self._cascade is not None:
            self._cascade.finish(q, pool, table, layer.scale, part.tile, out, lse)

    # --- steps that are launched kernel by kernel ---

    def prepare(self, batch: ForwardBatch) -> None:
        if not self._uses_flashinfer and self._modules.loaded:
            self._use_flashinfer()
        self._planned = []
        may_share = True
        for each in batch.attended:
            parts = self._plan_parts(each, may_share=may_share)
            self._planned.append((each, parts))
            # The device has a single buffer for plans of prefixes shared by decode rows.
            may_share = not any(isinstance(part, DecodePart) and part.tile is not None for part in parts)
        self._stores = not self.gathers and any(isinstance(part, FreshPart) for part in self.parts_of(batch))

    def _plan_parts(self, batch: ForwardBatch, *, may_share: bool) -> list[Part]:
        if batch.mode is ForwardMode.DECODE:
            return [self._plan_decode(batch, 0, 0, may_share=may_share)]
        parts: list[Part] = []
        split = split_extend(batch.seq_lens_cpu - batch.extend_lens_cpu, batch.extend_lens_cpu)
        tokens = cumulated(batch.extend_lens_cpu)
        if split.fresh:
            parts.append(self._plan_paged(batch, split, tokens))
        if split.fresh < split.single:
            lens = batch.extend_lens_cpu[split.fresh : split.single]
            wrappers = {window: planner.fresh(lens) for window, planner in self._planners.items()}
            parts.append(FreshPart(int(tokens[split.fresh]), int(tokens[split.single]), wrappers))
        if split.single < split.rows:
            parts.append(self._plan_decode(batch, split.single, int(tokens[split.single]), may_share=may_share))
        return parts

    def _plan_paged(self, batch: ForwardBatch, split: ExtendParts, tokens: Int32Array) -> PagedPart:
        """Plan the part of the first rows; row i's tokens begin at tokens[i]."""
        # Rows with a single query in this part do not share prefixes, because the scheduler's cost model assumed that
        # the decode kernel would compute them.
        several = leading(batch.extend_lens_cpu[: split.fresh] > 1)
        cascade = self._prompt_cascade
        groups = None if batch.shared is None or cascade is None else batch.shared.between(0, several)
        plan = None if groups is None else plan_prompts(groups, batch.extend_lens_cpu[: split.fresh])
        if plan is not None and cascade is not None and not cascade.fits(plan):
            plan = None
        suffixes = []
        for first, end, short in ((0, split.short, False), (split.short, split.fresh, True)):
            if first < end:
                rows = Rows(
                    batch.req_to_token,
                    batch.req_pool_indices[first:end],
                    batch.seq_lens_cpu[first:end],
                    None if plan is None else plan.ends[first:end],
                )
                lens = batch.extend_lens_cpu[first:end]
                wrappers = {
                    window: planner.prefill(rows, lens, short=short) for window, planner in self._planners.items()
                }
                suffixes.append((int(tokens[first]), int(tokens[end]), wrappers))
        if plan is None or cascade is None:
            return PagedPart(suffixes, None)
        return PagedPart(suffixes, cascade.place(plan, batch.req_to_token, batch.req_pool_indices_cpu))

    def _plan_decode(self, batch: ForwardBatch, row: int, token: int, *, may_share: bool) -> DecodePart:
        """Plan the part of the rows from `row` on, which have a single query each. Their tokens begin at `token`."""
        shared = batch.shared.between(row, len(batch.seq_lens_cpu)) if batch.shared is not None and may_share else None
        plan = self.plan_shared(shared, batch.req_pool_indices_cpu[row:])
        tile = None
        lens = batch.seq_lens_cpu[row:]
        starts = np.zeros_like(lens)
        if plan is not None and self._cascade is not None:
            self._cascade.upload(plan)
            tile, starts = plan.tile, plan.ends
        table_rows, ends = batch.req_pool_indices[row:], batch.seq_lens[row:]
        rows = {
            window: self._decode.listed(table_rows, within(window, starts, lens), ends, lens, batch.req_to_token)
            for window in self._windows
        }
        return DecodePart(token, batch.num_tokens, rows, tile)

    # --- decode steps that are captured ---

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """Tiles of the kernel for shared prefixes. Every tile needs separate graphs. Empty without sharing."""
        return () if self._cascade is None else self._cascade.runner.limits.tiles

    def plan_shared(self, shared: SharedGroups | None, req_pool_idx: Int32Array) -> CascadePlan | None:
        """Plan a decode step's shared prefixes (int32 [B] rows of req_to_token); None if no prefix is shared."""
        if shared is None or self._cascade is None:
            return None
        return self._cascade.runner.plan(shared, req_pool_idx)

    def upload_shared(self, plan: CascadePlan) -> None:
        """Copy the plan of the next captured step to the device."""
        assert self._cascade is not None
        self._cascade.upload(plan)

    def plan_graph(self, starts: Int32Array, lens: Int32Array) -> list[Int32Array]:
        """Return the numbers that a captured step reads: int32 arrays whose sizes depend only on the number of rows.

        Args:
            starts: int32 [rows], padding rows included, the position at which the suffix of each row begins.
            lens: int32 [rows], lengths of the sequences.
        """
        return [array for window in self._windows for array in self._decode.plan(within(window, starts, lens), lens)]

    def graph_part(
        self, tile: Tile | None, table_rows: torch.Tensor, seq_lens: torch.Tensor, arrays: Sequence[torch.Tensor]
    ) -> DecodePart:
        """Return the `DecodePart` for the decode graphs of a bucket, the argument of `begin_graph`.

        Args:
            tile: tile of the kernel for shared prefixes; None for steps without shared prefixes.
            table_rows, seq_lens: int64 [rows], static buffers.
            arrays: static buffers that hold the result of `plan_graph` at each replay.
        """
        # All graphs share the memory for the lists of slots, because only one of them runs at a time.
        each = len(arrays) // len(self._windows)
        rows = {}
        for i, window in enumerate(self._windows):
            if window not in self._graph_lists:
                sizes = self._decode.list_sizes(self._max_graph_positions, self._max_rows)
                slots, meta = (torch.zeros(size, dtype=torch.int32, device=self._device) for size in sizes)
                self._graph_lists[window] = slots, meta
            planned = arrays[i * each : (i + 1) * each]
            rows[window] = self._decode.place(table_rows, seq_lens, planned, *self._graph_lists[window])
        return DecodePart(0, len(table_rows), rows, tile)

    def begin_graph(self, batch: ForwardBatch, part: DecodePart) -> None:
        """Begin a captured step, before its first layer: list the slots of its rows, and make `part` the batch's
        plan."""
        for rows in part.rows.values():
            self._decode.list_slots(rows, batch.req_to_token)
        self._planned, self._stores = [(batch, [part])], False

    def fits_graph(self, seq_lens: Int32Array) -> bool:
        """Return whether a captured step can read these rows, whatever the number of rows it is padded to."""
        return int(seq_lens.sum()) + self._max_rows - len(seq_lens) <= self._max_graph_positions


def _new_lse(q: torch.Tensor) -> torch.Tensor:
    """Return memory for the log-sum-exp of each query and head."""
    return torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
