"""`PoolSizes`: the numbers of KV slots and of state slots that fit into a rank's memory."""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.attention.kv_cache import bytes_per_token, size_pool
from radixrt.attention.state_pool import bytes_per_state
from radixrt.mem_cache.state_sizes import size_states
from radixrt.models.registry import Model
from radixrt.runner.runner_config import RunnerConfig


@dataclass(frozen=True)
class PoolSizes:
    """Attributes:
    kv_slots: slots for keys and values, those of the padding page not counted.
    states: slots for recurrent states, both reserved ones included; 0 for a model without recurrent layers.
    """

    kv_slots: int
    states: int


def size_pools(config: RunnerConfig, model: Model, free_bytes: int) -> PoolSizes:
    """Divide a rank's memory between recurrent states and the KV pool.

    Args:
        free_bytes: memory that is free beside the model and the largest step.

    Raises:
        ConfigError: a configured size does not fit, or one request does not; the message names the options to change.
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
    )
    return PoolSizes(kv_slots, states)
