"""`PoolSizes`: the numbers of KV slots and of state slots that fit into a rank's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from radixrt.attention.base import AttentionLayer
from radixrt.attention.cascade_costs import cascade_costs, kv_layer_bytes, query_size
from radixrt.attention.kv_cache import bytes_per_token, size_pool
from radixrt.attention.state_pool import bytes_per_state
from radixrt.distributed.parallel import TPGroup
from radixrt.mem_cache.state_sizes import size_states
from radixrt.messages.runner import CascadeCosts
from radixrt.models.registry import Model
from radixrt.runner.runner_config import RunnerConfig

UNBOUNDED = 2**62
"""Number of state slots that a rank without recurrent layers contributes to the minimum over ranks."""


@dataclass(frozen=True)
class PoolSizes:
    """Sizes of a rank's pools.

    Attributes:
        kv_slots: number of slots for keys and values, without the padding page.
        states: number of slots for recurrent states, with both reserved slots; 0 for a model without recurrent layers.
    """

    kv_slots: int
    states: int


def least_states(states: int, group: TPGroup) -> int:
    """Return the smallest number of state slots among ranks with recurrent layers; 0 if no rank has recurrent layers.
    Some pipeline stages may have none."""
    least = group.minimum(states or UNBOUNDED)
    return 0 if least == UNBOUNDED else least


def shared_costs(
    device: torch.device, layers: Sequence[AttentionLayer], dtype: torch.dtype, group: TPGroup
) -> CascadeCosts | None:
    """Return the costs of sharing prefixes among rows on this rank's device; None if a pipeline stage cannot share.

    Args:
        dtype: dtype of keys and values.
    """
    costs = cascade_costs(device.type, kv_layer_bytes(layers, dtype.itemsize), query_size(layers))
    return costs if group.minimum(costs is not None) else None


def bytes_in_flight(model: Model, max_tokens: int, stages: int) -> int:
    """Return the bytes of hidden states that are sent or received for other steps while a step is computed.

    Args:
        max_tokens: maximum number of new tokens of a step.
        stages: number of pipeline stages, and so of steps in flight.
    """
    between = (model.stage_input(1), model.stage_output(1))
    return sum(each.nbytes * max_tokens * (stages - 1) for each in between if each is not None)


def _bytes_for_kv(most_bytes: int, state_bytes: int) -> int:
    """Return the bound of keys and values that all states leave of a common bound; 0: no bound, for both."""
    return max(1, most_bytes - state_bytes) if most_bytes else 0


def size_pools(config: RunnerConfig, model: Model, free_bytes: int) -> PoolSizes:
    """Divide a rank's memory between recurrent states and the KV pool.

    Args:
        free_bytes: memory that the model and the largest step leave free.

    Raises:
        ConfigError: a configured size, or a single request, does not fit; the message names the options to change.
    """
    token_bytes = bytes_per_token(model.attention_layers, config.pool_dtype)
    states, state_bytes = 0, bytes_per_state(model.states)
    if model.states:
        states = size_states(
            wanted=config.num_states,
            free_bytes=int(free_bytes * config.memory_fraction) if config.kv_cache_tokens is None else free_bytes,
            state_bytes=state_bytes,
            token_bytes=token_bytes,
            kv_tokens=config.kv_cache_tokens,
            max_requests=config.max_running_requests,
            context_length=config.context_length,
            most_bytes=config.kv_cache_bytes,
        )
    kv_slots = size_pool(
        wanted=config.kv_cache_tokens,
        free_bytes=free_bytes,
        reserved_bytes=states * state_bytes,
        fraction=config.memory_fraction,
        token_bytes=token_bytes,
        page_size=config.page_size,
        max_requests=config.max_running_requests,
        context_length=config.context_length,
        most_bytes=_bytes_for_kv(config.kv_cache_bytes, states * state_bytes),
    )
    return PoolSizes(kv_slots, states)
