"""The block types of GGUF files that are kept packed, as codes with scales. Importing this module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GGUFType:
    """The codes of a block type; their values are those of the type, exactly.

    Attributes:
        numbers, columns: see `Scheme`.
        scales: dtype of the scales, and of the minima.
        has_minima: whether a minimum is added to each code times its scale; int4 codes without one have the zero 8.
    """

    numbers: Literal["int8", "int4"]
    columns: int
    scales: Literal["float16", "float32"]
    has_minima: bool

    @property
    def code_bits(self) -> int:
        return 8 if self.numbers == "int8" else 4

    @property
    def bits(self) -> float:
        """Bits of a weight, with its share of the scale and the minimum."""
        scale = 16 if self.scales == "float16" else 32
        return self.code_bits + scale * (2 if self.has_minima else 1) / self.columns


PACKED_TYPES = {
    "Q4_0": GGUFType("int4", 32, "float16", has_minima=False),
    "Q4_1": GGUFType("int4", 32, "float16", has_minima=True),
    "Q5_0": GGUFType("int8", 32, "float16", has_minima=False),
    "Q5_1": GGUFType("int8", 32, "float16", has_minima=True),
    "Q8_0": GGUFType("int8", 32, "float16", has_minima=False),
    "Q4_K": GGUFType("int4", 32, "float32", has_minima=True),
    "Q5_K": GGUFType("int8", 32, "float32", has_minima=True),
    "Q6_K": GGUFType("int8", 16, "float32", has_minima=False),
}
"""By the name of the GGML type. Scales of the K types are products of a float16 and an integer of 6 or 8 bits, which
float32 represents, and float16 does not."""
