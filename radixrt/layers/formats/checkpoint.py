"""The tensors of a checkpoint that fill a parameter, and the slice of each that a rank takes. Imports no torch."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from radixrt.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor that a checkpoint must hold.

    Attributes:
        name, shape: of the whole tensor.
        dim, taken: this rank takes the positions `taken` along dimension `dim`, which counts without that of `index`.
        rows: rows of the parameter that the tensor fills; where fewer rows or columns are taken, zeros fill the rest.
        index: the position along the first dimension that is meant, in a tensor that stacks several; None for all.
        alternative: the tensor that has these values in checkpoints of another layout, read where `name` is missing.
        offset: number that is added to the values.
        factor: number that they are multiplied by then.
        transposed: whether what is taken is transposed before it fills rows.
        alternating: dimension of what fills the rows along which a value of the parameter's first half and one of its
            second half come in turn; None where they are in the parameter's order.
        encoding: how the checkpoint stores the tensor, if it has other tensors in place of `name`.
        dtype: the dtype that the tensor must have in the checkpoint, e.g. "uint8"; None for any floating dtype.
        numbers: what numbers the tensor holds, for messages.
        dummy: the value of a random model; None for random values.
        any_ones: the checkpoint's tensor may have more or fewer dimensions of length 1 than `shape`.
    """

    name: str
    shape: Shape
    dim: int
    taken: range
    rows: int
    index: int | None = None
    alternative: CheckpointTensor | None = None
    offset: float = 0.0
    factor: float = 1.0
    transposed: bool = False
    alternating: int | None = None
    encoding: Encoding | None = None
    dtype: str | None = None
    numbers: str = "weights"
    dummy: float | None = None
    any_ones: bool = False

    @functools.cached_property
    def stored(self) -> tuple[CheckpointTensor, ...]:
        """The tensors that the checkpoint holds for this one."""
        return (self,) if self.encoding is None else self.encoding.parts(self)

    @property
    def whole(self) -> bool:
        all_taken = not self.shape or len(self.taken) == self.shape[self.dim]
        return self.index is None and self.encoding is None and all_taken

    def fits(self, shape: Shape) -> bool:
        """Return True if a checkpoint's tensor may have this shape."""
        if self.any_ones:
            return [size for size in shape if size != 1] == [size for size in self.shape if size != 1]
        return shape == self.shape


