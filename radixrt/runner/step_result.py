"""Results of a step: logits, and sampled tokens whose copy to the host may still be in flight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import StepInputs
from radixrt.messages.parts import LogprobColumns, ReadValues
from radixrt.messages.wire import Int32Array
from radixrt.runner.logprobs import LogprobTensors


@dataclass(frozen=True)
class LogitsProcessorOutput:
    """Output of the model for a step.

    Attributes:
        next_token_logits: float32 [S, vocab], of the step's sampling rows in order.
        hidden_states: [T, hidden], the final hidden states of all new tokens; [P, hidden] for a narrowed batch.
        tokens: int32, ascending, the new tokens of the first rows of hidden_states; None for all new tokens.
    """

    next_token_logits: torch.Tensor
    hidden_states: torch.Tensor
    tokens: Int32Array | None = None

    def rows(self, tokens: Int32Array) -> npt.NDArray[np.int64]:
        """Return the rows of hidden_states that belong to new tokens."""
        found = tokens if self.tokens is None else np.searchsorted(self.tokens, tokens)
        return found.astype(np.int64)


@dataclass(frozen=True)
class SampleResult:
    """Sampled tokens of a step's S sampling rows, on the logits' device.

    Attributes:
        token_ids: int64 [S]; 0 for a row that failed.
        best: float32 [S], each row's largest logit after bias, penalties and mask; not finite if the row failed.
        gathered: log-probabilities for the rows with requested log-probabilities, in row order.
        num_alternatives: number of alternatives of each of these rows.
    """

    token_ids: torch.Tensor
    best: torch.Tensor
    gathered: LogprobTensors | None = None
    num_alternatives: tuple[int, ...] = ()

    @property
    def logprobs(self) -> list[LogprobColumns]:
        """Log-probabilities of a single position for each row with requested log-probabilities, in row order."""
        return [] if self.gathered is None else self.gathered.rows(self.num_alternatives)

    @property
    def row_errors(self) -> list[tuple[int, str]]:
        """(row, reason) of the rows that have no token."""
        best = self.best.cpu().numpy()
        return [(i, _failure(float(best[i]))) for i in np.flatnonzero(~np.isfinite(best)).tolist()]

    def to_host(self) -> SampleResult:
        """Return a copy in host memory; from CUDA the copy is asynchronous, in stream order, into pinned memory.

        The pinned memory comes from torch's allocator, as in `upload_together`.
        """
        return SampleResult(
            self.token_ids.to("cpu", non_blocking=True),
            self.best.to("cpu", non_blocking=True),
            None if self.gathered is None else self.gathered.to_host(),
            self.num_alternatives,
        )


class StepValues(Protocol):
    """Values that a step's rows read, whose copy to the host may still be in flight."""

    def to_host(self) -> StepValues:
        """Return a copy in host memory; from CUDA the copy is asynchronous, in stream order."""
        ...

    def message(self) -> ReadValues:
        """Return the values as a message. The copy to the host must have ended."""
        ...


class ValueReader(Protocol):
    """Reads the values that a section of a step requests."""

    def of_step(self, sections: dict[str, bytes], output: LogitsProcessorOutput) -> StepValues | None:
        """Return the values that a step reads; None for a step without reads."""
        ...


class InputLostError(Exception):
    """An input of a step besides its tokens cannot be read.

    Args:
        number: see `StepFailed.lost_input`.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class InputReader(Protocol):
    """Computes the inputs besides tokens that a section of a step names.

    Attributes:
        flops_per_s: measured speed of the work; 0 if unknown.
    """

    flops_per_s: float

    def of_step(self, sections: dict[str, bytes], batches: BatchBuilder) -> StepInputs | None:
        """Return the inputs of a step's tokens, None for a step of tokens alone; `compute` does the work for them.

        Args:
            batches: owner of the rows' rotary offsets.
        """
        ...

    def compute(self) -> None:
        """Do the work that the last step asks for.

        Raises:
            InputLostError: an input cannot be read.
        """
        ...

    def reset(self) -> None:
        """Drop work that a step has begun and no later step will end: a new scheduler begins."""
        ...

    def measure(self) -> None:
        """Do the largest piece of work, so that its memory is counted and its kernels are loaded. On CUDA alone."""
        ...

    def idle_work(self) -> bool:
        """Do a piece of work that makes later steps faster, while there is no step; return False if none is left."""
        ...


@dataclass(frozen=True)
class SampledStep:
    """Answer of a step to the scheduler.

    Attributes:
        result: result of the sampling rows, in host memory or being copied there; None if there are none.
        copied: event after the copy of `result` and `values`; None if there is no copy to wait for.
        values: values that the step's rows read, in host memory or being copied there; None without values.
    """

    result: SampleResult | None
    copied: torch.cuda.Event | None
    values: StepValues | None = None

    @staticmethod
    def nothing() -> SampledStep:
        """Return the result of a rank that does not answer steps."""
        return SampledStep(None, None)

    @staticmethod
    def begin(result: SampleResult | None, values: StepValues | None, device: torch.device) -> SampledStep:
        """Return the answer, and begin to copy its tensors from the device to the host."""
        if device.type == "cpu" or (result is None and values is None):
            return SampledStep(result, None, values)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        result = None if result is None else result.to_host()
        values = None if values is None else values.to_host()
        copied.record()
        return SampledStep(result, copied, values)

    @property
    def is_ready(self) -> bool:
        """True if `result` and `values` can be read without waiting for the device."""
        return self.copied is None or bool(self.copied.query())  # type: ignore[no-untyped-call]

    def wait(self) -> SampleResult | None:
        """Wait for the copy and return the result."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.result


def _failure(best: float) -> str:
    if math.isnan(best):
        return "the model's logits hold NaN"
    if best > 0:
        return "the model's logits hold infinity"
    return "no token may be sampled: the grammar, min_tokens or the model's logits rule out all of them"
