"""`RecurrenceOps` by compiled CPU kernels."""

from __future__ import annotations

import ctypes

import torch

from radixrt.forward_batch.state_rows import StateRows
from radixrt.layers.recurrence import GatedDeltaShape, GatedDeltaWeights, RecurrenceOps

LANES = 16
K_DIMS = (16, 32, 64, 128)
MAX_V_DIM = 128


class CpuRecurrence(RecurrenceOps):
    """One call for a whole layer, for float32 activations and float32 or bfloat16 weights.

    A shape or layout that the kernels do not support goes to the reference.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, i32, i64, f32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
        self._max_taps = library.radixrt_recurrence_max_taps()
        self._net, self._short = {}, {}
        for dtype, suffix in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
            self._net[dtype] = net = library[f"radixrt_gated_delta_net_{suffix}"]
            net.argtypes = [pointer, i64, *[pointer] * 4, f32, *[pointer] * 6, i32, *[pointer] * 2, *[i32] * 5]
            self._short[dtype] = short = library[f"radixrt_short_conv_{suffix}"]
            short.argtypes = [pointer, i64, *[pointer] * 6, i32, pointer, *[i32] * 2]
            net.restype = short.restype = None

    def short_conv(self, bcx: torch.Tensor, weight: torch.Tensor, pool: torch.Tensor, rows: StateRows) -> torch.Tensor:
        size, taps = weight.shape
        kernel = self._short.get(weight.dtype)
        if kernel is None or size % LANES or taps > self._max_taps or not _float32_rows(bcx, weight, pool):
            return super().short_conv(bcx, weight, pool, rows)
        out = torch.empty(bcx.shape[0], size)
        kernel(
            bcx.data_ptr(), bcx.stride(0), weight.data_ptr(), pool.data_ptr(), *_arguments(rows), out.data_ptr(), size,
            taps,
        )  # fmt: skip
        return out

    def gated_delta_net(
        self, projected: torch.Tensor, shape: GatedDeltaShape, weights: GatedDeltaWeights, conv_pool: torch.Tensor,
        state_pool: torch.Tensor, rows: StateRows,
    ) -> torch.Tensor:  # fmt: skip
        kernel, taps = self._net.get(weights.conv.dtype), weights.conv.shape[1]
        fits = (
            shape.k_dim in K_DIMS and shape.v_dim % LANES == 0 and shape.v_dim <= MAX_V_DIM and taps <= self._max_taps
        )
        if kernel is None or not fits or not _float32_rows(projected, weights.conv, conv_pool, state_pool):
            return super().gated_delta_net(projected, shape, weights, conv_pool, state_pool, rows)
        tokens = projected.shape[0]
        mixed, out = torch.empty(tokens, shape.channels), torch.empty(tokens, shape.v_heads * shape.v_dim)
        kernel(
            projected.data_ptr(), projected.stride(0), weights.conv.data_ptr(), weights.a_log.data_ptr(),
            weights.dt_bias.data_ptr(), weights.norm.data_ptr(), weights.eps, conv_pool.data_ptr(),
            state_pool.data_ptr(), *_arguments(rows), mixed.data_ptr(), out.data_ptr(), shape.k_heads, shape.v_heads,
            shape.k_dim, shape.v_dim, taps,
        )  # fmt: skip
        return out


def _arguments(rows: StateRows) -> tuple[int | None, ...]:
    """Return src, dst, starts, chains and their number, as the kernels take them."""
    chains, count = (None, len(rows.src)) if rows.chains is None else (rows.chains.ctypes.data, len(rows.chains) - 1)
    return rows.src.data_ptr(), rows.dst.data_ptr(), rows.starts.data_ptr(), chains, count


def _float32_rows(x: torch.Tensor, weight: torch.Tensor, *pools: torch.Tensor) -> bool:
    """Return whether activations and pools are float32, and everything is laid out as the kernels expect."""
    return (
        x.stride(1) == 1
        and weight.is_contiguous()
        and all(each.dtype == torch.float32 for each in (x, *pools))
        and all(pool.is_contiguous() for pool in pools)
    )
