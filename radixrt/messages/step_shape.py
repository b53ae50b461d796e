"""`StepShape`: amount of work of a step, from which `StepTimes` predicts the time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import unpack_i32


class StepShape(NamedTuple):
    """Amount of work of one step, as `StepTimes.seconds` takes it.

    Attributes:
        rows: number of rows with one new token behind earlier tokens.
        context: sum of the lengths of these rows, new tokens included.
        tokens: number of new tokens in prompt chunks.
        pairs: sum over the tokens of prompt chunks of the number of positions that the token attends to.
    """

    rows: int
    context: int
    tokens: int = 0
    pairs: float = 0.0


def step_shape(step: ForwardStep) -> StepShape:
    """Return the amount of work of a step."""
    lengths = unpack_i32(step.seq_lens)
    if not step.extend_lens:  # a DECODE step
        return StepShape(len(lengths), int(lengths.sum()))
    new = unpack_i32(step.extend_lens)
    single = (new == 1) & (lengths > 1)
    chunks, ends = new[~single].astype(np.float64), lengths[~single]
    pairs = float((chunks * (ends - (chunks - 1) / 2)).sum())
    return StepShape(int(single.sum()), int(lengths[single].sum()), int(chunks.sum()), pairs)
