"""`Plain`: weights in the dtype that they are loaded in, and `Float32Copies`, which adds a float32 copy of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

from radixrt.distributed.partial_sum import PartialSum
from radixrt.layers.formats.base import StoredParameter, Tensors, WeightFormat
from radixrt.layers.formats.checkpoint import Encoding, Projection, sources
from radixrt.layers.ops import LayerOps
from radixrt.layers.swiglu import BiasedSwiGLU

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup

PACK_ROWS = 16
"""Batch rows that oneDNN is told to lay weights out for; 1, 16 and 64 measured alike for 1 to 256 rows."""


HAS_TILES = torch.cpu._is_amx_tile_supported()
TILE_ROWS = 16
"""Rows of an AMX tile. For each number of rows oneDNN compiles AMX kernels, about 1 MB in all layers, and never
releases the kernels, so a step of many rows is padded to whole tiles."""
MAX_UNPADDED = 64
"""Rows of a step that is not padded: a decode step's rows are few numbers, and padding would cost a large share."""


def _find_packed_linear() -> Callable[..., torch.Tensor]:
    """oneDNN's linear operator, resolved to its one overload: resolving it by name at each call costs microseconds."""
    try:
        found: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise.default
    except (AttributeError, RuntimeError):  # a torch built without oneDNN; then no weight is packed
        return F.linear
    return found


_packed_linear = _find_packed_linear()


class PackedWeight(NamedTuple):
    """A weight [rows, columns] in oneDNN's layout, which only oneDNN's operators read."""

    values: torch.Tensor


def _multiply_packed(weight: PackedWeight, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [tokens, columns] by a packed weight; returns [tokens, rows] in x's dtype."""
    tokens = x.shape[0]
    padding = -tokens % TILE_ROWS if HAS_TILES and tokens > MAX_UNPADDED else 0
    values = F.pad(x.bfloat16(), (0, 0, 0, padding)) if padding else x.bfloat16()
    return _packed_linear(values, weight.values, bias, "none", [], "")[:tokens].to(x.dtype)


class Plain(WeightFormat):
    """A weight is a tensor [rows, columns] in the dtype that it is loaded in, or, on a CPU in bfloat16, a
    `PackedWeight`, whose products oneDNN rounds to bfloat16.

    Args:
        encoding: how the checkpoint stores the weights, which are decoded while they load; None for plain tensors.
    """

    loads_plain = True

    def __init__(self, ops: LayerOps, encoding: Encoding | None = None) -> None:
        super().__init__(ops)
        self._encoding = encoding

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        filled = [tensor for each in projections for tensor in sources(each, "weight", encoding=self._encoding)]
        shape = sum(each.height for each in projections), projections[0].width
        return {"weight": StoredParameter(shape, dtype, tuple(filled))}

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> Any:
        weight = tensors["weight"]
        packed = pack_weight(weight) if weight.dim() == 2 else None  # experts are multiplied by torch
        return weight if packed is None else PackedWeight(packed)

    def linear(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, PackedWeight):
            return _multiply_packed(weight, x, bias)
        if x.dtype != weight.dtype:
            return self._ops.linear(x.to(weight.dtype), weight, bias).to(x.dtype)
        return self._ops.linear(x, weight, bias)

    def silu_and_mul(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, PackedWeight) or x.dtype != weight.dtype:
            return super().silu_and_mul(weight, x, bias)
        return self._ops.linear_silu_and_mul(x, weight, bias)

    def partial_sum(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None, group: TPGroup | None) -> PartialSum:
        if isinstance(weight, PackedWeight) or x.dtype != weight.dtype:
            return super().partial_sum(weight, x, bias, group)
        return self._ops.linear_partial_sum(x, weight, bias, group)

    def experts(
        self,
        gate_up: Any,
        down: Any,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        biased: BiasedSwiGLU | None,
    ) -> torch.Tensor | None:
        return self._ops.run_experts(x, experts, weights, gate_up, down, biased)


class TwoWeights(NamedTuple):
    """The weight of another format, and its copy in float32, with the layer's bias."""

    weight: Any
    float32_weight: torch.Tensor
    float32_bias: torch.Tensor | None


class Float32Copies(WeightFormat):
    """Another format, with a float32 copy of each plain weight for steps of many rows.

    Args:
        other: the format of steps with fewer rows, whose parameter is a plain weight.
        min_rows: see `Precision.float32_min_tokens`.
    """

    def __init__(self, ops: LayerOps, other: Plain, min_rows: int) -> None:
        super().__init__(ops)
        self._other, self._min_rows = other, min_rows

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        return self._other.parameters(projections, dtype)

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> TwoWeights:
        float32 = tensors["weight"].float(), None if bias is None else bias.float()
        return TwoWeights(self._other.prepare(tensors, bias, gated=gated), *float32)

    def is_compiled(self, weight: TwoWeights) -> bool:
        return all(map(self._other.is_compiled, (weight.weight, weight.float32_weight)))

    def linear(self, weight: TwoWeights, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if x.shape[0] >= self._min_rows:
            return self._ops.linear(x, weight.float32_weight, weight.float32_bias)
        return self._other.linear(weight.weight, x, bias)

    def silu_and_mul(self, weight: TwoWeights, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if x.shape[0] >= self._min_rows:
            return super().silu_and_mul(weight, x, bias)
        return self._other.silu_and_mul(weight.weight, x, bias)


def pack_weight(weight: torch.Tensor) -> torch.Tensor | None:
    """Lay a bfloat16 CPU weight out for oneDNN; None where plain `F.linear` is as good or packing is not available.

    Measured on 2 cores with AVX-512 bf16 (median, rows x out x in, plain against packed): 1 x 960 x 576 50 and 22 µs,
    16 x 3072 x 576 123 and 85 µs, 64 x 960 x 576 190 and 105 µs.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACK_ROWS)
        probe = torch.zeros(1, weight.shape[1], dtype=weight.dtype)
        torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):  # a torch built without oneDNN, or a CPU that it has no bfloat16 for
        return None
    return packed
