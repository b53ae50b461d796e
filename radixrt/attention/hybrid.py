"""`HybridAttnBackend`: the backend of models in which some layers attend and others keep a recurrent state."""

from __future__ import annotations

import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.state_pool import RecurrentLayer, StatePool
from radixrt.forward_batch.forward_batch import ForwardBatch


class StateBackend:
    """Gives recurrent layers their states. A step needs no plan, because its rows name the slots to read and write."""

    def __init__(self, pool: StatePool) -> None:
        self._pool = pool

    def mix(self, layer: RecurrentLayer, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """As `AttentionBackend.mix_states`."""
        if batch.states is None:
            raise ValueError("the step has no section of states, which a model with recurrent layers needs")
        return layer.recur(x, self._pool.layers[layer.state.layer_id], batch.states)


class HybridAttnBackend(AttentionBackend):
    """An attention backend for the layers with keys and values, and a `StateBackend` for the recurrent ones.

    Attributes:
        attention: the backend of attention layers.
    """

    def __init__(self, attention: AttentionBackend, pool: StatePool) -> None:
        self.attention, self._states = attention, StateBackend(pool)
        self.is_captured = attention.is_captured

    def prepare(self, batch: ForwardBatch) -> None:
        self.attention.prepare(batch)

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self.attention.pool(layer)

    def launch_all(self, req_to_token: torch.Tensor) -> None:
        self.attention.launch_all(req_to_token)

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        self.attention.store(layer, k, v, batch)

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.attention.attend(layer, q, k, v, batch, sinks)

    def mix_states(self, layer: RecurrentLayer, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        return self._states.mix(layer, x, batch)
