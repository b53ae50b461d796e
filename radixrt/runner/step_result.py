"""What the ModelRunner makes of a step: logits, then sampled tokens that may still be on their way to the host."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from radixrt.messages.parts import LogprobColumns
from radixrt.runner.sampling.logprobs import LogprobTensors


@dataclass(frozen=True)
class LogitsProcessorOutput:
    """What the model says about a step.

    Attributes:
        next_token_logits: float32 [S, vocab], for the step's sampling rows in order.
        hidden_states: [T, hidden], the final hidden state of every new token; for a narrowed batch of its rows alone.
    """

    next_token_logits: torch.Tensor
    hidden_states: torch.Tensor


@dataclass(frozen=True)
class SampleResult:
    """What a step sampled, S rows, on the logits' device.

    Attributes:
        token_ids: int64 [S]; 0 for a row that failed.
        best: float32 [S], each row's largest logit once biased, penalised and masked; not finite where a row failed.
        gathered: log-probabilities of the rows that asked, in order.
        num_alternatives: for each of those rows.
    """

    token_ids: torch.Tensor
    best: torch.Tensor
    gathered: LogprobTensors | None = None
    num_alternatives: tuple[int, ...] = ()

    @property
    def logprobs(self) -> list[LogprobColumns]:
        """One entry of one position for each row that asked, in order."""
        return [] if self.gathered is None else self.gathered.rows(self.num_alternatives)

    @property
    def row_errors(self) -> list[tuple[int, str]]:
        """(row, why) of the rows that have no token."""
        best = self.best.cpu().numpy()
        return [(i, _failure(float(best[i]))) for i in np.flatnonzero(~np.isfinite(best)).tolist()]

    def to_host(self) -> SampleResult:
        """A copy in host memory: underway, if from CUDA, and there once the stream has passed this point.

        It is pinned then, from torch's own cache of pinned blocks, as in `upload_together`.
        """
        return SampleResult(
            self.token_ids.to("cpu", non_blocking=True),
            self.best.to("cpu", non_blocking=True),
            None if self.gathered is None else self.gathered.to_host(),
            self.num_alternatives,
        )


@dataclass(frozen=True)
class SampledStep:
    """What a step leaves for the scheduler.

    Attributes:
        result: of the sampling rows, on the host or on its way there; None if there are none.
        copied: has happened when `result` is there; None: it is there.
        prompt_logprobs, scores: see `messages.StepOutput`.
    """

    result: SampleResult | None
    copied: torch.cuda.Event | None
    prompt_logprobs: list[LogprobColumns]
    scores: bytes

    @property
    def is_ready(self) -> bool:
        """Whether `result` can be read without waiting for the device."""
        return self.copied is None or bool(self.copied.query())  # type: ignore[no-untyped-call]

    def wait(self) -> SampleResult | None:
        """The result, once it is there."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.result


def _failure(best: float) -> str:
    if math.isnan(best):
        return "the model's logits hold NaN"
    if best > 0:
        return "the model's logits hold infinity"
    return "no token may be sampled: the grammar, min_tokens or the model's logits rule out all of them"
