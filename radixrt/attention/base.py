"""Interface between models and attention: `AttentionLayer` describes a layer, `AttentionBackend` computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from radixrt.attention.state_pool import RecurrentLayer
from radixrt.forward_batch.forward_batch import ForwardBatch


@dataclass(frozen=True)
class AttentionLayer:
    """The attention of a layer: index of the layer in the KV pool, and shape on this rank.

    sliding_window is the number of positions that a query sees, including its own; None for all of them. has_sinks says
    whether `attend` is called with sinks.
    """

    layer_id: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None = None
    has_sinks: bool = False


class AttentionBackend(ABC):
    """Causal attention over the paged KV pool, which the backend writes and reads. One instance serves all layers.

    Attributes:
        is_captured: CUDA graphs of steps can be made around it.
    """

    is_captured = False

    @abstractmethod
    def prepare(self, batch: ForwardBatch) -> None:
        """Plan each of `batch.attended`. Called once a step, before any layer."""

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the layer's keys and values by slot, [slots, num_kv_heads, head_dim] each, if the caller may store
        into them before it calls `attend`; None if the backend stores them itself."""
        return None

    def launch_all(self, req_to_token: torch.Tensor) -> None:
        """Launch every Triton kernel of the backend once with each kind of arguments that steps have, on the padding
        slot. The default is a backend without such kernels."""
        return

    @abstractmethod
    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        """Store k and v [T, num_kv_heads, head_dim] at batch.out_cache_loc, for callers that have not stored into
        `pool`."""

    @abstractmethod
    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`store` k and v, then attend each query to its sequence up to its own position.

        Args:
            q: [T, num_heads, head_dim], rotary embedding applied; like k and v, in the dtype of activations, which may
                differ from the pool's.
            k, v: [T, num_kv_heads, head_dim]; None if the caller has stored them into `pool` or by `store`. After
                `store`, only the narrowed batch can be attended to.
            batch: one of the `attended` batches of the step that `prepare` was called for.
            sinks: float32 [num_heads], for each query head the score of one more key, which every query sees and which
                has no value: exp(sink) is added to the denominator of the softmax. None for none.

        Returns:
            [T, num_heads * head_dim], contiguous, in q's dtype.
        """

    def mix_states(self, layer: RecurrentLayer, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Let a recurrent layer mix the tokens of each row, from and to the states that `batch.states` names.

        Args:
            x: [T, n], the layer's input projection.

        Returns:
            [T, layer.mixed_features], in x's dtype.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps no states; HybridAttnBackend does")
