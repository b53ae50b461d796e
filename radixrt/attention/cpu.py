"""The CPU backend: a compiled kernel that reads keys and values in place from the KV pool, and its planning."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.forward_batch.forward_batch import FIRST, ForwardBatch, SharedGroups
from radixrt.kernels.build import load_kernels
from radixrt.kernels.compiled import CannotRecord, Kernel, Recording
from radixrt.kernels.threads import max_threads
from radixrt.messages.wire import Int32Array

MAX_DOT_ROWS = 8
"""Maximum number of query heads on a kv head for the kernel's single-query path."""

TASK_ROWS = 192
"""Query rows (queries times heads on a kv head) of a task: enough to amortize unpacking a block of keys."""


class CpuBackend(AttentionBackend):
    """Attention in float32, over a float32 or bfloat16 pool, for head dims that are multiples of 16.

    Equal to the reference up to rounding.

    Raises:
        KernelUnavailable: the kernel cannot be built here.
        ValueError: a layer's shape or dtype is not supported; the message names it.
    """

    def __init__(self, kv_cache: KVCache, layers: list[AttentionLayer], cache_dir: Path) -> None:
        self._kv = kv_cache
        library = load_kernels(cache_dir)
        dtype = kv_cache.k[0].dtype
        suffixes = {torch.bfloat16: "bf16", torch.float32: "f32"}
        if dtype not in suffixes:
            raise ValueError(f"the CPU attention kernel has no {dtype} version")
        self._check_shapes(layers, library.radixrt_max_dim())
        self._max_queries, self._threads = library.radixrt_query_block(), max_threads(library)
        pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self._attend = Kernel(
            library,
            f"radixrt_attend_{suffixes[dtype]}",
            [
                *[pointer, i64, *[pointer] * 4, i64],
                *[*[pointer] * 4, i32, pointer, i32, *[pointer] * 3],
                *[pointer, ctypes.c_float, i32, pointer],
            ],
        )
        self._shapes = {
            layer.layer_id: np.array([layer.num_heads, layer.num_kv_heads, layer.head_dim], np.int32)
            for layer in layers
        }
        self._store = Kernel(
            library, f"radixrt_store_{suffixes[dtype]}", [pointer, pointer, i64, i64, *[pointer] * 3, i32, i32]
        )
        self._steps: list[_Step] = []

    @staticmethod
    def _check_shapes(layers: list[AttentionLayer], max_dim: int) -> None:
        for layer in layers:
            if layer.head_dim % 16 or layer.head_dim > max_dim:
                raise ValueError(f"head_dim {layer.head_dim} is not a multiple of 16 up to {max_dim}")
            if layer.num_heads // layer.num_kv_heads > TASK_ROWS:
                raise ValueError(
                    f"{layer.num_heads} heads share {layer.num_kv_heads} kv heads: more than {TASK_ROWS} each"
                )

    @property
    def kernel_name(self) -> str:
        """Name of the attention kernel, for recordings."""
        return self._attend.name

    def step_of(self, batch: ForwardBatch) -> _Step:
        """Return what `prepare` made for a batch."""
        return next(step for step in self._steps if step.batch is batch)

    def prepare(self, batch: ForwardBatch) -> None:
        self._steps = [_Step(each, self._max_queries, self._threads) for each in batch.attended]

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        k, v = k.float(), v.float()
        self._store.call(
            k.data_ptr(),
            v.data_ptr(),
            _token_stride(k),
            _token_stride(v),
            self._kv.k[layer.layer_id].data_ptr(),
            self._kv.v[layer.layer_id].data_ptr(),
            batch.out_cache_loc.data_ptr(),
            k.shape[0],
            layer.num_kv_heads * layer.head_dim,
        )

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if k is not None and v is not None:
            self.store(layer, k, v, batch)
        step = self.step_of(batch)
        queries = q.float()
        out = torch.empty(q.shape[0], layer.num_heads * layer.head_dim, dtype=torch.float32)
        self._attend.call(
            queries.data_ptr(),
            _token_stride(queries),
            self._kv.k[layer.layer_id].data_ptr(),
            self._kv.v[layer.layer_id].data_ptr(),
            out.data_ptr(),
            batch.req_to_token.data_ptr(),
            batch.req_to_token.stride(0),
            *step.arguments(layer),
            self._shapes[layer.layer_id].ctypes.data,
            layer.scale,
            layer.sliding_window or 0,
            None if sinks is None else sinks.data_ptr(),
        )
        return out.to(q.dtype)


