"""`ExpertsSpec`: the fields of config.json about a mixture of experts. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.layers.swiglu import ClampedSwiGLU
from radixrt.models.config_fields import flag, positive_int

COUNT_KEYS = ("num_local_experts", "num_experts")
"""transformers writes the first since version 5.23; Qwen's own files have the second."""
SHARED_KEY = "shared_expert_intermediate_size"
ROUTING_KEYS = frozenset({*COUNT_KEYS, "num_experts_per_tok"})
"""Fields that every architecture with experts has."""
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
        shared_intermediate_size: columns of the expert that every token is routed to, weighted by the sigmoid of its
            own gate; 0 where there is none.
        router: name of the router in `module`.
        swiglu: clamped gate of experts that, as their router, have biases, and whose weights are in two stacked tensors
            with the columns of gate and up in turn; None for SiLU-gated experts without biases.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    renormalize: bool
    module: str
    projections: tuple[str, str, str]
    shared_intermediate_size: int = 0
    router: str = "gate"
    swiglu: ClampedSwiGLU | None = None

    @property
    def num_shared(self) -> int:
        """Experts of `intermediate_size` columns as which the shared expert is computed, the last one padded."""
        return -(-self.shared_intermediate_size // self.intermediate_size)

    @property
    def num_linear_parameters(self) -> int:
        """Parameters of a layer's router and experts for each column of the hidden state, those of padding included."""
        experts = self.num_experts + self.num_shared
        return self.num_experts + bool(self.num_shared) + experts * 3 * self.intermediate_size


def parse_experts(
    config: Mapping[str, Any],
    architecture: str,
    keys: Set[str],
    *,
    columns: str = "moe_intermediate_size",
    module: str = "mlp",
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    router: str = "gate",
    swiglu: ClampedSwiGLU | None = None,
) -> tuple[ExpertsSpec | None, frozenset[int]]:
    """Return the mixture of experts, if a layer has it, and the indices of the layers that have it.

    Args:
        keys: fields about experts that the architecture reads; another one that is set is refused. Without
            `decoder_sparse_step` every layer has experts, and without `norm_topk_prob` weights are always divided by
            their sum.
        columns: the field with the columns of an expert.
        module, projections, router, swiglu: of `ExpertsSpec`.

    Raises:
        ModelLoadError: a field is missing, malformed or not supported; the message names it.
    """
    known = keys | TRAINING_KEYS
    if unknown := sorted(key for key, value in config.items() if value and about_experts(key) and key not in known):
        raise ModelLoadError(f"config.json: {', '.join(unknown)} is not supported for {architecture}")
    indices = _layers_with_experts(config, keys)
    if not indices:
        return None, indices
    count, top_k = _num_experts(config), positive_int(config, "num_experts_per_tok")
    if top_k > count:
        raise ModelLoadError(f"config.json: num_experts_per_tok {top_k} exceeds the number of experts, {count}")
    # Absent fields have the default of the architecture's configuration class in transformers.
    renormalize = "norm_topk_prob" not in keys or flag(config, "norm_topk_prob", SHARED_KEY in keys)
    shared = positive_int(config, SHARED_KEY) if SHARED_KEY in keys else 0
    spec = ExpertsSpec(
        count, top_k, positive_int(config, columns), renormalize, module, projections, shared, router, swiglu
    )
    return spec, indices


def _layers_with_experts(config: Mapping[str, Any], keys: Set[str]) -> frozenset[int]:
    layers = positive_int(config, "num_hidden_layers")
    if "decoder_sparse_step" not in keys:
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
