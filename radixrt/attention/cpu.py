"""The CPU backend: a compiled kernel that reads keys and values where they lie in the pool."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.executor.forward_batch import ForwardBatch
from radixrt.executor.kv_cache import KVCache
from radixrt.kernels.build import load_kernels
from radixrt.messages import Int32Array

TASK_ROWS = 192
"""Query rows (queries times heads of a group) in one task: enough to pay for transposing a block of keys."""


class CpuBackend(AttentionBackend):
    """float32 and bfloat16, head dims that are multiples of 16. The same result as the reference up to rounding.

    Raises:
        KernelUnavailable: the kernel cannot be built here.
        ValueError: a layer's shape or dtype is not covered; says which.
    """

    def __init__(self, kv_cache: KVCache, layers: list[AttentionLayer], cache_dir: Path) -> None:
        self._kv = kv_cache
        library = load_kernels(cache_dir)
        dtype = kv_cache.k[0].dtype
        entries = {torch.bfloat16: "radixrt_attend_bf16", torch.float32: "radixrt_attend_f32"}
        if dtype not in entries:
            raise ValueError(f"the CPU attention kernel has no {dtype} version")
        self._check_shapes(layers, library.radixrt_max_dim())
        self._max_queries = library.radixrt_query_block()
        self._attend = getattr(library, entries[dtype])
        pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self._attend.restype = None
        self._attend.argtypes = (
            [pointer] * 8 + [i64] + [pointer] * 4 + [i32, pointer, i32, pointer, ctypes.c_float, i32]
        )  # fmt: skip
        self._shapes = {
            layer.layer_id: np.array([layer.num_heads, layer.num_kv_heads, layer.head_dim], np.int32)
            for layer in layers
        }
        self._tasks: dict[tuple[int, int], Int32Array] = {}
        self._seq_lens = self._extend_lens = np.empty(0, np.int32)

    @staticmethod
    def _check_shapes(layers: list[AttentionLayer], max_dim: int) -> None:
        for layer in layers:
            if layer.head_dim % 16 or layer.head_dim > max_dim:
                raise ValueError(f"head_dim {layer.head_dim} is not a multiple of 16 up to {max_dim}")
            if layer.num_heads // layer.num_kv_heads > TASK_ROWS:
                raise ValueError(
                    f"{layer.num_heads} heads share {layer.num_kv_heads} kv heads: more than {TASK_ROWS} each"
                )

    def prepare(self, batch: ForwardBatch) -> None:
        self._tasks.clear()
        self._seq_lens = np.ascontiguousarray(batch.seq_lens_cpu)
        self._extend_lens = np.ascontiguousarray(batch.extend_lens_cpu)

    def attend(
        self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        tokens = q.shape[0]
        out = torch.empty(tokens, layer.num_heads * layer.head_dim, dtype=q.dtype)
        tasks = self._tasks_for(layer)
        strides = np.array([_token_stride(q), _token_stride(k), _token_stride(v)], np.int64)
        self._attend(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), strides.ctypes.data,
            self._kv.k[layer.layer_id].data_ptr(), self._kv.v[layer.layer_id].data_ptr(), out.data_ptr(),
            batch.req_to_token.data_ptr(), batch.req_to_token.stride(0), batch.req_pool_indices.data_ptr(),
            self._seq_lens.ctypes.data, self._extend_lens.ctypes.data, batch.out_cache_loc.data_ptr(),
            tokens, tasks.ctypes.data, len(tasks), self._shapes[layer.layer_id].ctypes.data, layer.scale,
            layer.sliding_window or 0,
        )  # fmt: skip
        return out

    def _tasks_for(self, layer: AttentionLayer) -> Int32Array:
        group = layer.num_heads // layer.num_kv_heads
        key = (group, layer.num_kv_heads)
        if key not in self._tasks:
            self._tasks[key] = _plan(
                self._seq_lens, self._extend_lens, group, layer.num_kv_heads, self._max_queries, torch.get_num_threads()
            )
        return self._tasks[key]


def _token_stride(x: torch.Tensor) -> int:
    """Elements between tokens; heads and dims of one token must lie together (a view of a fused projection does)."""
    if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
        raise ValueError("queries, keys and values of one token must be contiguous")
    return x.stride(0)


def _plan(
    seq_lens: Int32Array, extend_lens: Int32Array, group: int, kv_heads: int, max_queries: int, threads: int
) -> Int32Array:
    """int32 [n, 6]: row, first kv head, kv heads, the row's first token, first query, queries; costliest first."""
    queries = min(max_queries, max(1, TASK_ROWS // group))
    blocks = -(-extend_lens // queries)
    row = np.repeat(np.arange(len(seq_lens), dtype=np.int32), blocks)
    first_block = np.repeat(np.cumsum(blocks) - blocks, blocks)
    first_query = (np.arange(len(row)) - first_block) * queries
    count = np.minimum(queries, extend_lens[row] - first_query)
    first_token = (np.cumsum(extend_lens) - extend_lens)[row]
    cost = count * (seq_lens[row] - extend_lens[row] + first_query + count)
    order = np.argsort(-cost, kind="stable")
    # A task of several heads reads a slot once for all of them; but every thread must find work.
    together = kv_heads if len(row) >= 4 * threads and count.max() * group * kv_heads <= TASK_ROWS else 1
    columns = np.stack([row, row, np.full_like(row, together), first_token, first_query, count], axis=1)[order]
    tasks = np.repeat(columns, kv_heads // together, axis=0)
    tasks[:, 1] = np.tile(np.arange(0, kv_heads, together), len(columns))
    return np.ascontiguousarray(tasks, dtype=np.int32)