STEP_ARGUMENTS = slice(7, 17)
"""Arguments of the kernel that `_Step.arguments` returns."""


class RecordedAttention:
    """The calls of a recording of one step whose arguments differ from step to step: those of the attention kernel.

    Args:
        layers: of the model, in the order in which the recorded step attends.
    """

    def __init__(self, backend: CpuBackend, recording: Recording, layers: list[AttentionLayer]) -> None:
        self._backend, self._recording = backend, recording
        calls = [i for i, name in enumerate(recording.names) if name == backend.kernel_name]
        if len(calls) != len(layers):
            raise CannotRecord(f"{len(calls)} calls of the attention kernel for {len(layers)} layers")
        kinds: dict[tuple[int, int, bool], tuple[AttentionLayer, list[int]]] = {}
        for call, layer in zip(calls, layers, strict=True):
            kinds.setdefault(_kind(layer), (layer, []))[1].append(call)
        self._kinds = [(layer, np.array(rows)) for layer, rows in kinds.values()]

    def set_step(self, batch: ForwardBatch) -> None:
        """Change the recorded calls to the plan of a batch that the backend has been prepared for."""
        step = self._backend.step_of(batch)
        for layer, calls in self._kinds:
            self._recording.args[calls, STEP_ARGUMENTS] = step.arguments(layer)


def _kind(layer: AttentionLayer) -> tuple[int, int, bool]:
    """Return query heads on a kv head, kv heads, and whether rows may share prefixes: layers alike have one plan."""
    group = layer.num_heads // layer.num_kv_heads
    # A sliding window may end within the shared prefix, at another position for each row.
    return group, layer.num_kv_heads, layer.sliding_window is None and group <= MAX_DOT_ROWS


class _Step:
    """A batch as the kernel reads it, and its tasks for layers of each shape."""

    def __init__(self, batch: ForwardBatch, max_queries: int, threads: int) -> None:
        self.batch, self._threads = batch, threads
        self.seq_lens = np.ascontiguousarray(batch.seq_lens_cpu)
        self.extend_lens = np.ascontiguousarray(batch.extend_lens_cpu)
        self.first_token = (np.cumsum(self.extend_lens) - self.extend_lens).astype(np.int32)
        self._max_queries = max_queries
        self._plans: dict[tuple[int, int, bool], StepPlan] = {}

        self._arguments: dict[tuple[int, int, bool], tuple[int, ...]] = {}

    def arguments(self, layer: AttentionLayer) -> tuple[int, ...]:
        """Return the arguments of the kernel that depend on the step. The step keeps their memory."""
        kind = _kind(layer)
        if kind not in self._arguments:
            group, kv_heads, shares = kind
            self._plans[kind] = plan = plan_step(
                self.seq_lens,
                self.extend_lens,
                self.batch.shared if shares else None,
                group,
                kv_heads,
                max_queries=self._max_queries,
                threads=self._threads,
            )
            self._arguments[kind] = (
                self.batch.req_pool_indices.data_ptr(),
                self.seq_lens.ctypes.data,
                self.extend_lens.ctypes.data,
                plan.tasks.ctypes.data,
                len(plan.tasks),
                plan.groups.ctypes.data,
                len(plan.groups),
                plan.segments.ctypes.data,
                plan.group_rows.ctypes.data,
                self.first_token.ctypes.data,
            )
        return self._arguments[kind]


def _token_stride(x: torch.Tensor) -> int:
    """Return the elements between tokens. Heads and dims of one token must be contiguous, as in a fused projection."""
    if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
        raise ValueError("queries, keys and values of one token must be contiguous")
    return x.stride(0)


# --- planning: pure numpy, once a step for all layers of one shape ---


@dataclass(frozen=True)
class StepPlan:
    """Work of a step for the kernel, for layers of the same shape.

    Attributes:
        tasks: int32 [n, 6]: row, first kv head, kv heads, the row's first token, first query, queries.
        groups: int32 [m, 5]: first entry in group_rows, rows, kv head, first entry in segments, segments.
        segments: int32 [s, 4]: start, length, first row (an index within the group) and number of rows that share the
            positions [start, start + length).
        group_rows: int32, the rows of all groups; `tasks` excludes them.
    """

    tasks: Int32Array
    groups: Int32Array
    segments: Int32Array
    group_rows: Int32Array


