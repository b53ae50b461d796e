"""Conversion to float8, shared by all kernels that write float8."""

from __future__ import annotations

import triton
import triton.language as tl

FP8_MAX = tl.constexpr(448.0)
"""The largest float8_e4m3fn, to which larger values are clamped: the format has no infinity."""


@triton.jit
def clamp_to_fp8(x):
    # By comparisons, which leave NaN alone.
    return tl.where(x > FP8_MAX, FP8_MAX, tl.where(x < -FP8_MAX, -FP8_MAX, x))
