"""`ModelFormats`: the format of each weight of a model on a device."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.layers.formats.base import Quantization, WeightFormat
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.formats.panels import plain_format
from radixrt.layers.formats.plain import Float32Copies
from radixrt.layers.ops import LayerOps


class ModelFormats:
    """The answers of a checkpoint's quantization, and plain formats for the weights that are not quantized.

    Args:
        quantization: None for a checkpoint of plain weights.
        ops: kernels for the device.
        float32_min_rows: see `Precision.float32_min_tokens`.
    """

    def __init__(self, quantization: Quantization | None, ops: LayerOps, float32_min_rows: int | None = None) -> None:
        self._quantization, self._ops = quantization, ops
        self._plain = plain_format(ops)
        self._plain_linear: WeightFormat = self._plain
        if float32_min_rows is not None:
            self._plain_linear = Float32Copies(ops, self._plain, float32_min_rows)

    def linear(self, projections: Sequence[Projection]) -> WeightFormat:
        """Return the format of a linear layer whose rows are those of some projections.

        Raises:
            ModelLoadError: some of them are quantized and others are not.
        """
        return self._quantized(projections) or self._plain_linear

    def head(self, projection: Projection) -> WeightFormat:
        """Return the format of the output head, of which there are no float32 copies."""
        return self._quantized([projection]) or self._plain

    def experts(self, gate_up: Sequence[Projection], down: Sequence[Projection]) -> WeightFormat:
        """Return the format of the experts of a layer."""
        if self._quantization is None:
            return self._plain
        return self._quantization.experts(gate_up, down, self._ops) or self._plain

    @property
    def expert_columns(self) -> int:
        """The number of neighbouring columns of an expert that one rank has, if there are enough for all ranks."""
        return 1 if self._quantization is None else self._quantization.expert_columns(self._ops)

    def _quantized(self, projections: Sequence[Projection]) -> WeightFormat | None:
        return None if self._quantization is None else self._quantization.linear(projections, self._ops)
