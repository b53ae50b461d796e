"""Checkpoints of AWQ: four-bit integers in groups, packed along the outputs. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.checkpoint import Units
from radixrt.layers.formats.per_layer import (
    HEAD,
    PerLayer,
    check_fields,
    group_share,
    module_names,
    num_layers,
    path_variants,
    refused,
    tied_head,
)
from radixrt.layers.formats.stored_weight import Part, StoredWeight

METHOD = "awq"
WORD = 8
"""Codes in an int32."""
FIELDS = {
    "quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "modules_to_not_convert",
    "checkpoint_format", "format", "do_fuse", "modules_to_fuse", "fuse_max_seq_len", "exllama_config", "backend",
    "meta", "method", "pack_dtype", "sym",
}  # fmt: skip


@dataclass(frozen=True)
class Awq(PerLayer):
    """All linear layers and experts but some are four-bit integers; the output head is plain.

    Attributes:
        weight: how they are stored.
        excluded: parts of the paths of modules that are not quantized.
    """

    weight: StoredWeight
    excluded: tuple[str, ...]

    def configured(self, path: str) -> StoredWeight | None:
        names = path_variants(path)
        return None if path == HEAD or any(part in name for part in self.excluded for name in names) else self.weight


def read_awq(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    """Read a quantization_config of AutoAWQ.

    Args:
        config: config.json.

    Raises:
        ModelLoadError: a field is malformed or not supported; names it.
    """
    quantization = config["quantization_config"]
    check_fields(quantization, FIELDS, METHOD)
    bits = quantization.get("bits", quantization.get("w_bit"))
    if bits != 4:
        raise refused(f"bits {bits!r} is not supported for {METHOD}", "4 bits")
    for field in ("version", "checkpoint_format", "format"):
        if str(quantization.get(field) or "gemm").lower() != "gemm":
            raise refused(f"{field} {quantization[field]!r} is not supported for {METHOD}", "gemm")
    group = quantization.get("group_size", quantization.get("q_group_size", 128))
    share = group_share(group)
    weight = StoredWeight(
        "int4",
        Part("qweight", Units(WORD, 1), transposed=True, dtype="int32"),
        Part("scales", Units(1, share), transposed=True),
        Part("qzeros", Units(WORD, share), transposed=True, dtype="int32")
        if quantization.get("zero_point", True)
        else None,
        interleaved=True,
    )
    return Awq(tied_head(config), num_layers(config), weight, module_names(quantization, "modules_to_not_convert"))
