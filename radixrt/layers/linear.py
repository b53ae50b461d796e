"""`Linear`: a linear layer. Its `WeightFormat` keeps the weight and multiplies by the weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.float8_rows import Activations
from radixrt.layers.formats.base import WeightFormat
from radixrt.layers.formats.checkpoint import ParameterSources, Projection, bias_sources

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup


class Linear(nn.Module):
    """y = x W^T + b, with W [out_features, in_features].

    The loader sets the parameters, which start on the meta device, then calls `process_weights_after_loading`.

    Args:
        projections: of the same inputs; W has the rows that this rank takes of each, one after the other.
        dtype: of the bias, and of a plain weight.
        gated: only `silu_and_mul` is called: the outputs are those of gate, then those of up.

    Attributes:
        weight: the parameter of that name; None where the format has none, or has dropped it after loading.
        bias: [out_features], or None.
        sources: the tensors that fill the parameters, by the names of these.
        num_weights: numbers that the weight has on this rank.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        projections: Sequence[Projection],
        bias: bool,
        dtype: torch.dtype,
        weight_format: WeightFormat,
        *,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.format = weight_format
        self.gated = gated
        self.in_features = projections[0].width
        self.out_features = sum(each.height for each in projections)
        self.num_weights = self.in_features * self.out_features
        self.sources: ParameterSources = {}
        self.weight = None
        self._weight: Any = None
        stored = weight_format.parameters(projections, dtype)
        for name, parameter in stored.items():
            setattr(self, name, meta_parameter(*parameter.shape, dtype=parameter.dtype))
            self.sources[name] = parameter.sources
        self._stored = tuple(stored)
        self.bias = meta_parameter(self.out_features, dtype=dtype) if bias else None
        if bias:
            self.sources["bias"] = tuple(tensor for each in projections for tensor in bias_sources(each))

    def process_weights_after_loading(self) -> None:
        """Bring the loaded weight into the layout that the format multiplies by. Called once."""
        tensors = {name: self.get_parameter(name).detach() for name in self._stored}
        self._weight = self.format.prepare(tensors, self.bias, gated=self.gated)
        for name in dropped(tensors, self._weight):
            setattr(self, name, None)

    @property
    def is_compiled(self) -> bool:
        """See `WeightFormat.is_compiled`; of the loaded weight."""
        return self.format.is_compiled(self._weight)

    @property
    def kernels(self) -> str:
        """See `WeightFormat.kernels`; of the loaded weight."""
        return self.format.kernels(self._weight)

    def float8_group(self, tokens: int, dtype: torch.dtype) -> int | None:
        """See `WeightFormat.float8_group`; of the loaded weight."""
        return self.format.float8_group(self._weight, tokens, dtype)

    def forward(self, x: Any) -> torch.Tensor:
        """`Activations` [T, in_features] -> [T, out_features], in the dtype of activations, see `Precision`."""
        return self.format.linear(self._weight, x, self.bias)

    def silu_and_mul(self, x: Activations, reader: Linear | None = None) -> Activations:
        """silu(gate) * up [T, out_features / 2], for a layer whose outputs are those of gate, then those of up.

        Args:
            reader: the only layer that reads the result, which may then be in float8; None if there are others.
        """
        group = None if reader is None else reader.float8_group(x.shape[0], x.dtype)
        if group is None:
            return self.format.silu_and_mul(self._weight, x, self.bias)
        return self.format.silu_and_mul_float8(self._weight, x, self.bias, group)

    def partial_sum(self, x: Activations, group: TPGroup | None) -> PartialSum:
        """This rank's addend [T, out_features] of the next all-reduce, for a layer split along in_features."""
        return self.format.partial_sum(self._weight, x, self.bias, group)


def dropped(tensors: dict[str, torch.Tensor], weight: Any) -> list[str]:
    """Return the names of the tensors that a prepared weight does not contain."""
    kept = list(_tensors_of(weight))
    return [name for name, tensor in tensors.items() if not any(each is tensor for each in kept)]


def _tensors_of(weight: Any) -> Iterator[torch.Tensor]:
    if isinstance(weight, torch.Tensor):
        yield weight
    elif isinstance(weight, tuple):
        for part in weight:
            yield from _tensors_of(part)


def meta_parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter with a shape and no memory, for the loader to replace."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)
