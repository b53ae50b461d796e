"""Dequantization of MXFP4 numbers in registers."""

from __future__ import annotations

import triton
import triton.language as tl

GROUP = tl.constexpr(32)
"""Numbers that share a scale."""


@triton.jit
def dequantized(codes, scales, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the numbers [ROWS, COLUMNS] in a dtype; bfloat16 and float32 represent them exactly.

    The three bits without the sign become the lowest bits of a float32's exponent and its highest one of mantissa. That
    is the number times 2^-126, for those without an exponent too, since a float32 continues below its normal numbers as
    they do.

    codes: uint8 [ROWS, COLUMNS / 2], two numbers each, the first in the low half.
    scales: uint8 [ROWS, COLUMNS / 32], exponents plus 127.
    """
    byte = codes.to(tl.uint32)
    low = ((byte << 22) & 0x01C00000) | ((byte << 28) & 0x80000000)
    high = ((byte << 18) & 0x01C00000) | ((byte << 24) & 0x80000000)
    bits = tl.reshape(tl.join(low, high), (ROWS, COLUMNS // GROUP, GROUP))
    values = bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126
    factors = (scales.to(tl.uint32) << 23).to(tl.float32, bitcast=True)
    return tl.reshape(values * factors[:, :, None], (ROWS, COLUMNS)).to(DTYPE)
