"""`Codes`: a weight as integers or floats of few bits with scales, the one form of every quantized weight in memory.

Checkpoints store such weights in many ways. Each way is rewritten into this form, exactly, while a model loads, so that
there is one set of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

Numbers = Literal["int8", "e4m3", "int4", "e2m1"]

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_MAGNITUDES, *(-value for value in _MAGNITUDES))
"""The sixteen e2m1 numbers by their codes, whose highest bit is the sign."""
ZERO_OF_INT4 = 8
"""Code of 0 among int4 codes that have neither zeros nor minima."""


@dataclass(frozen=True)
class Scheme:
    """The meaning of codes.

    Attributes:
        numbers: int8 and e4m3 codes take a byte each; int4 and e2m1 codes take four bits each.
        rows: neighbouring rows that share a scale: 1, or those of a block.
        columns: neighbouring columns that share a scale; 0 for a whole row.
    """

    numbers: Numbers
    rows: int = 1
    columns: int = 0

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 if self.numbers in ("int8", "e4m3") else 4

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the tensor of codes."""
        return {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}.get(self.numbers, torch.uint8)

    def groups(self, columns: int) -> int:
        """Return the number of scales of a row with so many columns."""
        return -(-columns // self.columns) if self.columns else 1

    def scale_rows(self, rows: int) -> int:
        """Return the number of rows of scales of a weight with so many rows."""
        return -(-rows // self.rows)

    def code_columns(self, columns: int) -> int:
        """Return the columns of the tensor of codes of a weight with so many columns."""
        return columns * self.bits // 8

    def __str__(self) -> str:
        if self.rows > 1:
            return f"{self.numbers} blocks of {self.rows} x {self.columns}"
        return f"{self.numbers} groups of {self.columns}" if self.columns else f"{self.numbers} rows"


class Codes(NamedTuple):
    """A weight [..., rows, columns], of experts with a leading dimension: (code - zero) * scale + minimum.

    Attributes:
        codes: int8 or float8_e4m3fn [..., rows, columns]; of four bits uint8 [..., rows, columns / 2], the first of two
            codes in the low half. int4 codes are 0 to 15.
        scales: float32, float16 or bfloat16 [..., scale rows, groups], see `Scheme`.
        zeros: uint8 [..., rows, groups], of int4 codes; None where the zero is 8, or where there are minima, 0.
        minima: like scales; None for zeros.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    minima: torch.Tensor | None
    scheme: Scheme

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        *leading, columns = self.codes.shape
        return (*leading, columns * 8 // self.scheme.bits)


def dequantize(weight: Codes, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a weight [..., rows, columns], computed in float32 and rounded once."""
    values = code_values(weight)
    values *= spread(weight.scales, weight)
    if weight.minima is not None:
        values += spread(weight.minima, weight)
    return values.to(dtype)


def code_values(weight: Codes) -> torch.Tensor:
    """Return codes less their zeros, float32 [..., rows, columns]. bfloat16 represents all of these numbers."""
    scheme = weight.scheme
    if scheme.bits == 8:
        return weight.codes.float()
    nibbles = unpack_nibbles(weight.codes)
    if scheme.numbers == "e2m1":
        return torch.tensor(E2M1, device=nibbles.device)[nibbles.int()]
    if weight.zeros is not None:
        return nibbles.float() - spread(weight.zeros, weight)
    return nibbles.float() - (0 if weight.minima is not None else ZERO_OF_INT4)


def spread(values: torch.Tensor, weight: Codes) -> torch.Tensor:
    """Return float32 values of scales, zeros or minima for each row and column of a weight, or for each row where a row
    has one: [..., rows, columns] or [..., rows, 1]."""
    *_, rows, columns = weight.shape
    wide = values.float()
    if wide.shape[-2] != rows:
        wide = wide.repeat_interleave(weight.scheme.rows, dim=-2)[..., :rows, :]
    if weight.scheme.columns:
        wide = wide.repeat_interleave(weight.scheme.columns, dim=-1)[..., :columns]
    return wide


def doubled_e2m1(nibbles: torch.Tensor) -> torch.Tensor:
    """Return two times the e2m1 numbers of codes, which are integers: int8 of the same shape."""
    return torch.tensor([int(2 * value) for value in E2M1], dtype=torch.int8, device=nibbles.device)[nibbles.int()]


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return uint8 [..., 2 * n] of four bits each, for bytes [..., n] with the first one in the low half."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def pack_nibbles(values: torch.Tensor) -> torch.Tensor:
    """Return bytes uint8 [..., n] of four-bit values [..., 2 * n], the first one in the low half."""
    narrow = values.to(torch.uint8)
    packed: torch.Tensor = narrow[..., 0::2] | narrow[..., 1::2] << 4
    return packed


def select_expert(weight: Codes, index: int) -> Codes:
    """Return the weight of one expert from the weight of all experts."""
    zeros = None if weight.zeros is None else weight.zeros[index]
    minima = None if weight.minima is None else weight.minima[index]
    return Codes(weight.codes[index], weight.scales[index], zeros, minima, weight.scheme)
