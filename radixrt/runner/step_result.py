"""What the ModelRunner makes of a step: logits, then sampled tokens that may still be on their way to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixrt.messages.parts import LogprobColumns
from radixrt.runner.sampling.sample_result import SampleResult


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
