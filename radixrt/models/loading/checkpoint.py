"""Mapping from a decoder's parameters to tensors of a checkpoint, and the slice of each tensor that a rank takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixrt.kernels.mxfp4_weights import GROUP

if TYPE_CHECKING:
    from torch import nn

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
        transposed: whether what is taken is transposed before it fills rows.
        alternating: dimension of what fills the rows along which a value of the parameter's first half and one of its
            second half come in turn; None where they are in the parameter's order.
        mxfp4: whether the checkpoint has the tensor as MXFP4 numbers, in `name`_blocks and `name`_scales, which are
            dequantized; see `radixrt.models.loading.mxfp4`.
    """

    name: str
    shape: Shape
    dim: int
    taken: range
    rows: int
    index: int | None = None
    alternative: CheckpointTensor | None = None
    offset: float = 0.0
    transposed: bool = False
    alternating: int | None = None
    mxfp4: bool = False

    @property
    def stored(self) -> dict[str, Shape]:
        """Names and shapes of what the checkpoint holds for it."""
        if not self.mxfp4:
            return {self.name: self.shape}
        groups = (*self.shape[:-1], self.shape[-1] // GROUP)
        return {f"{self.name}_blocks": (*groups, GROUP // 2), f"{self.name}_scales": groups}

    @property
    def whole(self) -> bool:
        return self.index is None and not self.mxfp4 and len(self.taken) == self.shape[self.dim]


ParameterSources = dict[str, tuple[CheckpointTensor, ...]]
"""For each parameter of a module, by its path in the module, the tensors that fill its rows, in order. The first two of
three dimensions count as rows."""


def replicated(
    name: str, shape: Shape, *, alternative: str | None = None, offset: float = 0.0
) -> tuple[CheckpointTensor, ...]:
    """The source of a parameter that every rank holds whole; alternative: its name in another layout."""
    other = None if alternative is None else CheckpointTensor(alternative, shape, 0, range(shape[0]), shape[0])
    return (CheckpointTensor(name, shape, 0, range(shape[0]), shape[0], alternative=other, offset=offset),)


def column_parallel(
    linear: nn.Module, path: str, prefix: str, projections: Mapping[str, tuple[int, range]]
) -> ParameterSources:
    """Sources of a linear layer that is split by output, and whose rows are those of several projections.

    Args:
        path: the layer's path in its module.
        prefix: the checkpoint's path of the module around the projections.
        projections: by name, in the order of the rows: the outputs of the whole projection, and this rank's range.
    """
    slices = [(name, outputs, [taken]) for name, (outputs, taken) in projections.items()]
    return column_slices(linear, path, prefix, slices)


def column_slices(
    linear: nn.Module, path: str, prefix: str, slices: Sequence[tuple[str, int, Sequence[range]]]
) -> ParameterSources:
    """As `column_parallel`, with several ranges of each projection, in the order of the rows.

    Args:
        slices: name and outputs of the whole projection, and the ranges of its outputs; a name may come again.
    """
    return {
        f"{path}.{kind}": tuple(
            CheckpointTensor(f"{prefix}.{name}.{kind}", (outputs, *parameter.shape[1:]), 0, taken, len(taken))
            for name, outputs, ranges in slices
            for taken in joined(ranges)
        )
        for kind, parameter in linear.named_parameters()
    }


def joined(ranges: Sequence[range]) -> list[range]:
    """Return the ranges with those joined that go on where the one before ends; empty ones are dropped."""
    made: list[range] = []
    for each in ranges:
        if made and each and made[-1].stop == each.start:
            made[-1] = range(made[-1].start, each.stop)
        elif each:
            made.append(each)
    return made


def row_parallel(
    linear: nn.Module, path: str, prefix: str, inputs: tuple[int, range], rank: int, *, name: str | None = None
) -> ParameterSources:
    """Sources of a linear layer that is split by input; rank 0 alone has the bias, so that a sum has it once.

    Args:
        path, prefix: the layer's path in its module, and the module's path in the checkpoint.
        inputs: the inputs of the whole layer, and this rank's range.
        name: the layer's path in the checkpoint, behind the prefix; default: `path`.
    """
    sources: ParameterSources = {}
    for kind, parameter in linear.named_parameters():
        stored, (rows, *rest) = f"{prefix}.{name or path}.{kind}", parameter.shape
        if rest:
            source = CheckpointTensor(stored, (rows, inputs[0]), 1, inputs[1], rows)
        else:
            source = CheckpointTensor(stored, (rows,), 0, range(rows if rank == 0 else 0), rows)
        sources[f"{path}.{kind}"] = (source,)
    return sources
