"""`StoredWeight`: the tensors in which a checkpoint stores a quantized weight, as data.

A checkpoint format is a few of these values, and a function that reads which modules have which. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from radixrt.layers.formats.checkpoint import ALL, CheckpointTensor, Projection, Units

SCALE_BITS = 32
"""Bits of a scale in memory, and of a zero, which kernels keep as its product with the scale."""


@dataclass(frozen=True)
class Part:
    """One of the tensors of a weight [outputs, inputs].

    Attributes:
        kind: end of the tensor's name, behind the path of its module.
        units: outputs and inputs that one position stands for, see `Units`; (None, None) for a scalar.
        transposed: the axis of the inputs is the first one.
        dtype: the dtype that the tensor must have; None for any floating dtype.
    """

    kind: str
    units: Units
    transposed: bool = False
    dtype: str | None = None

    def tensor(self, wanted: CheckpointTensor, size: tuple[int, int], region: tuple[range, range]) -> CheckpointTensor:
        """Return the slice of the tensor that covers a region of the weight.

        Args:
            wanted: the weight; of a stacked one, `index` and the first dimension of `shape` are those of the stack.
            size: outputs and inputs of the whole weight.
            region: outputs and inputs that are wanted, of which at most one are not all.
        """
        axes = [
            (-(-count // unit), covering(taken, unit))
            for count, unit, taken in zip(size, (self.units.outputs, self.units.inputs), region, strict=True)
            if unit is not None
        ]
        axes = axes[::-1] if self.transposed else axes
        shape = tuple(count for count, _ in axes)
        dim = next((i for i, (count, taken) in enumerate(axes) if taken != range(count)), 0)
        name = f"{wanted.name.removesuffix('.weight')}.{self.kind}"
        if wanted.index is not None:
            # transformers names the scales of stacked experts gate_up_proj_scale_inv.
            suffix = "" if self.kind == "weight" else f"_{self.kind.removeprefix('weight_')}"
            name, shape = f"{wanted.name}{suffix}", (wanted.shape[0], *shape)
        return CheckpointTensor(
            name,
            shape,
            dim,
            axes[dim][1] if axes else range(1),
            0,
            wanted.index,
            dtype=self.dtype,
            numbers="codes" if self.dtype else "scales",
            any_ones=self.kind != "weight",
        )


def covering(taken: range, unit: int) -> range:
    """Return the positions along an axis whose units contain a range of outputs or inputs."""
    return range(1) if unit == ALL else range(taken.start // unit, -(-taken.stop // unit))


@dataclass(frozen=True)
class StoredWeight:
    """The tensors of a quantized weight, whose values are (code - zero) * scale.

    Attributes:
        numbers: of `codes.Scheme`. Integers of `packed` tensors are stored without a sign.
        codes: the tensor of codes; its units say how many codes an element holds, and along which axis.
        scales: the tensor of scales; its units are the outputs and inputs that share a scale.
        zeros: the tensor of zeros, packed along the outputs; None where the zero is half of the range.
        zeros_less_one: 1 was subtracted from each zero of a packed int32, as of one number, so that a zero of 0 borrows
            from the next one.
        global_scale: a scalar by which all scales are multiplied, or divided if `divides`.
        exponents: scales are bytes, e of 2^(e - 127).
        interleaved: AWQ's order of eight codes in an int32.
        order: the group of each input, where columns of a group are not neighbours.
    """

    numbers: Literal["int8", "e4m3", "int4", "e2m1"]
    codes: Part
    scales: Part
    zeros: Part | None = None
    zeros_less_one: bool = False
    global_scale: Part | None = None
    divides: bool = False
    exponents: bool = False
    interleaved: bool = False
    order: Part | None = None

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 if self.numbers in ("int8", "e4m3") else 4

    @property
    def packed(self) -> bool:
        """Whether an element of the tensor of codes holds several."""
        return self.codes.units != Units()

    @property
    def share(self) -> tuple[int, int]:
        """Outputs and inputs that share a scale; `ALL` for all."""
        return self.scales.units.outputs or ALL, self.scales.units.inputs or ALL

    def shared(self, projections: Sequence[Projection]) -> tuple[int, int]:
        """Return the rows and columns of a parameter that share a scale, 0 columns for whole rows: those of the
        checkpoint, or less where a range of rows or columns does not begin and end with them.

        Args:
            projections: of one parameter, or of both parameters of a mixture of experts.
        """
        rows, columns = self.share
        for each in projections:
            cuts = [(taken.start, taken.stop - taken.start) for taken in each.rows]
            whole = len(projections) == 1 and each.rows == (range(each.outputs),)
            if rows == ALL or any(start % rows or (length % rows and not whole) for start, length in cuts):
                rows = 1
            if columns < each.inputs:
                stop = 0 if each.columns.stop == each.inputs else each.columns.stop
                columns = math.gcd(columns, each.columns.start, stop)
        return rows, 0 if all(columns >= each.inputs for each in projections) else columns

    def bits_per_weight(self, device: str) -> float:
        """Return the bits that a weight takes in memory, with its scale and its zero.

        Args:
            device: "cpu", where e4m3 numbers become bfloat16 and e2m1 numbers int8, or "cuda".
        """
        outputs, inputs = self.share
        bits = {"e4m3": 16, "e2m1": 8}.get(self.numbers, self.bits) if device == "cpu" else self.bits
        if bits == 16:
            return bits
        return bits + SCALE_BITS / (outputs * inputs) + (SCALE_BITS / inputs if self.zeros else 0)

    def __str__(self) -> str:
        rows, columns = self.share
        name = {"e4m3": "fp8", "e2m1": "fp4"}.get(self.numbers, self.numbers)
        if rows not in (1, ALL):
            return f"{name} blocks of {rows} x {columns}"
        return f"{name} rows" if columns == ALL else f"{name} groups of {columns}"
