"""The number of state slots, from memory or as configured, and the reserved ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixrt.attention.state_pool import StatePool, StateShape, bytes_per_state
from radixrt.errors import ConfigError
from radixrt.mem_cache.state_sizes import size_states

MATRICES: dict[str, Any] = {  # a state weighs as much as 1,500 tokens
    "wanted": None, "free_bytes": 10**9, "state_bytes": 150_000, "token_bytes": 100, "kv_tokens": None,
    "max_requests": 10, "context_length": 10**6,
}  # fmt: skip
CONVOLUTIONS = {**MATRICES, "state_bytes": 400}


def test_memory_is_divided_between_states_and_tokens() -> None:
    number = size_states(**MATRICES)
    left = MATRICES["free_bytes"] - number * MATRICES["state_bytes"]
    assert left // 100 // (number - 12) == 2000, "tokens for each state beyond those of requests"
    number = size_states(**CONVOLUTIONS)
    left = CONVOLUTIONS["free_bytes"] - number * CONVOLUTIONS["state_bytes"]
    assert left // 100 // (number - 12) == 80, "light states take a twentieth of the memory"


def test_no_more_states_than_are_useful() -> None:
    assert size_states(**{**MATRICES, "context_length": 50}) == 22, "twice as many as requests, and the reserved ones"
    assert size_states(**{**MATRICES, "kv_tokens": 100_000}) == 12 + 50
    assert size_states(**{**MATRICES, "kv_tokens": 9_000_000}) == 100_000_000 // 150_000, "what configured tokens leave"


def test_little_memory_bounds_running_requests_rather_than_refusing() -> None:
    assert size_states(**{**MATRICES, "free_bytes": 1_200_000}) == 4, "half of the memory is left for keys and values"
    assert size_states(**{**MATRICES, "free_bytes": 500_000}) == 3
    with pytest.raises(ConfigError, match=r"num_states must be at least 3"):
        size_states(**{**MATRICES, "free_bytes": 400_000})


def test_a_bound_of_states_and_tokens() -> None:
    bounded = size_states(**{**MATRICES, "most_bytes": 10**8})
    assert bounded == size_states(**{**MATRICES, "free_bytes": 10**8}), "divided as so much memory is"
    assert size_states(**{**MATRICES, "most_bytes": 2_000_000}) == 6, "half of the bound, though all requests fit"
    assert size_states(**{**MATRICES, "most_bytes": 1}) == 3, "a single request fits beyond the bound"
    assert size_states(**{**MATRICES, "kv_tokens": 100_000, "most_bytes": 2_000_000}) == 6
    assert size_states(**{**MATRICES, "wanted": 100, "most_bytes": 2_000_000}) == 100, "a configured number"


def test_a_configured_number_must_fit() -> None:
    assert size_states(**{**MATRICES, "wanted": 7}) == 7
    with pytest.raises(ConfigError, match="7000 recurrent states need"):
        size_states(**{**MATRICES, "wanted": 7000})
    with pytest.raises(ConfigError, match="at least 3"):
        size_states(**{**MATRICES, "wanted": 2})


def test_reserved_slots_are_zero() -> None:
    shapes = [StateShape(0, 6, 3, torch.bfloat16, 2, 4, 8), StateShape(1, 6, 3, torch.bfloat16)]
    pool = StatePool(shapes, 5, torch.device("cpu"))
    assert (
        bytes_per_state(shapes)
        == sum(each.nbytes for layer in pool.layers for each in (layer.conv, layer.recurrent)) // 5
    )
    for layer in pool.layers:
        assert not layer.conv[:2].any()
        assert not layer.recurrent[:2].any()
