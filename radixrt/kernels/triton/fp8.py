"""Conversion to and from float8_e4m3fn, shared by the kernels of keys and values in float8.

A code is a sign, four bits of exponent and three of mantissa. At the lowest bits of a wider format's exponent and the
highest of its mantissa, the last seven are the number divided by UNIT, for numbers without an exponent too. So moving
bits converts two numbers in three or four instructions, and whoever multiplies by them multiplies by UNIT once more.
Hopper's own conversion to bfloat16 takes several times as long. NaN becomes 480.
"""

from __future__ import annotations

import triton
import triton.language as tl

from radixrt.kernels.triton.weight_formats import INTERPRETED

FP8_MAX = tl.constexpr(448.0)
"""The largest float8_e4m3fn, to which larger values are clamped: the format has no infinity."""

UNIT_BFLOAT16 = tl.constexpr(2.0**120)
UNIT_FLOAT16 = tl.constexpr(2.0**8)


@triton.jit
def clamp_to_fp8(x):
    # By comparisons, which leave NaN alone.
    return tl.where(x > FP8_MAX, FP8_MAX, tl.where(x < -FP8_MAX, -FP8_MAX, x))


def _convert(source: str, outputs: tuple[int, int], left: int, right: int, mask: str) -> str:
    """Return PTX that converts bytes 0 and 2 of a register to the first pair of halves, and 1 and 3 to the second."""
    first, second = (f"{{${2 * i}, ${2 * i + 1}}}" for i in outputs)
    return f"""
        shl.b32 bits, {source}, {left};
        shl.b32 sign, {source}, 8;
        and.b32 bits, bits, {mask};
        lop3.b32 bits, sign, 0x80008000, bits, 0xEA;
        mov.b32 {first}, bits;
        shr.u32 bits, {source}, {right};
        and.b32 bits, bits, {mask};
        lop3.b32 bits, {source}, 0x80008000, bits, 0xEA;
        mov.b32 {second}, bits;"""


def _four_bytes(left: int, right: int, mask: str) -> tl.constexpr:
    return tl.constexpr("{\n.reg .b32 bits, sign;" + _convert("$4", (0, 1), left, right, mask) + "\n}")


def _two_words(left: int, right: int, mask: str) -> tl.constexpr:
    low, high = (
        f"\nprmt.b32 pairs, $8, $9, {order};" + _convert("pairs", outputs, left, right, mask)
        for order, outputs in (("0x5410", (0, 1)), ("0x7632", (2, 3)))
    )
    return tl.constexpr("{\n.reg .b32 bits, sign, pairs;" + low + high + "\n}")


_FOUR_BFLOAT16, _FOUR_FLOAT16 = _four_bytes(4, 4, "0x07F007F0"), _four_bytes(7, 1, "0x3F803F80")
_EIGHT_BFLOAT16, _EIGHT_FLOAT16 = _two_words(4, 4, "0x07F007F0"), _two_words(7, 1, "0x3F803F80")


@triton.jit
def four_numbers(words, DTYPE: tl.constexpr):
    """Return the numbers of bytes 0, 2, 1 and 3 of each word int32, divided by DTYPE's UNIT."""
    if INTERPRETED:
        numbers = (
            _number(words, 0, DTYPE), _number(words, 2, DTYPE), _number(words, 1, DTYPE), _number(words, 3, DTYPE)
        )  # fmt: skip
    elif tl.bfloat16 == DTYPE:
        numbers = tl.inline_asm_elementwise(
            _FOUR_BFLOAT16, "=h,=h,=h,=h,r", [words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=1
        )
    else:
        numbers = tl.inline_asm_elementwise(
            _FOUR_FLOAT16, "=h,=h,=h,=h,r", [words], dtype=(tl.float16,) * 4, is_pure=True, pack=1
        )
    return numbers


@triton.jit
def pairs_of_numbers(first, second, DTYPE: tl.constexpr):
    """Return the numbers of byte 0 of the first and of the second word, then of bytes 1, 2 and 3, divided by UNIT."""
    if INTERPRETED:
        numbers = (
            _number(first, 0, DTYPE), _number(second, 0, DTYPE), _number(first, 1, DTYPE), _number(second, 1, DTYPE),
            _number(first, 2, DTYPE), _number(second, 2, DTYPE), _number(first, 3, DTYPE), _number(second, 3, DTYPE),
        )  # fmt: skip
    elif tl.bfloat16 == DTYPE:
        numbers = tl.inline_asm_elementwise(
            _EIGHT_BFLOAT16, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [first, second], dtype=(tl.bfloat16,) * 8, is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        numbers = tl.inline_asm_elementwise(
            _EIGHT_FLOAT16, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [first, second], dtype=(tl.float16,) * 8, is_pure=True,
            pack=1,
        )  # fmt: skip
    return numbers


@triton.jit
def _number(words, BYTE: tl.constexpr, DTYPE: tl.constexpr):
    """Return the number of a byte of each word, 0 the lowest, divided by UNIT; without assembly."""
    high = words << (24 - 8 * BYTE)
    bits = (high & -0x80000000) | ((high >> 4) & 0x07F00000)
    if tl.bfloat16 == DTYPE:
        number = (bits >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    else:
        number = (bits.to(tl.float32, bitcast=True) * (UNIT_BFLOAT16 / UNIT_FLOAT16)).to(DTYPE)
    return number
