"""`Joined`: a weight whose rows are of several formats, for example q and k in 4 bits, and v in 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from radixrt.layers.formats.base import StoredParameter, Tensors, WeightFormat
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.ops import LayerOps


class Joined(WeightFormat):
    """Each part is kept and multiplied by its own format. Bringing all to the widest would cost more bytes, and a
    second product costs microseconds.

    Args:
        formats: of the parts, in the order of the rows.
        counts: number of projections of each part.
    """

    def __init__(self, ops: LayerOps, formats: Sequence[WeightFormat], counts: Sequence[int]) -> None:
        super().__init__(ops)
        self._formats, self._counts = tuple(formats), tuple(counts)

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        """Return the parameters of all parts; the number of the part stands behind each name."""
        found: dict[str, StoredParameter] = {}
        first = 0
        for i, (part, count) in enumerate(zip(self._formats, self._counts, strict=True)):
            stored = part.parameters(projections[first : first + count], dtype)
            found |= {f"{name}_{i}": parameter for name, parameter in stored.items()}
            first += count
        return found

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> tuple[Any, ...]:
        parts: list[dict[str, torch.Tensor]] = [{} for _ in self._formats]
        for name, tensor in tensors.items():
            own, _, i = name.rpartition("_")
            parts[int(i)][own] = tensor
        return tuple(each.prepare(part) for each, part in zip(self._formats, parts, strict=True))

    def kernels(self, weight: Any) -> str:
        names = [each.kernels(part) for each, part in zip(self._formats, weight, strict=True)]
        return next((name for name in names if name), "")

    def linear(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        parts = [each.linear(part, x, None) for each, part in zip(self._formats, weight, strict=True)]
        out = self._ops.join_columns(parts)
        return out if bias is None else out.add_(bias.to(out.dtype))
