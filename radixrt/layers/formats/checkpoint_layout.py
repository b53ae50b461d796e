"""`CheckpointLayout`: the tensors of a `StoredWeight` are rewritten into `Codes` while they load.

Nothing is quantized again: per-tensor scales become scales of rows, blocks that a cut divides become smaller ones, and
bits are put into order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.base import StoredParameter, Tensors
from radixrt.layers.formats.checkpoint import ALL, CheckpointTensor, Encoding, Projection, Units, sources
from radixrt.layers.formats.codes import ZERO_OF_INT4, Codes, Scheme, doubled_e2m1, unpack_nibbles
from radixrt.layers.formats.quantized import StoredLayout
from radixrt.layers.formats.stored_weight import Part, StoredWeight, covering

Kind = Literal["weight", "scales", "zeros", "minima", "order"]

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Positions in an int32 of AWQ of the codes of eight neighbouring outputs."""
ZERO_OF_INT8 = 128
DUMMY_SCALES = {"int8": 0.02 / 74, "e4m3": 0.02, "int4": 0.02 / 4.6, "e2m1": 0.02 / 3}
"""Scales at which random codes have the deviation of other random weights, about."""


@dataclass(frozen=True)
class CheckpointLayout(StoredLayout):
    """The layout of one linear layer, or of the experts of one layer.

    Rows of an odd number of four-bit codes become int8, which represents the differences of codes and zeros, and twice
    the e2m1 numbers, too.

    Args:
        stored: of every projection.
        scheme: of the parameters: see `checkpoint_layout`.
    """

    stored: StoredWeight
    scheme: Scheme

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        scheme, columns = self.scheme, projections[0].width
        rows = sum(each.height for each in projections)
        scale_rows = sum(scheme.scale_rows(each.height) for each in projections)
        found = {
            "weight": self._parameter(projections, "weight", rows, scheme.code_columns(columns), scheme.dtype),
            "scales": self._parameter(projections, "scales", scale_rows, scheme.groups(columns), torch.float32),
        }
        if self._has_zeros:
            found["zeros"] = self._parameter(projections, "zeros", rows, scheme.groups(columns), torch.uint8)
        if self._has_minima:
            found["minima"] = self._parameter(projections, "minima", rows, scheme.groups(columns), torch.float32)
        if self.stored.order is not None:
            found["order"] = self._parameter(projections, "order", len(projections), columns, torch.int32)
        return found

    def codes(self, tensors: Tensors) -> Codes:
        return Codes(tensors["weight"], tensors["scales"], tensors.get("zeros"), tensors.get("minima"), self.scheme)

    @property
    def _has_zeros(self) -> bool:
        return self.stored.zeros is not None and self.scheme.numbers == "int4"

    @property
    def _has_minima(self) -> bool:
        """Whether codes are int8 whose zeros int8 cannot subtract."""
        return self.stored.zeros is not None and self.stored.bits == 8

    def _parameter(
        self, projections: Sequence[Projection], kind: Kind, rows: int, columns: int, dtype: torch.dtype
    ) -> StoredParameter:
        filled = [tensor for each in projections for tensor in self._sources(each, kind)]
        return StoredParameter((rows, columns), dtype, tuple(filled))

    def _sources(self, projection: Projection, kind: Kind) -> tuple[CheckpointTensor, ...]:
        p, scheme = projection, self.scheme
        encoding = WeightEncoding(self.stored, scheme, kind, p.outputs, p.inputs, p.columns)
        dummy = {"scales": DUMMY_SCALES[scheme.numbers], "zeros": ZERO_OF_INT4, "minima": 0.0, "order": 0}.get(kind)
        own = p if p.alternative is None else replace(p, alternative=None)
        if kind == "order":
            own = replace(own, outputs=1, height=1, rows=(range(1),))
        found = sources(own, "weight", encoding.units, encoding=encoding, dummy=dummy)
        if p.alternative is not None:
            (other,) = self._sources(p.alternative, kind)
            found = tuple(replace(each, alternative=other) for each in found)
        return found


def checkpoint_layout(stored: StoredWeight, projections: Sequence[Projection]) -> CheckpointLayout:
    """Return the layout of a weight, or of both weights of a mixture of experts.

    Raises:
        ModelLoadError: ranks cannot share the weight; names it.
    """
    rows, columns = stored.shared(projections)
    numbers = stored.numbers
    if stored.bits == 4 and any(each.width % 2 or each.columns.start % 2 for each in projections):
        numbers = "int8"
    for each in projections:
        if stored.order is not None and each.columns != range(each.inputs):
            raise ModelLoadError(
                f"{each.name}: its columns are ordered by activation (desc_act), so that ranks cannot share them; use"
                " --tp 1, or a checkpoint without desc_act"
            )
    return CheckpointLayout(stored, Scheme(numbers, rows, columns))


