"""`ForwardBatch`: the tensors of one step, made once from a `ForwardStep` by the ModelRunner, then frozen."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import torch

from radixrt.attention.cascade import SharedGroups
from radixrt.messages import Int32Array


class ForwardMode(enum.IntEnum):
    """What a step does. A decode row may ride in an EXTEND step as one new token, so there is no mixed mode."""

    EXTEND = 1
    DECODE = 2
    IDLE = 3


@dataclass(frozen=True)
class ForwardBatch:
    """B rows and T new tokens (T == B in DECODE). Index tensors are int64 on the runner's device.

    Attributes:
        input_ids: [T].
        positions: [T], 0-based position of each new token in its sequence.
        req_pool_indices: [B], row of each sequence in req_to_token.
        seq_lens: [B], length of each sequence including its new tokens.
        out_cache_loc: [T], slots for the new keys and values.
        extend_lens: [B], new tokens of each row (all 1 in DECODE).
        prefix_lens: [B], seq_lens - extend_lens.
        logits_index: [S], which of the T positions need logits.
        req_to_token: int32 [max_requests + 1, max_context_len], the runner's mirror, current for this step.
        seq_lens_cpu, extend_lens_cpu: the same numbers as int32 numpy arrays, for planning on the host.
        shared: what decode rows have in common and should be read once; None if nothing.
    """

    mode: ForwardMode
    input_ids: torch.Tensor
    positions: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    extend_lens: torch.Tensor
    prefix_lens: torch.Tensor
    logits_index: torch.Tensor
    req_to_token: torch.Tensor
    seq_lens_cpu: Int32Array
    extend_lens_cpu: Int32Array
    shared: SharedGroups | None = None

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def max_seq_len(self) -> int:
        return int(np.max(self.seq_lens_cpu))