class Encoding(ABC):
    """A checkpoint stores several tensors in place of a weight, whose values are computed while the model loads.

    Implementations are values that compare equal if they decode alike.
    """

    @abstractmethod
    def parts(self, wanted: CheckpointTensor) -> tuple[CheckpointTensor, ...]:
        """Return the stored tensors, with the slices that are needed for the slice that is wanted."""

    @abstractmethod
    def decode(self, wanted: CheckpointTensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the slice that is wanted.

        Args:
            parts: the slices of `parts`, in their order, on the device of the parameter.
        """


ParameterSources = dict[str, tuple[CheckpointTensor, ...]]
"""For each parameter of a module, by its path in the module, the tensors that fill its rows, in order. The first two of
three dimensions count as rows."""


def replicated(
    name: str, shape: Shape, *, alternative: str | None = None, offset: float = 0.0
) -> tuple[CheckpointTensor, ...]:
    """The source of a parameter that every rank holds whole; alternative: its name in another layout."""
    other = None if alternative is None else CheckpointTensor(alternative, shape, 0, range(shape[0]), shape[0])
    return (CheckpointTensor(name, shape, 0, range(shape[0]), shape[0], alternative=other, offset=offset),)


@dataclass(frozen=True)
class Projection:
    """A weight [outputs, inputs] of the whole model, and this rank's part of it, which fills rows of a parameter.

    Attributes:
        name: the checkpoint's path of the module; of a stacked weight, the beginning of its tensors' names.
        rows: the outputs that this rank takes, in the order of the parameter's rows.
        columns: the inputs that it takes.
        height, width: rows and columns of the parameter that the projection fills. Zeros fill the rest.
        stack: position and size of a tensor's first dimension, for a weight that is stacked with others; else None.
        transposed: whether a plain tensor is [inputs, outputs].
        alternating: whether outputs of the parameter's first half and of its second half come in turn.
        alternative: the same weight in checkpoints of another layout.
    """

    name: str
    outputs: int
    inputs: int
    rows: tuple[range, ...]
    columns: range
    height: int
    width: int
    stack: tuple[int, int] | None = None
    transposed: bool = False
    alternating: bool = False
    alternative: Projection | None = None

    def tensor_name(self, kind: str) -> str:
        """Return the name of a tensor of this weight: "weight", or what else its format stores."""
        if self.stack is None:
            return f"{self.name}.{kind}"
        return self.name if kind == "weight" else f"{self.name}_{kind}"


def split_by_output(
    name: str, outputs: int, inputs: int, ranges: Sequence[range], *, height: int | None = None
) -> Projection:
    """Return a weight of which this rank has some outputs, and all inputs.

    Args:
        ranges: the outputs, in the order of the parameter's rows.
        height: rows of the parameter, if they are more than the outputs.
    """
    rows = joined(ranges) or (range(0),)
    return Projection(name, outputs, inputs, rows, range(inputs), height or sum(map(len, rows)), inputs)


def split_by_input(name: str, outputs: int, inputs: int, taken: range, *, width: int | None = None) -> Projection:
    """Return a weight of which this rank has all outputs, and some inputs.

    Args:
        width: columns of the parameter, if they are more than the inputs.
    """
    return Projection(name, outputs, inputs, (range(outputs),), taken, outputs, width or len(taken))


def whole_weight(name: str, outputs: int, inputs: int) -> Projection:
    """Return a weight that this rank holds whole."""
    return split_by_input(name, outputs, inputs, range(inputs))


def joined(ranges: Sequence[range]) -> tuple[range, ...]:
    """Join each range with the range before, if it begins where that range ends, and drop empty ranges."""
    made: list[range] = []
    for each in ranges:
        if made and each and made[-1].stop == each.start:
            made[-1] = range(made[-1].start, each.stop)
        elif each:
            made.append(each)
    return tuple(made)


ALL = 1 << 62
"""A unit that comprises every output or input of a weight: the tensor's axis has length 1."""


@dataclass(frozen=True)
class Units:
    """The layout of a stored tensor: outputs and inputs of the weight that one position along an axis stands for.

    Examples: a plain weight has units of 1 and 1; scales of rows [outputs, 1], of 1 and ALL; scales of blocks, of 128
    and 128; packed bytes of two numbers each, of 1 and 2.

    Attributes:
        outputs, inputs: numbers of a unit; None where the tensor has no such axis.
        trailing: further dimensions of the tensor.
    """

    outputs: int | None = 1
    inputs: int | None = 1
    trailing: Shape = ()


NUMBERS = Units()
"""The units of a tensor with one number for each pair of an output and an input."""


def sources(
    projection: Projection,
    kind: str,
    units: Units = NUMBERS,
    *,
    encoding: Encoding | None = None,
    dtype: str | None = None,
    numbers: str = "weights",
    dummy: float | None = None,
) -> tuple[CheckpointTensor, ...]:
    """Return the tensors that fill the rows of a parameter which belong to a projection, one for each range of outputs.

    Args:
        kind: of tensor, see `Projection.tensor_name`.
        units: the tensor's layout; also that of the parameter's rows.
        encoding, dtype, numbers, dummy: of `CheckpointTensor`.

    Raises:
        ModelLoadError: a rank would have a part of a unit.
    """
    p, name = projection, projection.tensor_name(kind)
    # An encoded weight has a row for each output, however a plain one is stored.
    transposed = p.transposed and units == NUMBERS and encoding is None
    shape = [-(-count // unit) for count, unit in ((p.outputs, units.outputs), (p.inputs, units.inputs)) if unit]
    by_input = units.inputs is not None and p.columns != range(p.inputs)
    ranges = [p.columns] if by_input else p.rows
    unit, total = (units.inputs, p.inputs) if by_input else (units.outputs, p.outputs)
    dim = 1 if by_input and units.outputs is not None else 0
    first = CheckpointTensor(
        name=name,
        shape=(*(shape[::-1] if transposed else shape), *units.trailing),
        dim=1 - dim if transposed else dim,
        taken=range(0),
        rows=0,
        transposed=transposed,
        alternating=0 if p.alternating else None,
        encoding=encoding,
        dtype=dtype,
        numbers=numbers,
        dummy=dummy,
    )
    if p.stack is not None:
        first = replace(first, index=p.stack[0], shape=(p.stack[1], *first.shape))
    if p.alternative is not None:
        (other,) = sources(p.alternative, kind, units, encoding=encoding, dtype=dtype, numbers=numbers, dummy=dummy)
        first = replace(first, alternative=other)
    found = []
    for each in ranges:
        height = p.height if by_input or len(ranges) == 1 else len(each)
        taken = _in_units(name, each, unit, total)
        found.append(replace(first, taken=taken, rows=-(-height // (units.outputs or ALL))))
    return tuple(found)


def bias_sources(projection: Projection) -> tuple[CheckpointTensor, ...]:
    """Return the tensors of a projection's bias. Of ranks that split the inputs, the one with the first inputs has the
    bias, so that a sum has it once."""
    name, shape = projection.tensor_name("bias"), (projection.outputs,)
    if projection.columns == range(projection.inputs):
        return tuple(CheckpointTensor(name, shape, 0, each, len(each)) for each in projection.rows)
    taken = range(0 if projection.columns.start else projection.outputs)
    return (CheckpointTensor(name, shape, 0, taken, projection.height),)


def _in_units(name: str, taken: range, unit: int | None, total: int) -> range:
    """Return the positions along an axis of a stored tensor that hold a range of `total` outputs or inputs.

    Raises:
        ModelLoadError: the range begins or ends within a unit; names the tensor.
    """
    if unit is None or unit == ALL:
        return range(1)
    if taken.start % unit or (taken.stop % unit and taken.stop != total):
        raise ModelLoadError(
            f"{name}: a rank would have {taken.start} to {taken.stop}, which divides groups of {unit}; use fewer ranks"
        )
    return range(taken.start // unit, -(-taken.stop // unit))