@dataclass(frozen=True)
class WeightEncoding(Encoding):
    """The encoding of one parameter of a projection.

    Attributes:
        outputs, inputs: of the whole weight.
        columns: the inputs that this rank has.
    """

    stored: StoredWeight
    scheme: Scheme
    kind: Kind
    outputs: int
    inputs: int
    columns: range

    @property
    def units(self) -> Units:
        """Outputs and inputs that a position of the parameter stands for."""
        if self.kind == "weight":
            return Units(1, 8 // self.scheme.bits)
        if self.kind == "order":
            return Units(1, 1)
        return Units(self.scheme.rows if self.kind == "scales" else 1, self.scheme.columns or ALL)

    def parts(self, wanted: CheckpointTensor) -> tuple[CheckpointTensor, ...]:
        size, region = (self.outputs, self.inputs), self._region(wanted)
        return tuple(part.tensor(wanted, size, region) for part in self._needed)

    def decode(self, wanted: CheckpointTensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        region = self._region(wanted)
        found = {part: oriented(tensor, part) for part, tensor in zip(self._needed, parts, strict=True)}
        if self.kind == "scales":
            return self._scales(found, region, self.scheme)
        if self.kind == "zeros":
            return self._zeros(found, region, self.scheme)
        if self.kind == "minima":
            # Of 8-bit codes without a sign, of which 128 was subtracted: 128 * scale - zero * scale.
            rows = Scheme("int8", 1, self.scheme.columns)
            return (ZERO_OF_INT8 - self._zeros(found, region, rows).float()) * self._scales(found, region, rows)
        if self.kind == "order":
            return self._order(found, wanted.name)[None].int()
        return self._codes(found, region, wanted.name)

    @property
    def _needed(self) -> tuple[Part, ...]:
        stored = self.stored
        scales = (stored.scales,) if stored.global_scale is None else (stored.scales, stored.global_scale)
        zeros = () if stored.zeros is None else (stored.zeros,)
        order = () if stored.order is None else (stored.order,)
        if self.kind == "weight":
            return (stored.codes, *order, *(zeros if self._widened else ()))
        return {"scales": scales, "zeros": zeros, "minima": (*scales, *zeros), "order": order}[self.kind]

    @property
    def _widened(self) -> bool:
        """Whether four-bit codes become int8."""
        return self.stored.bits == 4 and self.scheme.bits == 8

    def _region(self, wanted: CheckpointTensor) -> tuple[range, range]:
        if wanted.dim == 1 or self.kind == "order":
            return range(self.outputs), self.columns
        unit, taken = self.units.outputs or 1, wanted.taken
        return range(taken.start * unit, min(taken.stop * unit, self.outputs)), self.columns

    def _codes(self, found: dict[Part, torch.Tensor], region: tuple[range, range], name: str) -> torch.Tensor:
        stored, (rows, columns) = self.stored, region
        codes = found[stored.codes]
        if not stored.packed:
            return codes
        if stored.order is not None:
            return self._sorted_codes(found, region, name)
        if stored.codes.units.outputs != 1:
            assert stored.bits == 4
            codes = packed_inputs(codes, rows, stored.interleaved)
        else:
            # Little-endian integers have their first code in the lowest bits, as `Codes` do.
            # A view of bytes needs neighbouring elements to be neighbours in memory, also where there is one alone.
            ordered = codes if codes.stride(1) == 1 else codes.clone(memory_format=torch.contiguous_format)
            codes = ordered.view(torch.uint8)
        first = covering(columns, stored.codes.units.inputs or 1).start * (stored.codes.units.inputs or 1)
        start, stop = columns.start - first, columns.stop - first
        if stored.bits == 8:
            return (codes[:, start:stop] ^ ZERO_OF_INT8).view(torch.int8)
        if self._widened:
            return self._widen(unpack_nibbles(codes)[:, start:stop], found, region)
        return codes[:, start // 2 : (stop + 1) // 2]

    def _sorted_codes(self, found: dict[Part, torch.Tensor], region: tuple[range, range], name: str) -> torch.Tensor:
        # Of codes [inputs, outputs], whole rows are sorted, which takes less time than single bytes.
        codes = unpack_outputs(found[self.stored.codes].T, region[1], self.stored.bits, interleaved=False)
        codes = codes[self._order(found, name)]
        if self.stored.bits == 8:
            return (codes ^ ZERO_OF_INT8).view(torch.int8).T
        if self._widened:
            return self._widen(codes.T, found, region)
        codes = torch.nn.functional.pad(codes, (0, 0, 0, codes.shape[0] % 2))
        return (codes[::2] | codes[1::2] << 4).T

    def _widen(
        self, nibbles: torch.Tensor, found: dict[Part, torch.Tensor], region: tuple[range, range]
    ) -> torch.Tensor:
        if self.stored.numbers == "e2m1":
            return doubled_e2m1(nibbles)
        if self.stored.zeros is None:
            return nibbles.view(torch.int8) - ZERO_OF_INT4
        zeros = self._zeros(found, region, Scheme("int4", 1, 1))
        return nibbles.view(torch.int8) - zeros.view(torch.int8)

    def _scales(self, found: dict[Part, torch.Tensor], region: tuple[range, range], scheme: Scheme) -> torch.Tensor:
        stored, scales = self.stored, found[self.stored.scales]
        scales = (scales.view(torch.float8_e8m0fnu) if stored.exponents else scales).float()
        if stored.global_scale is not None:
            factor = found[stored.global_scale].float()
            scales = scales / factor if stored.divides else scales * factor
        if self.scheme.numbers == "int8" and stored.numbers == "e2m1":
            scales = scales / 2
        return resampled(scales, stored.scales.units, region, scheme)

    def _zeros(self, found: dict[Part, torch.Tensor], region: tuple[range, range], scheme: Scheme) -> torch.Tensor:
        stored, part = self.stored, self.stored.zeros
        assert part is not None
        words = found[part] + (0x11111111 if stored.bits == 4 else 0x01010101) if stored.zeros_less_one else found[part]
        zeros = unpack_outputs(words, region[0], stored.bits, stored.interleaved)
        return resampled(zeros, Units(1, part.units.inputs), region, scheme)

    def _order(self, found: dict[Part, torch.Tensor], name: str) -> torch.Tensor:
        """Return the inputs in the order in which those of a group are neighbours, int64 [inputs]."""
        assert self.stored.order is not None
        groups = found[self.stored.order].flatten()
        order = groups.argsort(stable=True)
        expected = torch.arange(self.inputs, device=groups.device) // self.stored.share[1]
        if not torch.equal(groups[order].long(), expected):
            tensor, size = name.removesuffix("weight") + self.stored.order.kind, self.stored.share[1]
            raise ModelLoadError(f"{tensor}: each group must have {size} columns")
        return order


def oriented(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    """Return a stored tensor with an axis of outputs and one of inputs, of length 1 if the tensor lacks them."""
    if part.units.outputs is None:
        tensor = tensor.unsqueeze(0)
    if part.units.inputs is None:
        tensor = tensor.unsqueeze(-1)
    return tensor.T if part.transposed else tensor


def unpack_outputs(words: torch.Tensor, rows: range, bits: int, interleaved: bool) -> torch.Tensor:
    """Return codes uint8 [rows, m] that are packed along the outputs.

    Args:
        words: int32 [n, m] that cover the rows.
        interleaved: in the order of AWQ.
    """
    count = 32 // bits
    places = AWQ_ORDER if interleaved else range(count)
    codes = torch.stack([(words >> (bits * place) & (2**bits - 1)).to(torch.uint8) for place in places], dim=1)
    start = rows.start % count
    return codes.flatten(0, 1)[start : start + len(rows)]


def packed_inputs(words: torch.Tensor, rows: range, interleaved: bool) -> torch.Tensor:
    """Return four-bit codes that are packed along the outputs as bytes of neighbouring inputs, uint8 [rows, m / 2].

    Args:
        words: int32 [n, m] that cover the rows; of an odd m, zeros follow.
        interleaved: in the order of AWQ.
    """
    words = torch.nn.functional.pad(words, (0, words.shape[1] % 2))
    first, second, low = words[:, ::2], words[:, 1::2], 0x0F0F0F0F
    # Byte i of an int32 has the codes at positions 2 i and 2 i + 1 of one input; here, of two inputs at one position.
    halves = (first & low | (second & low) << 4, first >> 4 & low | second & ~low)
    pairs = [each.contiguous().view(torch.uint8).view(*each.shape, 4) for each in halves]
    places = AWQ_ORDER if interleaved else range(8)
    codes = torch.stack([pairs[place % 2][..., place // 2] for place in places], dim=1)
    start = rows.start % 8
    return codes.flatten(0, 1)[start : start + len(rows)]


def resampled(values: torch.Tensor, units: Units, region: tuple[range, range], scheme: Scheme) -> torch.Tensor:
    """Return values for the rows and groups of columns of a scheme, which divide the stored units.

    Args:
        values: [n, m], covering the region.
        units: outputs and inputs of a value.
        region: outputs and inputs that are wanted.
    """
    steps = scheme.rows, scheme.columns or ALL
    for dim, (unit, taken, step) in enumerate(
        zip((units.outputs or ALL, units.inputs or ALL), region, steps, strict=True)
    ):
        if unit == step:
            continue
        first = covering(taken, unit).start
        places = torch.arange(taken.start, taken.stop, step, device=values.device)
        values = values.index_select(dim, places // unit - first)
    return values
