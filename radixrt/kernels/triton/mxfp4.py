"""Groups of 32 e2m1 numbers with a scale in bfloat16, as MXFP4 numbers are: conversion in registers, scale included.

An e2m1 code is a sign, two bits of exponent and one of mantissa. At the lowest bits of a bfloat16's exponent and the
highest of its mantissa the last three are the number times 2^-126, for the numbers without an exponent too. So one
multiplication, by the scale times 2^126, makes two numbers of their codes, once the bits are in their places. A word's
bits are in an order in which that takes eleven instructions for eight codes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.weight_formats import INTERPRETED

GROUP = 32
FACTOR = 2.0**126
LARGEST_SCALE = 3.9
"""Scales times FACTOR are finite in bfloat16."""

PLACES = ((6, 15), (9, 14), (3, 12), (0, 13))
"""For each of the four codes in half of a word: the lowest place of its three bits, and the place of its sign."""


def in_places(words: torch.Tensor) -> torch.Tensor:
    """Permute the bits of each word int32 of `weight_formats.in_fragment_order` as `scaled_numbers` expects them."""
    found = torch.zeros_like(words)
    for half in (0, 16):
        for i, (bits, sign) in enumerate(PLACES):
            code = words >> (half + 4 * i)
            found |= (code & 7) << (half + bits)
            found |= ((code >> 3) & 1) << (half + sign)
    return found


@triton.jit
def scaled_numbers(words, factors, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return number * scale [ROWS, COLUMNS], in the order of the columns; exact in bfloat16 for powers of two.

    words: int32 [ROWS, COLUMNS / 8], in fragment order, the bits in their places.
    factors: bfloat16 [ROWS, COLUMNS / 32], scales times FACTOR.
    """
    # A thread's four words are the codes of one group each.
    spread = tl.reshape(factors, (ROWS, COLUMNS // 128, 1, 4))
    spread = tl.broadcast_to(spread, (ROWS, COLUMNS // 128, 4, 4))
    spread = tl.reshape(spread, (ROWS, COLUMNS // 8))
    a, b, c, d, e, f, g, h = _eight(words, spread, DTYPE)
    low = tl.join(tl.join(a, b), tl.join(c, d))
    values = tl.join(low, tl.join(tl.join(e, f), tl.join(g, h)))
    values = tl.reshape(values, (ROWS, COLUMNS // 128, 4, 4, 2, 2, 2))
    return tl.reshape(tl.permute(values, (0, 1, 3, 6, 5, 2, 4)), (ROWS, COLUMNS))


@triton.jit
def _eight(words, factors, DTYPE: tl.constexpr):
    """Return the numbers of codes 0 and 4, 1 and 5, 2 and 6, and 3 and 7."""
    if INTERPRETED or tl.bfloat16 != DTYPE:
        numbers = (
            _one(words, factors, 6, 15, DTYPE), _one(words, factors, 22, 31, DTYPE),
            _one(words, factors, 9, 14, DTYPE), _one(words, factors, 25, 30, DTYPE),
            _one(words, factors, 3, 12, DTYPE), _one(words, factors, 19, 28, DTYPE),
            _one(words, factors, 0, 13, DTYPE), _one(words, factors, 16, 29, DTYPE),
        )  # fmt: skip
    else:
        numbers = tl.inline_asm_elementwise(
            """{
            .reg .b32 bits, sign, factor, zero;
            mov.b32 zero, 0x80008000;
            mov.b32 factor, {$9, $9};
            and.b32 bits, $8, 0x81C081C0;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$0, $1}, bits;
            shr.u32 bits, $8, 3;
            and.b32 bits, bits, 0x01C001C0;
            shl.b32 sign, $8, 1;
            lop3.b32 bits, sign, 0x80008000, bits, 0xEA;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$2, $3}, bits;
            shl.b32 bits, $8, 3;
            and.b32 bits, bits, 0x81C081C0;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$4, $5}, bits;
            shl.b32 bits, $8, 6;
            and.b32 bits, bits, 0x01C001C0;
            shl.b32 sign, $8, 2;
            lop3.b32 bits, sign, 0x80008000, bits, 0xEA;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$6, $7}, bits;
            }""",
            "=h,=h,=h,=h,=h,=h,=h,=h,r,h", [words, factors],
            dtype=(tl.bfloat16,) * 8, is_pure=True, pack=1,
        )  # fmt: skip
    return numbers


@triton.jit
def _one(words, factors, BITS: tl.constexpr, SIGN: tl.constexpr, DTYPE: tl.constexpr):
    """Return the number of the code with bits and sign at these places, without assembly."""
    bits = (((words >> SIGN) & 1) << 31) | (((words >> BITS) & 7) << 22)
    return (bits.to(tl.float32, bitcast=True) * factors.to(tl.float32)).to(DTYPE)
