"""`ExpertsSpec`: the fields of config.json about a mixture of experts. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import flag, positive_int

COUNT_KEYS = ("num_local_experts", "num_experts")
"""transformers writes the first since version 5.23; Qwen's own files have the second."""
READ_KEYS = {
    "MixtralForCausalLM": {*COUNT_KEYS, "num_experts_per_tok"},
    "Qwen3MoeForCausalLM": {
        *COUNT_KEYS, "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step",
    },
}  # fmt: skip
"""Fields about experts that are read, by architecture."""
TRAINING_KEYS = {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"}
"""Fields about experts that change nothing but training."""
about_experts = re.compile("expert|rout|moe|topk|sparse|scoring|n_group").search
"""Matches the names of fields about experts; one that is set, and is none of the above, is refused."""


@dataclass(frozen=True)
class ExpertsSpec:
    """Shape of the mixture of experts in the layers whose feed-forward is "moe".

    Attributes:
        num_experts: experts of a layer.
        top_k: experts that a token is routed to.
        intermediate_size: columns of each expert.
        renormalize: whether a token's routing weights are divided by their sum.
        module: the checkpoint's path of router and experts, in that of the decoder layer.
        projections: names of an expert's gate, up and down projection in the checkpoint.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    renormalize: bool
    module: str
    projections: tuple[str, str, str]


def parse_experts(
    architecture: str, config: Mapping[str, Any], layers: int
) -> tuple[ExpertsSpec | None, frozenset[int]]:
    """Return the mixture of experts, if there is one, and the indices of the layers that have it.

    Raises:
        ModelLoadError: a field is missing, malformed or not supported; the message names it.
    """
    if architecture not in READ_KEYS:
        return None, frozenset()
    known = READ_KEYS[architecture] | TRAINING_KEYS
    if unknown := sorted(key for key, value in config.items() if value and about_experts(key) and key not in known):
        raise ModelLoadError(f"config.json: {', '.join(unknown)} is not supported for {architecture}")
    indices = _layers_with_experts(architecture, config, layers)
    if not indices:
        return None, indices
    count, top_k = _num_experts(config), positive_int(config, "num_experts_per_tok")
    if top_k > count:
        raise ModelLoadError(f"config.json: num_experts_per_tok {top_k} exceeds the number of experts, {count}")
    if architecture == "MixtralForCausalLM":
        columns, module, projections = "intermediate_size", "block_sparse_moe", ("w1", "w3", "w2")
        renormalize = True
    else:
        columns, module, projections = "moe_intermediate_size", "mlp", ("gate_proj", "up_proj", "down_proj")
        renormalize = flag(config, "norm_topk_prob")
    return ExpertsSpec(count, top_k, positive_int(config, columns), renormalize, module, projections), indices


def _layers_with_experts(architecture: str, config: Mapping[str, Any], layers: int) -> frozenset[int]:
    if architecture == "MixtralForCausalLM":
        return frozenset(range(layers))
    step, dense = positive_int(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(i) is not int for i in dense):
        raise ModelLoadError(f"config.json: mlp_only_layers must list the indices of layers, not {dense!r}")
    return frozenset(range(step - 1, layers, step)) - set(dense)


def _num_experts(config: Mapping[str, Any]) -> int:
    counts = {positive_int(config, key) for key in COUNT_KEYS if config.get(key) is not None}
    if not counts:
        raise ModelLoadError(f"config.json: {COUNT_KEYS[1]} is missing")
    if len(counts) > 1:
        raise ModelLoadError(f"config.json: {' and '.join(COUNT_KEYS)} differ")
    return counts.pop()
