"""The tensors of a packed GGUF weight: as parameters (`GGUFLayout`), and expanded while they load (`GGUFEncoding`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from radixrt.layers.formats.base import StoredParameter, Tensors
from radixrt.layers.formats.checkpoint import CheckpointTensor, Encoding, Projection, Units, sources
from radixrt.layers.formats.codes import Codes, Scheme, dequantize
from radixrt.layers.formats.gguf_types import PACKED_TYPES, GGUFType
from radixrt.layers.formats.quantized import StoredLayout

SCALE, MINIMUM = "weight_scale", "weight_minimum"
DUMMY_SCALES = {"int8": 0.02 / 74, "int4": 0.02 / 4.6}
"""Scales at which random codes have the deviation of other random weights, about."""


def scheme_of(form: GGUFType) -> Scheme:
    """Return the meaning of the codes of a type."""
    return Scheme(form.numbers, columns=form.columns)


@dataclass(frozen=True)
class GGUFLayout(StoredLayout):
    """Tensors "weight", "weight_scale", and perhaps "weight_minimum", stored as `Codes` has them.

    Attributes:
        kind: GGML type, of `PACKED_TYPES`.
    """

    kind: str

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        form, scheme = PACKED_TYPES[self.kind], scheme_of(PACKED_TYPES[self.kind])
        rows, columns = sum(each.height for each in projections), projections[0].width
        group, groups, number = Units(1, form.columns), scheme.groups(columns), getattr(torch, form.scales)
        dummy = DUMMY_SCALES[form.numbers]
        # Random int4 codes are around 7.5, which the minimum takes away.
        middle = -7.5 * dummy if form.numbers == "int4" else 0.0

        def parameter(
            kind: str, units: Units, width: int, stored: torch.dtype, value: float | None = None
        ) -> StoredParameter:
            tensors = [
                tensor
                for each in projections
                for tensor in sources(
                    each, kind, units, dtype=_name(stored), numbers=f"{self.kind} weights", dummy=value
                )
            ]
            return StoredParameter((rows, width), stored, tuple(tensors))

        found = {
            "weight": parameter("weight", Units(1, 8 // scheme.bits), scheme.code_columns(columns), scheme.dtype),
            "scales": parameter(SCALE, group, groups, number, dummy),
        }
        if form.has_minima:
            found["minima"] = parameter(MINIMUM, group, groups, number, middle)
        return found

    def codes(self, tensors: Tensors) -> Codes:
        scheme = scheme_of(PACKED_TYPES[self.kind])
        return Codes(tensors["weight"], tensors["scales"], None, tensors.get("minima"), scheme)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class GGUFEncoding(Encoding):
    """Packed tensors in place of a plain weight.

    Attributes:
        types: GGML type of each packed weight, by the path of its module; other tensors are plain.
    """

    types: Mapping[str, str] = field(hash=False)

    def parts(self, wanted: CheckpointTensor) -> tuple[CheckpointTensor, ...]:
        form, plain = self._form(wanted), replace(wanted, encoding=None)
        if form is None:
            return (plain,)
        (rows, columns), taken = wanted.shape, wanted.taken
        if wanted.dim == 1:  # groups at the ends may be another rank's in part
            taken = range(taken.start // form.columns, -(-taken.stop // form.columns))
        group_bytes = form.columns * form.code_bits // 8
        bytes_taken = range(taken.start * group_bytes, taken.stop * group_bytes) if wanted.dim == 1 else taken
        dtype = _name(scheme_of(form).dtype)
        codes = replace(plain, shape=(rows, columns * form.code_bits // 8), taken=bytes_taken, dtype=dtype)
        stem = wanted.name.removesuffix("weight")
        names = [SCALE, MINIMUM] if form.has_minima else [SCALE]
        groups = replace(plain, shape=(rows, columns // form.columns), taken=taken, dtype=form.scales)
        return codes, *(replace(groups, name=stem + name) for name in names)

    def decode(self, wanted: CheckpointTensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        form = self._form(wanted)
        if form is None:
            return parts[0]
        codes, scales, *minima = parts
        values = dequantize(Codes(codes, scales, None, minima[0] if minima else None, scheme_of(form)))
        return values.narrow(1, wanted.taken.start % form.columns, len(wanted.taken)) if wanted.dim == 1 else values

    def _form(self, wanted: CheckpointTensor) -> GGUFType | None:
        kind = self.types.get(wanted.name.removesuffix(".weight"))
        return None if kind is None else PACKED_TYPES[kind]
