"""`rewrite`: blocks of a GGUF file become codes with scales, in the order of `radixrt.layers.formats.codes.Codes`.

Each rewriter reads the layout of ggml's `ggml-common.h`. Nothing is rounded: the values of weights stay the same, bit
by bit, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Scales = npt.NDArray[np.float16] | npt.NDArray[np.float32]


class PackedRows(NamedTuple):
    """Rows of a weight; see `PACKED_TYPES` for the meaning of the codes.

    Attributes:
        codes: int8 [rows, columns], or uint8 [rows, columns / 2] of int4 codes, the first of two in the low half.
        scales: [rows, groups].
        minima: like scales, or None.
    """

    codes: npt.NDArray[np.int8] | Bytes
    scales: Scales
    minima: Scales | None


def rewrite(rows: Bytes, kind: str) -> PackedRows:
    """Rewrite rows of blocks.

    Args:
        rows: uint8 [rows, bytes of a row].
        kind: name of the GGML type, of `PACKED_TYPES`.
    """
    block_bytes, rewriter = REWRITERS[kind]
    # Every rewriter returns arrays [rows, blocks, numbers of a block].
    codes, scales, minima = rewriter(rows.reshape(rows.shape[0], -1, block_bytes))
    return PackedRows(_flat(codes), _flat(scales), None if minima is None else _flat(minima))


def _flat(parts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(parts).reshape(parts.shape[0], -1)


def _q4_0(blocks: Bytes) -> PackedRows:
    return PackedRows(_interleaved(blocks[..., 2:]), _halves(blocks, 0), None)


def _q4_1(blocks: Bytes) -> PackedRows:
    return PackedRows(_interleaved(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: Bytes) -> PackedRows:
    codes = (_five_bits(blocks[..., 2:]) - np.uint8(16)).view(np.int8)
    return PackedRows(codes, _halves(blocks, 0), None)


def _q5_1(blocks: Bytes) -> PackedRows:
    return PackedRows(_five_bits(blocks[..., 4:]).view(np.int8), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Bytes) -> PackedRows:
    return PackedRows(blocks[..., 2:].view(np.int8), _halves(blocks, 0), None)


def _q4_k(blocks: Bytes) -> PackedRows:
    scales, minima = _k_scales(blocks)
    quarters = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)
    return PackedRows(_interleaved(quarters), scales, minima)


def _q5_k(blocks: Bytes) -> PackedRows:
    scales, minima = _k_scales(blocks)
    high, low = blocks[..., 16:48], blocks[..., 48:].reshape(*blocks.shape[:2], 4, 1, 32)
    nibbles = (low >> np.array([0, 4], np.uint8)[:, None] & 15).reshape(*blocks.shape[:2], 8, 32)
    fifth = high[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return PackedRows((nibbles | fifth << np.uint8(4)).view(np.int8), scales, minima)


def _q6_k(blocks: Bytes) -> PackedRows:
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64)
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    nibbles = (low >> np.array([0, 4], np.uint8)[:, None] & 15).reshape(*blocks.shape[:2], 8, 32)
    pairs = (high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(nibbles.shape)
    codes = ((nibbles | pairs << np.uint8(4)) - np.uint8(32)).view(np.int8)
    scales = blocks[..., 192:208].view(np.int8).astype(np.float32)
    return PackedRows(codes, scales * _halves(blocks, 208).astype(np.float32), None)


def _halves(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    """Return the float16 at a byte of each block, [rows, blocks, 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")


def _k_scales(blocks: Bytes) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return scales and minima [rows, blocks, 8] of blocks that begin with their two float16 and 12 bytes of six bits
    each."""
    first, second, third = (blocks[..., i : i + 4] for i in (4, 8, 12))
    scales = np.concatenate((first & 63, third & 15 | first >> 2 & 48), axis=-1)
    minima = np.concatenate((second & 63, third >> 4 | second >> 2 & 48), axis=-1)
    d, dmin = (_halves(blocks, at).astype(np.float32) for at in (0, 2))
    return d * scales.astype(np.float32), -(dmin * minima.astype(np.float32))


def _interleaved(packed: Bytes) -> Bytes:
    """Reorder int4 codes [..., n bytes], of which the low halves are the first n and the high ones the others, so that
    a byte has neighbours."""
    pairs = np.ascontiguousarray(packed).view("<u2")
    low, high = pairs & 0x0F | pairs >> 4 & 0xF0, pairs >> 4 & 0x0F | pairs >> 8 & 0xF0
    return np.concatenate((low.astype(np.uint8), high.astype(np.uint8)), axis=-1)


def _five_bits(blocks: Bytes) -> Bytes:
    """Return the codes [..., 32] of four bytes of fifth bits and 16 bytes of the other bits."""
    fifth = np.unpackbits(np.ascontiguousarray(blocks[..., :4]), axis=-1, bitorder="little")
    nibbles = np.concatenate((blocks[..., 4:] & 15, blocks[..., 4:] >> 4), axis=-1)
    codes: Bytes = nibbles | fifth << np.uint8(4)
    return codes


REWRITERS: dict[str, tuple[int, Callable[[Bytes], PackedRows]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
"""Bytes of a block, and its rewriter."""
