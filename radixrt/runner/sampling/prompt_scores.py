"""`PromptScorer`: log-probabilities of tokens that a step was given, for requests that want them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.messages.parts import LogprobColumns
from radixrt.messages.runner import ForwardStep, SamplingRow
from radixrt.messages.wire import unpack_i32
from radixrt.runner.sampling.logprobs import prompt_logprobs, target_logprobs


class PromptScorer:
    """compute_logits: from final hidden states [n, hidden] to float32 logits [n, vocab]."""

    def __init__(self, compute_logits: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._compute_logits = compute_logits
        self._alternatives: dict[int, int] = {}  # per prompt token, by req_pool_idx

    def write(self, row: SamplingRow) -> None:
        """A request's parameters."""
        self._alternatives[row.req_pool_idx] = row.prompt_logprobs

    def prompts(self, hidden: torch.Tensor, batch: ForwardBatch, step: ForwardStep) -> list[LogprobColumns]:
        """An entry for each of the step's logprob_rows. hidden: [T, hidden], of all new tokens."""
        columns = []
        targets = unpack_i32(step.logprob_targets)
        ends = np.cumsum(batch.extend_lens_cpu)
        idx = unpack_i32(step.req_pool_idx)
        taken = 0
        for row in unpack_i32(step.logprob_rows).tolist():
            new = int(batch.extend_lens_cpu[row])
            states = hidden[ends[row] - new : ends[row]]
            k = self._alternatives[int(idx[row])]
            columns.append(prompt_logprobs(self._compute_logits, states, targets[taken : taken + new], k))
            taken += new
        return columns

    def targets(self, hidden: torch.Tensor, step: ForwardStep) -> bytes:
        """float32 [Q] of the step's score_targets; empty if it has none."""
        if not step.score_index:
            return b""
        index, targets = unpack_i32(step.score_index), unpack_i32(step.score_targets)
        return target_logprobs(self._compute_logits, hidden, index, targets)
