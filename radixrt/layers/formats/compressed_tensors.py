"""Checkpoints of compressed-tensors (llm-compressor): groups of modules, each with its own format. Imports no torch."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.checkpoint import ALL, Units
from radixrt.layers.formats.per_layer import (
    PerLayer,
    check_fields,
    module_names,
    num_layers,
    path_variants,
    refused,
    tied_head,
)
from radixrt.layers.formats.stored_weight import Part, StoredWeight

METHOD = "compressed-tensors"
FIELDS = {
    "quant_method", "format", "config_groups", "ignore", "kv_cache_scheme", "quantization_status",
    "global_compression_ratio", "version", "sparsity_config", "transform_config",
}  # fmt: skip
WEIGHT_FIELDS = {
    "num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "actorder", "dynamic", "observer",
    "observer_kwargs", "scale_dtype", "zp_dtype",
}  # fmt: skip
GROUP_FIELDS = {"targets", "weights", "input_activations", "output_activations", "format"}
OFFLINE = ("weight_input", "weight_output")
"""Places of transforms that the stored weights contain already."""
NEAREST = "pack-quantized (W4A16), float-quantized (FP8) or int-quantized (W8A8)"
LINEAR = "Linear"
PATTERN = "re:"


@dataclass(frozen=True)
class CompressedTensors(PerLayer):
    """Groups of modules, by the class "Linear", a path, or a pattern "re:..." of paths.

    Attributes:
        groups: the targets of each group, and how its weights are stored; None for a group of activations alone.
        ignore: modules that are not quantized, as targets.
    """

    groups: tuple[tuple[tuple[str, ...], StoredWeight | None], ...]
    ignore: tuple[str, ...]

    def configured(self, path: str) -> StoredWeight | None:
        names = path_variants(path)
        if any(_targets(self.ignore).matches(names)):
            return None
        # A path is more specific than a pattern, and a pattern than a class.
        matches = [(_targets(targets).matches(names), stored) for targets, stored in self.groups]
        return next((stored for kind in range(3) for found, stored in matches if found[kind]), None)


def read_compressed_tensors(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    """Read a quantization_config of compressed-tensors.

    Args:
        config: config.json.

    Raises:
        ModelLoadError: a field is missing, malformed or not supported; names it, and formats that are.
    """
    quantization = config["quantization_config"]
    check_fields(quantization, FIELDS, METHOD)
    _check_transforms(quantization)
    groups = quantization.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise refused(f"config_groups must describe groups of modules, not {groups!r}")
    found = tuple(_read_group(name, group, quantization.get("format")) for name, group in groups.items())
    return CompressedTensors(tied_head(config), num_layers(config), found, module_names(quantization, "ignore"))


def _check_transforms(quantization: Mapping[str, Any]) -> None:
    sparsity = quantization.get("sparsity_config") or {}
    if sparsity and sparsity.get("format") != "dense":
        raise refused(f"sparsity_config ({sparsity.get('format')}) is not supported", "a checkpoint without sparsity")
    transforms = (quantization.get("transform_config") or {}).get("config_groups") or {}
    for name, transform in transforms.items():
        for place in transform.get("apply") or ():
            if place.get("location") not in OFFLINE:
                raise refused(
                    f"transform_config: {name} rotates activations ({place.get('location')}), which is not supported",
                    "a checkpoint whose rotations are merged into its weights",
                )


def _read_group(name: str, group: Any, default_format: Any) -> tuple[tuple[str, ...], StoredWeight | None]:
    if not isinstance(group, Mapping):
        raise refused(f"config_groups: {name} must be an object, not {group!r}")
    if unknown := sorted(key for key, value in group.items() if value and key not in GROUP_FIELDS):
        raise refused(f"config_groups: {name}: {', '.join(unknown)} is not supported for {METHOD}")
    targets = module_names(group, "targets")
    for target in targets:
        if _kind(target) == "class" and target != LINEAR:
            raise refused(f"config_groups: {name}: targets of class {target} are not supported", LINEAR)
        if _kind(target) == "pattern":
            _compiled(target)
    weights = group.get("weights")
    if not weights:
        return targets, None
    if unknown := sorted(key for key, value in weights.items() if value and key not in WEIGHT_FIELDS):
        raise refused(f"config_groups: {name}: weights: {', '.join(unknown)} is not supported for {METHOD}")
    return targets, _stored(name, weights, str(group.get("format") or default_format))


def _stored(name: str, weights: Mapping[str, Any], kind: str) -> StoredWeight:
    bits, number, symmetric = weights.get("num_bits"), weights.get("type"), weights.get("symmetric", True)
    what = f"config_groups: {name}: {kind} with {'' if symmetric else 'asymmetric '}{number} weights of {bits} bits"
    if kind == "pack-quantized":
        if number == "int" and bits in (4, 8):
            return _packed(name, weights, bits, symmetric)
    elif kind in ("float-quantized", "int-quantized", "naive-quantized", "mxfp8-quantized"):
        kinds: dict[Any, str] = {("float", 8): "e4m3", ("int", 8): "int8"}
        numbers = kinds.get((number, bits)) if symmetric else None
        expected = {"int-quantized": "int8", "naive-quantized": numbers}.get(kind, "e4m3")
        if numbers is not None and numbers == expected:
            codes = Part("weight", Units(), dtype="float8_e4m3fn" if numbers == "e4m3" else "int8")
            exponents = kind == "mxfp8-quantized"
            scales = Part("weight_scale", _share(name, weights), dtype="uint8" if exponents else None)
            return StoredWeight("e4m3" if numbers == "e4m3" else "int8", codes, scales, exponents=exponents)
    elif kind in ("nvfp4-pack-quantized", "mxfp4-pack-quantized") and (number, bits) == ("float", 4) and symmetric:
        codes = Part("weight_packed", Units(1, 2), dtype="uint8")
        if kind == "mxfp4-pack-quantized":
            scales = Part("weight_scale", _share(name, weights), dtype="uint8")
            return StoredWeight("e2m1", codes, scales, exponents=True)
        scales, factor = Part("weight_scale", _share(name, weights)), Part("weight_global_scale", Units(None, None))
        return StoredWeight("e2m1", codes, scales, global_scale=factor, divides=True)
    raise refused(f"{what} is not supported", NEAREST)


def _packed(name: str, weights: Mapping[str, Any], bits: int, symmetric: bool) -> StoredWeight:
    share, words = _share(name, weights), 32 // bits
    zeros = order = None
    if not symmetric:
        if share.outputs != 1:
            raise refused(f"config_groups: {name}: asymmetric weights with one scale are not supported", NEAREST)
        zeros = Part("weight_zero_point", Units(words, share.inputs), dtype="int32")
    if weights.get("actorder") in ("group", "dynamic", True):
        order = Part("weight_g_idx", Units(None, 1), dtype="int32")
    codes, scales = Part("weight_packed", Units(1, words), dtype="int32"), Part("weight_scale", share)
    return StoredWeight("int4" if bits == 4 else "int8", codes, scales, zeros, order=order)


def _share(name: str, weights: Mapping[str, Any]) -> Units:
    """Return the outputs and inputs that share a scale."""
    strategy, size, block = weights.get("strategy"), weights.get("group_size"), weights.get("block_structure")
    if strategy is None:
        strategy = "tensor" if not size else "channel" if size == -1 else "group"
    if strategy == "tensor":
        return Units(ALL, None)
    if strategy == "channel":
        return Units(1, ALL)
    if strategy in ("group", "tensor_group"):
        if isinstance(size, int) and size > 0:
            return Units(1, size)
        raise refused(f"config_groups: {name}: weights: group_size must be a positive number, not {size!r}")
    if strategy == "block":
        sizes = block.split("x") if isinstance(block, str) else block
        if isinstance(sizes, list) and len(sizes) == 2 and all(str(each).isdecimal() and int(each) for each in sizes):
            return Units(int(sizes[0]), int(sizes[1]))
        raise refused(f"config_groups: {name}: weights: block_structure must be two numbers, not {block!r}")
    raise refused(f"config_groups: {name}: weights: strategy {strategy!r} is not supported", NEAREST)


def _kind(target: str) -> str:
    if target.startswith(PATTERN):
        return "pattern"
    # Names of classes begin with a capital letter and have no dots.
    return "class" if target[:1].isupper() and "." not in target else "path"


class _Targets(NamedTuple):
    paths: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    all_linear: bool

    def matches(self, names: Sequence[str]) -> tuple[bool, bool, bool]:
        """Return whether a linear layer of some names is among the paths, the patterns, and the class."""
        by_pattern = any(pattern.match(name) for pattern in self.patterns for name in names)
        return not self.paths.isdisjoint(names), by_pattern, self.all_linear


@functools.lru_cache(maxsize=64)
def _targets(targets: tuple[str, ...]) -> _Targets:
    patterns = tuple(_compiled(target) for target in targets if _kind(target) == "pattern")
    return _Targets(frozenset(targets), patterns, LINEAR in targets)


@functools.cache
def _compiled(target: str) -> re.Pattern[str]:
    try:
        return re.compile(target.removeprefix(PATTERN))
    except re.error as error:
        raise refused(f"{target!r} is no regular expression: {error}") from None