def plan_step(
    seq_lens: Int32Array,
    extend_lens: Int32Array,
    shared: SharedGroups | None,
    group: int,
    kv_heads: int,
    *,
    max_queries: int,
    threads: int,
) -> StepPlan:
    """Divide a step into tasks.

    Args:
        seq_lens, extend_lens: int32 [B].
        shared: shared prefixes of rows that extend by a single token.
        group: query heads on a kv head.
        max_queries: maximum number of queries in a task.
    """
    groups, segments, group_rows = _plan_groups(shared, group, kv_heads, threads)
    alone = np.arange(len(seq_lens), dtype=np.int32)
    if len(group_rows):
        alone = np.setdiff1d(alone, group_rows)
    tasks = _plan_tasks(seq_lens, extend_lens, alone, group, kv_heads, max_queries, threads)
    return StepPlan(tasks, groups, segments, group_rows)


def _plan_groups(
    shared: SharedGroups | None, group: int, kv_heads: int, threads: int
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Make groups of the rows that share a first run, split where there are many rows."""
    groups: list[tuple[int, int, int, int, int]] = []
    segments: list[tuple[int, int, int, int]] = []
    rows = [np.empty(0, np.int32)]
    # The segments form a forest: those that begin at position 0 are its roots, and each root's rows form a group.
    runs = [] if shared is None else shared.segments.tolist()
    tops = [(first, count) for start, _, first, count in runs if start == 0]
    placed = 0
    for top, members in tops:
        within = [run for run in runs if top <= run[FIRST] < top + members]
        # A part must fit the kernel's scratch memory, and there must be enough parts for all threads.
        wanted = -(-2 * threads // (kv_heads * len(tops)))
        size = min(TASK_ROWS // group, max(2, -(-members // wanted)))
        for begin in range(top, top + members, size):
            end = min(begin + size, top + members)
            clipped = _clip(within, begin, end)
            if not clipped:
                continue  # a single row
            assert shared is not None
            groups += [(placed, end - begin, head, len(segments), len(clipped)) for head in range(kv_heads)]
            segments += clipped
            rows.append(shared.rows[begin:end])
            placed += end - begin
    return (
        np.array(groups, np.int32).reshape(-1, 5),
        np.array(segments, np.int32).reshape(-1, 4),
        np.concatenate(rows).astype(np.int32),
    )


def _clip(runs: list[list[int]], begin: int, end: int) -> list[tuple[int, int, int, int]]:
    """Return the runs that two or more of the rows [begin, end) share, as segments of a group that starts at
    `begin`."""
    clipped = []
    for start, length, first, count in runs:
        low, high = max(first, begin), min(first + count, end)
        if high - low > 1:
            clipped.append((start, length, low - begin, high - low))
    return clipped


def _plan_tasks(
    seq_lens: Int32Array,
    extend_lens: Int32Array,
    rows: Int32Array,
    group: int,
    kv_heads: int,
    max_queries: int,
    threads: int,
) -> Int32Array:
    """Return the tasks of the given rows, in descending order of cost."""
    if len(rows) == 0:
        return np.empty((0, 6), np.int32)
    # Divide each row's queries into blocks of `queries`.
    queries = min(max_queries, max(1, TASK_ROWS // group))
    blocks = -(-extend_lens[rows] // queries)
    row = np.repeat(rows, blocks)
    first_block = np.repeat(np.cumsum(blocks) - blocks, blocks)
    first_query = (np.arange(len(row)) - first_block) * queries
    count = np.minimum(queries, extend_lens[row] - first_query)
    first_token = (np.cumsum(extend_lens) - extend_lens)[row]
    # Threads take tasks in order. The most expensive tasks come first, so that no thread ends long after the others.
    cost = count * (seq_lens[row] - extend_lens[row] + first_query + count)
    order = np.argsort(-cost, kind="stable")
    # A task for several kv heads reads each slot once for all of them, but all threads must have work.
    together = kv_heads if len(row) >= 4 * threads and count.max() * group * kv_heads <= TASK_ROWS else 1
    columns = np.stack([row, row, np.full_like(row, together), first_token, first_query, count], axis=1)[order]
    tasks = np.repeat(columns, kv_heads // together, axis=0)
    tasks[:, 1] = np.tile(np.arange(0, kv_heads, together), len(columns))
    return np.ascontiguousarray(tasks, dtype=np.int32)
