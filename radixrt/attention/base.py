"""The seam between models and attention: what a layer needs to say, and the two verbs that a backend answers to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from radixrt.batch.forward_batch import ForwardBatch


@dataclass(frozen=True)
class AttentionLayer:
    """What makes one layer's attention: its place in the KV pool and its shape on this rank.

    sliding_window is how many positions a query sees, itself included; None for all of them.
    """

    layer_id: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None = None


class AttentionBackend(ABC):
    """Causal attention over the paged KV pool, which the backend writes and reads. One instance serves all layers."""

    @abstractmethod
    def prepare(self, batch: ForwardBatch) -> None:
        """Plan the step. Called once a step, before any layer, with the batch that `attend` will get."""

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The layer's keys and values by slot, [slots, num_kv_heads, head_dim] each, if its caller may store into them
        before it calls `attend`; None if `attend` stores."""
        return None

    @abstractmethod
    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Store k and v at batch.out_cache_loc, then attend each query to its sequence up to its own position.

        Args:
            q: [T, num_heads, head_dim], rotary embedding applied.
            k, v: [T, num_kv_heads, head_dim]; None, never where `pool` is None, if they have been stored already.

        Returns:
            [T, num_heads * head_dim], contiguous, in q's dtype.
        """
