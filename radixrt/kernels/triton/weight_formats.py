"""Conversion of weights in 8 or 4 bits to bfloat16, in registers, and the order of codes that makes it cheap.

Every number of int8, e4m3, int4 and e2m1 is a bfloat16 number, so the conversion rounds nothing. A product that reads
the weight as codes then equals the product with the same numbers as a bfloat16 weight, bit by bit.

**Order of codes.** An instruction of the tensor cores expects each thread to hold certain columns of a row: for a step
of 16 columns, thread t of four has the columns 2t, 2t + 1, 2t + 8 and 2t + 9. In the order of a checkpoint these codes
lie apart, so a thread would load them in pieces of two bytes, unpack and pack them again. `in_fragment_order` permutes
the columns of each block (64 columns of 8-bit codes, 128 of 4-bit ones) once, after loading, so that the sixteen bytes
of a thread are neighbours, and a pair of columns lies in both halves of a 32-bit word, where one operation converts
two codes. `to_numbers` undoes the permutation without moving data: it names the registers differently.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

BLOCK_8, BLOCK_4 = 64, 128
"""Columns that are permuted among themselves, of 8-bit and of 4-bit codes."""

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""The interpreter runs no inline assembly."""


def in_fragment_order(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Permute the columns of codes into the order that `to_numbers` expects.

    Args:
        codes: 1-byte codes [rows, columns], or uint8 [rows, columns / 2] with two 4-bit codes in a byte, the first one
            in the low half; columns are a multiple of BLOCK_8 or BLOCK_4.

    Returns:
        int32 [rows, columns / 4] or [rows, columns / 8], contiguous.
    """
    rows, values = codes.shape[0], codes.view(torch.uint8)
    if bits == 8:
        # Bits of a column's number within its block, from the highest: two of the step, pair, two of the thread, half.
        ordered = values.view(rows, -1, 4, 2, 4, 2).permute(0, 1, 4, 2, 5, 3)
        return ordered.reshape(rows, -1).view(torch.int32)
    # Of a byte's two codes, which differ in `half`, the second one belongs two bytes further on in the word.
    pairs = values.view(rows, -1, 4, 2, 2, 4).permute(0, 1, 5, 2, 3, 4)  # block, thread, two bits of the step, ...
    first, second = pairs & 15, pairs >> 4
    packed = torch.stack((first[..., 0] | first[..., 1] << 4, second[..., 0] | second[..., 1] << 4), dim=-2)
    return packed.reshape(rows, -1).view(torch.int32)


def from_fragment_order(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Undo `in_fragment_order`: return uint8 [rows, columns], or [rows, columns / 2] of 4-bit codes."""
    rows, values = words.shape[0], words.view(torch.uint8)
    if bits == 8:
        return values.view(rows, -1, 4, 4, 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(rows, -1)
    halves = values.view(rows, -1, 4, 4, 2, 2)
    pairs = torch.stack((halves & 15, halves >> 4), dim=-1)  # block, thread, step, half, step, pair
    pairs = pairs.permute(0, 1, 3, 5, 6, 2, 4)
    return (pairs[..., 0] | pairs[..., 1] << 4).reshape(rows, -1)


NEIGHBOURS = tl.constexpr(4 if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7) else 2)
"""Neighbouring columns of a thread in the operands for which the compiler finds joined numbers: Triton 3.6 takes them
for numbers of half the size."""


@triton.jit
def to_numbers(words, NUMBERS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the numbers [ROWS, COLUMNS], in the order of the columns, of a tile of codes in fragment order.

    words: int32 [ROWS, COLUMNS / 4], or [ROWS, COLUMNS / 8] of 4-bit codes.
    NUMBERS: "int8", "e4m3", "int4", which is the code less 8, or "e2m1".
    DTYPE: float16 and bfloat16 represent all numbers exactly.
    """
    if NUMBERS == "int8" or NUMBERS == "e4m3":
        a, b, c, d = _four(words, NUMBERS, DTYPE)
        values = tl.join(tl.join(a, b), tl.join(c, d))  # row, word, half, pair
        values = tl.reshape(values, (ROWS, COLUMNS // 64, 4, 4, 2, 2))
        values = tl.permute(values, (0, 1, 3, 5, 2, 4))
    else:
        a, b, c, d, e, f, g, h = _eight(words, NUMBERS, DTYPE)
        low = tl.join(tl.join(a, b), tl.join(c, d))  # row, word, half, pair
        values = tl.join(low, tl.join(tl.join(e, f), tl.join(g, h)))  # ..., lowest bit of the step
        values = tl.reshape(values, (ROWS, COLUMNS // 128, 4, 4, 2, 2, 2))
        values = tl.permute(values, (0, 1, 3, 6, 5, 2, 4))
    return tl.reshape(values, (ROWS, COLUMNS))


@triton.jit
def to_operand(words, NUMBERS: tl.constexpr, DTYPE: tl.constexpr, BLOCKS: tl.constexpr, WARPS: tl.constexpr):
    """Return the numbers [BLOCKS * WARPS, 16, columns of a block] of codes that the threads of warps have loaded.

    Columns are in the order that names only registers differently. Where NEIGHBOURS are 4, a thread of four has four
    neighbours of sixteen columns, which are the columns 2t, 2t + 1, 2t + 8 and 2t + 9 of the weight: the other operand
    has its columns in that order too. Else they are in the order of the weight.

    words: int32 [BLOCKS * 2 * WARPS * 8, 16] in fragment order: of the first dimension, the lowest bits are those of
        the row, then follow the warp, the highest bit of the row, and the block.
    """
    if NUMBERS == "int8" or NUMBERS == "e4m3":
        a, b, c, d = _four(words, NUMBERS, DTYPE)
        values = tl.join(tl.join(a, b), tl.join(c, d))
        # Block, half of the rows, warp, row, thread, step, pair, half of the columns.
        values = tl.reshape(values, (BLOCKS, 2, WARPS, 8, 4, 4, 2, 2))
        if NEIGHBOURS == 4:
            values = tl.permute(values, (0, 2, 1, 3, 5, 4, 7, 6))
        else:
            values = tl.permute(values, (0, 2, 1, 3, 5, 7, 4, 6))
        values = tl.reshape(values, (BLOCKS * WARPS, 16, 64))
    else:
        a, b, c, d, e, f, g, h = _eight(words, NUMBERS, DTYPE)
        low = tl.join(tl.join(a, b), tl.join(c, d))
        values = tl.join(low, tl.join(tl.join(e, f), tl.join(g, h)))
        values = tl.reshape(values, (BLOCKS, 2, WARPS, 8, 4, 4, 2, 2, 2))  # ..., lowest bit of the step
        if NEIGHBOURS == 4:
            values = tl.permute(values, (0, 2, 1, 3, 5, 8, 4, 7, 6))
        else:
            values = tl.permute(values, (0, 2, 1, 3, 5, 8, 7, 4, 6))
        values = tl.reshape(values, (BLOCKS * WARPS, 16, 128))
    return values


@triton.jit
def _four(words, NUMBERS: tl.constexpr, DTYPE: tl.constexpr):
    """Return the numbers of bytes 0 and 2, then of bytes 1 and 3."""
    if INTERPRETED or tl.bfloat16 != DTYPE:
        numbers = (
            _number(words, 0, NUMBERS, DTYPE), _number(words, 2, NUMBERS, DTYPE), _number(words, 1, NUMBERS, DTYPE),
            _number(words, 3, NUMBERS, DTYPE),
        )  # fmt: skip
    elif NUMBERS == "e4m3":
        # Moved by four bits, the code's seven bits without the sign are a bfloat16 number, too small by 2^120.
        numbers = tl.inline_asm_elementwise(
            """{
            .reg .b32 bits, sign, factor, zero;
            mov.b32 zero, 0x80008000;
            mov.b32 factor, 0x7B807B80;
            shl.b32 bits, $4, 4;
            shl.b32 sign, $4, 8;
            and.b32 sign, sign, 0x80008000;
            lop3.b32 bits, bits, 0x07F007F0, sign, 0xEA;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$0, $1}, bits;
            and.b32 sign, $4, 0x80008000;
            shr.u32 bits, $4, 4;
            lop3.b32 bits, bits, 0x07F007F0, sign, 0xEA;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$2, $3}, bits;
            }""",
            "=h,=h,=h,=h,r", [words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        # Below 128, seven bits are the mantissa of 128 plus their value; the sign bit makes 128 to be subtracted 256.
        numbers = tl.inline_asm_elementwise(
            """{
            .reg .b32 bits, minus, upper, one;
            mov.b32 one, 0x3F803F80;
            lop3.b32 bits, $4, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 minus, $4, 0x00800080, 0xC300C300, 0xEA;
            fma.rn.bf16x2 bits, bits, one, minus;
            mov.b32 {$0, $1}, bits;
            shr.u32 upper, $4, 8;
            lop3.b32 bits, upper, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 minus, upper, 0x00800080, 0xC300C300, 0xEA;
            fma.rn.bf16x2 bits, bits, one, minus;
            mov.b32 {$2, $3}, bits;
            }""",
            "=h,=h,=h,=h,r", [words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=1,
        )  # fmt: skip
    return numbers


@triton.jit
def _eight(words, NUMBERS: tl.constexpr, DTYPE: tl.constexpr):
    """Return the numbers of nibbles 0 and 4, 1 and 5, 2 and 6, and 3 and 7."""
    if INTERPRETED or tl.bfloat16 != DTYPE:
        numbers = (
            _nibble(words, 0, NUMBERS, DTYPE), _nibble(words, 4, NUMBERS, DTYPE),
            _nibble(words, 1, NUMBERS, DTYPE), _nibble(words, 5, NUMBERS, DTYPE),
            _nibble(words, 2, NUMBERS, DTYPE), _nibble(words, 6, NUMBERS, DTYPE),
            _nibble(words, 3, NUMBERS, DTYPE), _nibble(words, 7, NUMBERS, DTYPE),
        )  # fmt: skip
    elif NUMBERS == "e2m1":
        # Three bits without the sign are the lowest of the exponent and the highest of the mantissa, times 2^-126.
        numbers = tl.inline_asm_elementwise(
            """{
            .reg .b32 bits, sign, factor, zero;
            mov.b32 zero, 0x80008000;
            mov.b32 factor, 0x7E807E80;
            shl.b32 bits, $8, 6;
            shl.b32 sign, $8, 12;
            and.b32 sign, sign, 0x80008000;
            lop3.b32 bits, bits, 0x01C001C0, sign, 0xEA;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$0, $1}, bits;
            shl.b32 bits, $8, 2;
            shl.b32 sign, $8, 8;
            and.b32 sign, sign, 0x80008000;
            lop3.b32 bits, bits, 0x01C001C0, sign, 0xEA;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$2, $3}, bits;
            shr.u32 bits, $8, 2;
            shl.b32 sign, $8, 4;
            and.b32 sign, sign, 0x80008000;
            lop3.b32 bits, bits, 0x01C001C0, sign, 0xEA;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$4, $5}, bits;
            shr.u32 bits, $8, 6;
            and.b32 sign, $8, 0x80008000;
            lop3.b32 bits, bits, 0x01C001C0, sign, 0xEA;
            fma.rn.bf16x2 bits, bits, factor, zero;
            mov.b32 {$6, $7}, bits;
            }""",
            "=h,=h,=h,=h,=h,=h,=h,=h,r", [words],
            dtype=(tl.bfloat16,) * 8, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        # Four bits are the lowest of the mantissa of 128 plus their value, from which 136 is subtracted.
        numbers = tl.inline_asm_elementwise(
            """{
            .reg .b32 bits, upper, one, minus;
            mov.b32 one, 0x3F803F80;
            mov.b32 minus, 0xC308C308;
            lop3.b32 bits, $8, 0x000F000F, 0x43004300, 0xEA;
            fma.rn.bf16x2 bits, bits, one, minus;
            mov.b32 {$0, $1}, bits;
            shr.u32 upper, $8, 4;
            lop3.b32 bits, upper, 0x000F000F, 0x43004300, 0xEA;
            fma.rn.bf16x2 bits, bits, one, minus;
            mov.b32 {$2, $3}, bits;
            shr.u32 upper, $8, 8;
            lop3.b32 bits, upper, 0x000F000F, 0x43004300, 0xEA;
            fma.rn.bf16x2 bits, bits, one, minus;
            mov.b32 {$4, $5}, bits;
            shr.u32 upper, $8, 12;
            lop3.b32 bits, upper, 0x000F000F, 0x43004300, 0xEA;
            fma.rn.bf16x2 bits, bits, one, minus;
            mov.b32 {$6, $7}, bits;
            }""",
            "=h,=h,=h,=h,=h,=h,=h,=h,r", [words],
            dtype=(tl.bfloat16,) * 8, is_pure=True, pack=1,
        )  # fmt: skip
    return numbers


@triton.jit
def _number(words, BYTE: tl.constexpr, NUMBERS: tl.constexpr, DTYPE: tl.constexpr):
    """Return the number of a byte of each word, 0 the lowest, without assembly."""
    high = words << (24 - 8 * BYTE)
    if NUMBERS == "e4m3":
        bits = (high & -0x80000000) | ((high >> 4) & 0x07F00000)
        return (bits.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(DTYPE)  # 2^120
    return (high >> 24).to(tl.float32).to(DTYPE)


@triton.jit
def _nibble(words, NIBBLE: tl.constexpr, NUMBERS: tl.constexpr, DTYPE: tl.constexpr):
    """Return the number of four bits of each word, 0 the lowest, without assembly."""
    code = (words >> (4 * NIBBLE)) & 15
    if NUMBERS == "e2m1":
        bits = ((code & 8) << 28) | ((code & 7) << 22)
        return (bits.to(tl.float32, bitcast=True) * 8.507059173023462e37).to(DTYPE)  # 2^126
    return (code - 8).to(tl.float32).to(DTYPE)
