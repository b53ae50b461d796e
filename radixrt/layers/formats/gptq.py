"""Checkpoints of GPTQ: integers of four or eight bits in groups, packed along the inputs. Imports no torch."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.checkpoint import ALL, Units
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

METHOD = "gptq"
FORMATS = ("gptq", "gptq_v2")
INERT = {
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment",
    "damp_percent", "dataset", "exllama_config", "max_input_length", "meta", "method", "model_file_base_name",
    "model_name_or_path", "model_seqlen", "module_name_preceding_first_block", "modules_in_block_to_quantize", "mse",
    "offload_to_disk", "pad_token_id", "static_groups", "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
}  # fmt: skip
"""Fields that tell how weights were quantized, and fields for other programs' kernels."""
FIELDS = {
    "quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "dynamic", "lm_head",
    "pack_dtype", "modules_to_not_convert", *INERT,
}  # fmt: skip
RULE_FIELDS = ("bits", "group_size", "desc_act", "sym")


@dataclass(frozen=True)
class Gptq(PerLayer):
    """All linear layers and experts are integers, but where a rule says something else of them.

    Attributes:
        weight: how they are stored.
        rules: expressions of paths, and how these are stored, None for plain; the first that matches holds.
        excluded: parts of the paths of modules that are not quantized.
        head: whether the output head is quantized.
    """

    weight: StoredWeight
    rules: tuple[tuple[str, StoredWeight | None], ...]
    excluded: tuple[str, ...]
    head: bool

    def configured(self, path: str) -> StoredWeight | None:
        names = path_variants(path)
        for pattern, stored in self.rules:
            if any(_compiled(pattern).match(name) for name in names):
                return stored
        if (path == HEAD and not self.head) or any(part in name for part in self.excluded for name in names):
            return None
        return self.weight

    def ignored(self, name: str) -> bool:
        # Old versions of AutoGPTQ gave each layer a bias. The loader compares ignored biases with zero.
        return super().ignored(name) or name.endswith(".bias")


def read_gptq(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    """Read a quantization_config of AutoGPTQ or GPTQModel.

    Args:
        config: config.json.

    Raises:
        ModelLoadError: a field is malformed or not supported; names it.
    """
    quantization = config["quantization_config"]
    check_fields(quantization, FIELDS, METHOD)
    kind = quantization.get("checkpoint_format") or quantization.get("format") or "gptq"
    if kind not in FORMATS:
        raise refused(f"checkpoint_format {kind!r} is not supported", "gptq or gptq_v2")
    if quantization.get("pack_dtype", "int32") != "int32":
        raise refused(f"pack_dtype {quantization['pack_dtype']!r} is not supported", "int32")
    dynamic = quantization.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise refused(f"dynamic must give rules by expressions of modules, not {dynamic!r}")
    rules: list[tuple[str, StoredWeight | None]] = []
    for pattern, changes in dynamic.items():
        expression = pattern.removeprefix("-:").removeprefix("+:")
        _compiled(expression)
        if pattern.startswith("-:"):
            rules.append((expression, None))
        elif isinstance(changes, Mapping) and not set(changes) - {*RULE_FIELDS, *INERT}:
            rules.append((expression, _stored({**quantization, **changes}, kind)))
        else:
            raise refused(f"dynamic: {pattern}: only {', '.join(RULE_FIELDS)} can be given, not {changes!r}")
    return Gptq(
        tied_head(config),
        num_layers(config),
        _stored(quantization, kind),
        tuple(rules),
        module_names(quantization, "modules_to_not_convert"),
        bool(quantization.get("lm_head")),
    )


def _stored(fields: Mapping[str, Any], kind: str) -> StoredWeight:
    bits, group = fields.get("bits"), fields.get("group_size", -1)
    if bits not in (4, 8):
        raise refused(f"bits {bits!r} is not supported for {METHOD}", "4 or 8 bits")
    share, words = group_share(group), 32 // bits
    ordered = bool(fields.get("desc_act")) and share != ALL
    return StoredWeight(
        "int4" if bits == 4 else "int8",
        Part("qweight", Units(1, words), transposed=True, dtype="int32"),
        Part("scales", Units(1, share), transposed=True),
        None if fields.get("sym", True) else Part("qzeros", Units(words, share), transposed=True, dtype="int32"),
        zeros_less_one=kind == "gptq",
        order=Part("g_idx", Units(None, 1), dtype="int32") if ordered else None,
    )


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise refused(f"dynamic: {pattern!r} is no regular expression: {error}") from None
