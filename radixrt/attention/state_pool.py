"""`StatePool`: the states of recurrent layers by slot (pymllm calls it GDNPool), and the number of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from radixrt.errors import ConfigError
from radixrt.forward_batch.state_rows import StateRows
from radixrt.messages.state_slots import RESERVED_STATES

MIN_CHECKPOINT_TOKENS, MAX_CHECKPOINT_TOKENS = 64, 2000
CHECKPOINT_SHARE = 20
"""Tokens of the KV pool for each state in the radix tree: so many that the keys and values take 20 times the memory of
the state, within these bounds. A state is what lets keys and values above it be reused, so there must be enough."""


@dataclass(frozen=True)
class StateShape:
    """State of a sequence in one recurrent layer, on this rank.

    Attributes:
        layer_id: index of the layer in the pool.
        channels, earlier: of the convolution; it sees `earlier` tokens before the current one.
        dtype: of the inputs of the convolution; that of activations.
        heads, v_dim, k_dim: of the matrices that a gated delta rule updates; 0 heads where there are none.
    """

    layer_id: int
    channels: int
    earlier: int
    dtype: torch.dtype
    heads: int = 0
    v_dim: int = 0
    k_dim: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of one slot."""
        return self.channels * self.earlier * self.dtype.itemsize + self.heads * self.v_dim * self.k_dim * 4


@dataclass(frozen=True)
class LayerStates:
    """States of one layer.

    Attributes:
        conv: [slots, channels, earlier], the last inputs of the convolution, oldest first.
        recurrent: float32 [slots, heads, v_dim, k_dim].
    """

    conv: torch.Tensor
    recurrent: torch.Tensor


class RecurrentLayer(Protocol):
    """Part of a recurrent layer that reads and writes states; an `AttentionBackend` calls it with the layer's pool.

    Attributes:
        state: the state's shape.
        mixed_features: columns of the result of `recur`.
    """

    state: StateShape
    mixed_features: int

    def recur(self, x: torch.Tensor, states: LayerStates, rows: StateRows) -> torch.Tensor:
        """Mix the tokens of each row: [T, n], the layer's input projection -> [T, mixed_features], in x's dtype."""


class StatePool:
    """The states of all recurrent layers. A slot has those of one sequence, after one of its tokens, in all layers.

    Slot 0 is all zeros and never written; slot 1 is scratch, see `StateRows`. A slot is written by steps alone, and
    never copied.

    Args:
        num_states: number of slots, both reserved ones included.
    """

    def __init__(self, shapes: Sequence[StateShape], num_states: int, device: torch.device) -> None:
        def pool(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            # Empty, not zeros, as for `KVCache`. The reserved slots are read before they are written.
            states = torch.empty(num_states, *shape, dtype=dtype, device=device)
            states[:RESERVED_STATES] = 0
            return states

        self.num_states = num_states
        self.layers = [
            LayerStates(
                conv=pool(shape.channels, shape.earlier, dtype=shape.dtype),
                recurrent=pool(shape.heads, shape.v_dim, shape.k_dim, dtype=torch.float32),
            )
            for shape in shapes
        ]


def bytes_per_state(shapes: Sequence[StateShape]) -> int:
    """Return the bytes of one slot in all layers."""
    return sum(shape.num_bytes for shape in shapes)


def size_states(
    *, wanted: int | None, free_bytes: int, state_bytes: int, token_bytes: int, kv_tokens: int | None,
    max_requests: int, context_length: int,
) -> int:  # fmt: skip
    """Return the number of slots, both reserved ones included.

    Each running request gets one. The rest of the memory is divided between states in the radix tree and keys and
    values; see `CHECKPOINT_SHARE`.

    Args:
        wanted: slots that the user configured; None to size the pool from memory.
        free_bytes: memory for states, keys and values.
        state_bytes, token_bytes: of a slot, and of the keys and values of a token.
        kv_tokens: tokens that the KV pool will hold, where the user configured it.
        max_requests: maximum number of requests that run at once.
        context_length: longest sequence of one request, in tokens.

    Raises:
        ConfigError: the states do not fit; the message names the options to change.
    """
    least, running = RESERVED_STATES + 1, RESERVED_STATES + max_requests
    if wanted is not None:
        number = wanted
    else:
        tokens = min(MAX_CHECKPOINT_TOKENS, max(MIN_CHECKPOINT_TOKENS, CHECKPOINT_SHARE * state_bytes // token_bytes))
        most = running + max(max_requests, (kv_tokens or max_requests * context_length) // tokens)
        if kv_tokens is not None:
            number = min(most, (free_bytes - kv_tokens * token_bytes) // state_bytes)
        else:
            rest = free_bytes - running * state_bytes
            # Where not even the requests' own states fit, fewer requests run at once.
            fitting = free_bytes // (2 * state_bytes) if rest <= 0 else rest // (state_bytes + tokens * token_bytes)
            number = min(most, fitting if rest <= 0 else running + fitting)
        number = max(least, number)
    if number < least or number * state_bytes > free_bytes:
        raise ConfigError(
            f"{number} recurrent states need {number * state_bytes / 2**30:.2f} GiB of the {free_bytes / 2**30:.2f} GiB"
            f" for states, keys and values; num_states must be at least {least} and fit: lower num_states or"
            " kv_cache_tokens, free memory or raise memory_fraction"
        )
    return number
