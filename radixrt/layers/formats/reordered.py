"""`Reordered`: weights whose columns were sorted while they loaded, so that activations are sorted, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.errors import ModelLoadError
from radixrt.layers.formats.base import StoredParameter, Tensors, WeightFormat
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.ops import LayerOps

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup


class ReorderedWeight(NamedTuple):
    """A weight of another format, and the order of its columns, int32 [columns]; None if they are in order."""

    weight: Any
    order: torch.Tensor | None

    def sorted(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [T, columns] in the order of the weight's columns."""
        return x if self.order is None else x.index_select(-1, self.order)


class Reordered(WeightFormat):
    """Another format, of linear layers whose columns are sorted by group (GPTQ with desc_act).

    Its further parameter "order" has a row for each projection, and all rows must be equal.
    """

    def __init__(self, ops: LayerOps, other: WeightFormat) -> None:
        super().__init__(ops)
        self._other = other

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        return self._other.parameters(projections, dtype)

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> ReorderedWeight:
        orders = tensors["order"]
        if not torch.equal(orders, orders[:1].expand_as(orders)):
            raise ModelLoadError(
                "quantization_config: desc_act orders the columns of q, k and v, or of gate and up, in several ways,"
                " but they are one layer here; use a checkpoint without desc_act"
            )
        order: torch.Tensor | None = orders[0].contiguous()
        if torch.equal(orders[0].long(), torch.arange(orders.shape[1], device=orders.device)):
            order = None
        rest = {name: tensor for name, tensor in tensors.items() if name != "order"}
        return ReorderedWeight(self._other.prepare(rest, bias, gated=gated), order)

    def linear(self, weight: ReorderedWeight, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._other.linear(weight.weight, weight.sorted(x), bias)

    def silu_and_mul(self, weight: ReorderedWeight, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._other.silu_and_mul(weight.weight, weight.sorted(x), bias)

    def partial_sum(
        self, weight: ReorderedWeight, x: torch.Tensor, bias: torch.Tensor | None, group: TPGroup | None
    ) -> PartialSum:
        return self._other.partial_sum(weight.weight, weight.sorted(x), bias, group)
