"""The CPU backend: a compiled kernel that reads keys and values where they lie in the pool."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cpu_plan import TASK_ROWS, StepPlan, plan_step
from radixrt.attention.kv_cache import KVCache
from radixrt.batch.forward_batch import ForwardBatch
from radixrt.batch.shared_groups import SharedGroups
from radixrt.kernels.build import load_kernels

MAX_DOT_ROWS = 8
"""Heads of a group that the kernel's path for single queries takes."""


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
            [pointer] * 8 + [i64] + [pointer] * 4 + [i32] + [pointer, i32] * 2 + [pointer] * 4 + [ctypes.c_float, i32]
        )  # fmt: skip
        self._shapes = {
            layer.layer_id: np.array([layer.num_heads, layer.num_kv_heads, layer.head_dim], np.int32)
            for layer in layers
        }
        self._plans: dict[tuple[int, int, bool], StepPlan] = {}
        self._seq_lens = self._extend_lens = self._first_token = np.empty(0, np.int32)
        self._shared: SharedGroups | None = None

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
        self._plans.clear()
        self._seq_lens = np.ascontiguousarray(batch.seq_lens_cpu)
        self._extend_lens = np.ascontiguousarray(batch.extend_lens_cpu)
        self._first_token = (np.cumsum(self._extend_lens) - self._extend_lens).astype(np.int32)
        self._shared = batch.shared

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        assert k is not None, "this backend has no pool for others to store into"
        assert v is not None
        tokens = q.shape[0]
        out = torch.empty(tokens, layer.num_heads * layer.head_dim, dtype=q.dtype)
        plan = self._plan_for(layer)
        strides = np.array([_token_stride(q), _token_stride(k), _token_stride(v)], np.int64)
        self._attend(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), strides.ctypes.data,
            self._kv.k[layer.layer_id].data_ptr(), self._kv.v[layer.layer_id].data_ptr(), out.data_ptr(),
            batch.req_to_token.data_ptr(), batch.req_to_token.stride(0), batch.req_pool_indices.data_ptr(),
            self._seq_lens.ctypes.data, self._extend_lens.ctypes.data, batch.out_cache_loc.data_ptr(),
            tokens, plan.tasks.ctypes.data, len(plan.tasks), plan.groups.ctypes.data, len(plan.groups),
            plan.segments.ctypes.data, plan.group_rows.ctypes.data, self._first_token.ctypes.data,
            self._shapes[layer.layer_id].ctypes.data, layer.scale, layer.sliding_window or 0,
        )  # fmt: skip
        return out

    def _plan_for(self, layer: AttentionLayer) -> StepPlan:
        group = layer.num_heads // layer.num_kv_heads
        # A window may end within the shared part, at another place for each row.
        shares = layer.sliding_window is None and group <= MAX_DOT_ROWS
        key = (group, layer.num_kv_heads, shares)
        if key not in self._plans:
            self._plans[key] = plan_step(
                self._seq_lens, self._extend_lens, self._shared if shares else None, group, layer.num_kv_heads,
                max_queries=self._max_queries, threads=torch.get_num_threads(),
            )  # fmt: skip
        return self._plans[key]


def _token_stride(x: torch.Tensor) -> int:
    """Elements between tokens; heads and dims of one token must lie together (a view of a fused projection does)."""
    if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
        raise ValueError("queries, keys and values of one token must be contiguous")
    return x.stride(0)
