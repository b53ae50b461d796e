"""`OnlineLayout`: plain parameters that are quantized after they are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from radixrt.layers.formats.base import StoredParameter, Tensors
from radixrt.layers.formats.checkpoint import CheckpointTensor, Encoding, Projection, sources
from radixrt.layers.formats.codes import ZERO_OF_INT4, Codes, Scheme, pack_nibbles
from radixrt.layers.formats.online import Kind
from radixrt.layers.formats.quantized import StoredLayout

LARGEST = {"int8": 127.0, "e4m3": 448.0}
"""Largest code of the numbers that have a scale for each row."""
CHUNK = {"cpu": 1 << 16, "cuda": 1 << 25}
"""Weights that are rounded to int4 codes at once: on a CPU so many that the temporary tensors stay in the cache."""
INT4_CANDIDATES = (-8.0, -7.6, -7.2, 7.0)
"""Codes that the value of largest magnitude of an int4 group may get; the one with the least squared error is taken."""


@dataclass(frozen=True)
class OnlineLayout(StoredLayout):
    """Parameters are plain weights. Of a row that ranks divide, each rank also reads the largest magnitude of the whole
    row, so that all have the scale of one rank.

    Attributes:
        group: columns of a group of int4 codes.
    """

    plain: ClassVar[bool] = True

    kind: Kind
    group: int = 0

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        rows, width = sum(each.height for each in projections), projections[0].width
        filled = [tensor for each in projections for tensor in sources(each, "weight")]
        stored = {"weight": StoredParameter((rows, width), dtype, tuple(filled))}
        if self.kind != "int4" and any(len(each.columns) < each.inputs for each in projections):
            whole = [_whole_rows(each) for each in projections]
            maxima = [
                tensor
                for each in whole
                for tensor in sources(each, "weight", encoding=RowMaxima(each.transposed), dummy=0.0)
            ]
            stored["maxima"] = StoredParameter((rows, 1), torch.float32, tuple(maxima))
        return stored

    def codes(self, tensors: Tensors) -> Codes:
        weight, maxima = tensors["weight"], tensors.get("maxima")
        if weight.dim() == 2:
            return quantize(weight, self.kind, self.group, maxima)
        # One expert at a time, because the temporary tensors are float32.
        parts = [
            quantize(each, self.kind, self.group, None if maxima is None else maxima[i])
            for i, each in enumerate(weight)
        ]
        codes = torch.stack([part.codes for part in parts])
        return Codes(codes, torch.stack([part.scales for part in parts]), None, None, parts[0].scheme)


def _whole_rows(projection: Projection) -> Projection:
    other = None if projection.alternative is None else _whole_rows(projection.alternative)
    return replace(projection, columns=range(projection.inputs), width=1, alternative=other)


@dataclass(frozen=True)
class RowMaxima(Encoding):
    """A tensor [rows, 1] with the largest magnitude of each row of a plain weight.

    Attributes:
        transposed: whether the weight is [inputs, outputs].
    """

    transposed: bool

    def parts(self, wanted: CheckpointTensor) -> tuple[CheckpointTensor, ...]:
        shape, dim = wanted.shape, wanted.dim
        if self.transposed:
            shape, dim = (*shape[:-2], shape[-1], shape[-2]), 1 - dim
        return (replace(wanted, shape=shape, dim=dim, encoding=None, transposed=self.transposed, alternating=None),)

    def decode(self, wanted: CheckpointTensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return parts[0].float().abs().amax(dim=1, keepdim=True)


def quantize(weight: torch.Tensor, kind: Kind, group: int = 0, maxima: torch.Tensor | None = None) -> Codes:
    """Round a plain weight [rows, columns] to codes.

    Args:
        group: columns of a group of int4 codes.
        maxima: float32 [rows, 1], least magnitudes that the scales of rows must cover; None for those of the weight.
    """
    if kind == "int4":
        return _quantize_groups(weight, group)
    scheme = Scheme("e4m3" if kind == "fp8" else "int8")
    largest, wide = LARGEST[scheme.numbers], weight.float()
    reach = wide.abs().amax(dim=1, keepdim=True)
    if maxima is not None:
        reach = torch.maximum(reach, maxima.to(reach.device))
    # A row of zeros needs a scale, too, which is not 0.
    scales = torch.where(reach > 0, reach / largest, 1.0)
    codes = (wide / scales).clamp_(-largest, largest)
    if scheme.numbers == "int8":
        codes = codes.round_()
    return Codes(codes.to(scheme.dtype), scales, None, None, scheme)


def _quantize_groups(weight: torch.Tensor, group: int) -> Codes:
    rows, columns = weight.shape
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(rows, columns // group, dtype=torch.float16, device=weight.device)
    at_once = max(1, CHUNK[weight.device.type] // columns)
    for first in range(0, rows, at_once):
        groups = weight[first : first + at_once].float().view(-1, columns // group, group)
        found = _best_scales(groups)
        scales[first : first + at_once] = found
        rounded = _rounded(groups, found.float()[..., None])
        codes[first : first + at_once] = pack_nibbles((rounded + ZERO_OF_INT4).flatten(1))
    return Codes(codes, scales, None, None, Scheme("int4", columns=group))


def _best_scales(groups: torch.Tensor) -> torch.Tensor:
    """Return the scale of each group, float16 [rows, groups], for weights [rows, groups, columns]."""
    low, high = torch.aminmax(groups, dim=2)
    peak = torch.where(high >= -low, high, low)
    best = least = None
    for candidate in INT4_CANDIDATES:
        # Codes are rounded by the scale that is stored.
        scales = (peak / candidate).half()
        scales.masked_fill_(scales == 0, 1.0)
        wide = scales.float()[..., None]
        error = _rounded(groups, wide).mul_(wide).sub_(groups).square_().sum(dim=2)
        if best is None or least is None:
            best, least = scales, error
        else:
            best = torch.where(error < least, scales, best)
            least = torch.minimum(error, least)
    assert best is not None
    return best


def _rounded(groups: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (groups / scales).round_().clamp_(-ZERO_OF_INT4, ZERO_OF_INT4 - 1)
