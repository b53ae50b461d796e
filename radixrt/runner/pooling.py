"""Pooling of the final hidden states that a step returns."""

from __future__ import annotations

import numpy as np
import torch

from radixrt.layers.classification_head import ClassificationHead
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import unpack_i32
from radixrt.runner.sampling.sampling_tables import upload
from radixrt.runner.step_result import LogitsProcessorOutput


def pool(
    output: LogitsProcessorOutput, step: ForwardStep, head: ClassificationHead | None = None
) -> torch.Tensor | None:
    """Return float32 [Q, hidden size], the sums over the step's pool_spans; None if it has none.

    Args:
        head: the result is its output for the sums, float32 [Q, labels].
    """
    if not step.pool_spans:
        return None
    hidden = output.hidden_states
    first, counts = unpack_i32(step.pool_spans).reshape(-1, 2).T
    pooled = hidden.index_select(0, upload(output.rows(first), hidden.device)).float()
    for i in np.flatnonzero(counts > 1).tolist():
        at = int(first[i])
        pooled[i] = hidden[at : at + int(counts[i])].sum(0, dtype=torch.float32)
    return pooled if head is None else head(pooled)
