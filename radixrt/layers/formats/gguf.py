"""Weights of a GGUF file that were kept packed (`radixrt/models/loading/gguf.py`): codes with scales of groups.

Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.base import Quantization, WeightFormat
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.formats.gguf_types import PACKED_TYPES

if TYPE_CHECKING:
    from radixrt.layers.ops import LayerOps

CONFIG_KEYS = {"quant_method", "types", "bits_per_weight"}


def read_gguf(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    """Read the quantization_config of a folder that a GGUF file was converted into.

    Raises:
        ModelLoadError: a field is not supported; names it.
    """
    quantization = config["quantization_config"]
    if unknown := sorted(set(quantization) - CONFIG_KEYS):
        raise ModelLoadError(f"config.json: quantization_config: {', '.join(unknown)} is not supported for gguf")
    types, bits = quantization.get("types"), quantization.get("bits_per_weight")
    if not isinstance(types, Mapping) or not types:
        raise ModelLoadError("config.json: quantization_config: types must name the GGML type of each packed module")
    for module, kind in types.items():
        if kind not in PACKED_TYPES:
            raise ModelLoadError(
                f"config.json: quantization_config: {module} has the type {kind!r}; {', '.join(PACKED_TYPES)} stay"
                " packed, others are expanded when a GGUF file is converted"
            )
    if not isinstance(bits, (int, float)) or not 0 < bits <= 32:
        raise ModelLoadError(f"config.json: quantization_config: bits_per_weight must be a number, not {bits!r}")
    return GGUFQuantization(dict(types), float(bits))


@dataclass(frozen=True)
class GGUFQuantization(Quantization):
    """Linear layers, and perhaps the output head, have the types of the GGUF file; others are plain.

    Where there are no kernels for codes, or ranks divide a group, a layer is expanded while it loads.

    Attributes:
        types: GGML type of each packed weight, by the path of its module.
        bits_per_weight: mean of all linear layers but the output head.
    """

    types: Mapping[str, str] = field(hash=False)
    bits_per_weight: float

    @property
    def scheme(self) -> str:  # type: ignore[override]
        return f"gguf {', '.join(sorted(set(self.types.values())))}"

    def linear(self, projections: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        if not any(each.name in self.types for each in projections):
            return None
        if not _has_kernels(ops) or any(map(self._is_divided, projections)):
            from radixrt.layers.formats.gguf_layout import GGUFEncoding
            from radixrt.layers.formats.panels import plain_format

            return plain_format(ops, GGUFEncoding(self.types))
        runs = [(kind, len(list(run))) for kind, run in groupby(projections, lambda each: self.types.get(each.name))]
        formats = [_format(kind, ops) for kind, _ in runs]
        if len(formats) == 1:
            return formats[0]
        # Files often keep v, or down, in more bits than q and k.
        from radixrt.layers.formats.joined import Joined

        return Joined(ops, formats, [count for _, count in runs])

    def _is_divided(self, projection: Projection) -> bool:
        """Return True if this rank has a part of a group."""
        kind = self.types.get(projection.name)
        group = 1 if kind is None else PACKED_TYPES[kind].columns
        return bool(projection.columns.start % group or projection.columns.stop % group)

    def num_bytes(self, what: Literal["linear", "experts"], numbers: int, item: int, device: str) -> int:
        return int(numbers * self.bits_per_weight / 8) if what == "linear" else numbers * item

    def head_copy_bytes(self, numbers: int, device: str) -> int:
        kind = self.types.get("lm_head")
        return 0 if kind is None else int(numbers * PACKED_TYPES[kind].bits / 8)

    def note(self, file_bytes: int, device: str) -> str:
        kinds = sorted(set(self.types.values()))
        return f"its linear layers stay as the GGUF file has them: {', '.join(kinds)}"


def _has_kernels(ops: LayerOps) -> bool:
    from radixrt.layers.cuda_ops import CudaOps
    from radixrt.layers.ops import CpuOps

    return isinstance(ops, (CpuOps, CudaOps))


def _format(kind: str | None, ops: LayerOps) -> WeightFormat:
    from radixrt.layers.formats.gguf_layout import GGUFLayout
    from radixrt.layers.formats.panels import plain_format
    from radixrt.layers.formats.quantized import quantized_format

    return plain_format(ops) if kind is None else quantized_format(ops, GGUFLayout(kind))
