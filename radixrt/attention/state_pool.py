"""`StatePool`: the states of recurrent layers by slot (pymllm calls it GDNPool)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from radixrt.forward_batch.state_rows import StateRows
from radixrt.messages.state_slots import RESERVED_STATES


@dataclass(frozen=True)
class StateShape:
    """State of a sequence in one recurrent layer, on this rank.

    Attributes:
        layer_id: index of the layer in the pool.
        channels, earlier: channels of the convolution, and number of tokens before the current token that the
            convolution sees.
        dtype: dtype of the convolution's inputs, the same as of activations.
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
    """The states of all recurrent layers. A slot has the states of all layers for one sequence, after one token of it.

    Slot 0 is all zeros and never written; slot 1 is scratch, see `StateRows`. A slot is written by steps, and by copies
    from tiers between steps (`radixrt.parts.tiers`).

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
