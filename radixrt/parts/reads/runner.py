"""Runner end of reads: log-probabilities of targets and sums of hidden states, from a step's final hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixrt.layers.classification_head import ClassificationHead
from radixrt.messages.parts import LogprobColumns, ReadValues
from radixrt.messages.sections import READS, ReadSection, decode
from radixrt.messages.wire import Int32Array, pack_f32, unpack_i32
from radixrt.models.registry import Model
from radixrt.runner.logprobs import LogprobTensors, gather_logprobs
from radixrt.runner.sampling.sampling_tables import upload
from radixrt.runner.step_result import LogitsProcessorOutput

SLICE_ROWS = 128
"""Positions whose logits are in memory at once while they are scored (25 MB for a vocabulary of 49,152)."""


@dataclass(frozen=True)
class StepValues:
    """Values of one step, whose copy to the host may still be in flight.

    Attributes:
        logprobs: an entry for each row that scores tokens, in row order.
        hidden: float32 [m, hidden size or labels], a line for each span; None without spans.
    """

    logprobs: list[LogprobColumns]
    hidden: torch.Tensor | None

    def to_host(self) -> StepValues:
        """Return a copy in host memory; from CUDA the copy is asynchronous, in stream order."""
        return StepValues(self.logprobs, None if self.hidden is None else self.hidden.to("cpu", non_blocking=True))

    def message(self) -> ReadValues:
        """Return the values as a message. The copy to the host must have ended."""
        return ReadValues(self.logprobs, b"" if self.hidden is None else pack_f32(self.hidden.numpy()))


class StepReader:
    """Reads a step's values.

    Args:
        compute_logits: maps final hidden states [n, hidden] to float32 logits [n, vocab].
        head: maps sums of hidden states to float32 [m, labels]; None to return the sums.
    """

    def __init__(
        self, compute_logits: Callable[[torch.Tensor], torch.Tensor], head: ClassificationHead | None = None
    ) -> None:
        self._compute_logits = compute_logits
        self._head = head

    @staticmethod
    def of(model: Model) -> StepReader:
        """Create the reader of a loaded model."""
        return StepReader(model.compute_logits, model.classifier)

    def of_step(self, sections: dict[str, bytes], output: LogitsProcessorOutput) -> StepValues | None:
        """Return the values that a step reads; None for a step without reads. See `read`."""
        section = decode(sections, READS, ReadSection)
        return None if section is None else self.read(output, section)

    def read(self, output: LogitsProcessorOutput, section: ReadSection) -> StepValues:
        """Read the section's values; waits for the device if it scores tokens."""
        hidden = output.hidden_states
        logprobs = []
        if section.index:
            counts = [(int(count), int(top)) for count, top in unpack_i32(section.counts).reshape(-1, 2)]
            scored = target_logprobs(
                self._compute_logits,
                hidden,
                output.rows(unpack_i32(section.index)),
                unpack_i32(section.targets),
                max(top for _, top in counts),
            )
            logprobs = scored.columns(counts)
        return StepValues(logprobs, self._sums(output, section.spans) if section.spans else None)

    def _sums(self, output: LogitsProcessorOutput, spans: bytes) -> torch.Tensor:
        """Return float32 [m, hidden size or labels], the sums of hidden states over (first, count) spans."""
        hidden = output.hidden_states
        first, counts = unpack_i32(spans).reshape(-1, 2).T
        sums = hidden.index_select(0, upload(output.rows(first), hidden.device)).float()
        # A batch with a span of several tokens is never narrowed, so the hidden states have a row for each token.
        for i in np.flatnonzero(counts > 1).tolist():
            at = int(first[i])
            sums[i] = hidden[at : at + int(counts[i])].sum(0, dtype=torch.float32)
        return sums if self._head is None else self._head(sums)


def target_logprobs(
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    index: npt.NDArray[np.integer],
    targets: Int32Array,
    top: int = 0,
) -> LogprobTensors:
    """Return the log-probabilities of given tokens at given positions, in the model's own distribution.

    Logits are computed for SLICE_ROWS positions at a time, so that the logits of a long chunk are never in memory at
    once. A position with several targets is computed once.

    Args:
        compute_logits: see `StepReader`.
        hidden: [n, hidden].
        index: integers [q], ascending, below n; a position may occur several times.
        targets: int32 [q], a token id for each.
        top: number of most probable tokens that are returned with each target.
    """
    where, pair = np.unique(index, return_inverse=True)
    parts = []
    for start in range(0, len(where), SLICE_ROWS):
        rows = where[start : start + SLICE_ROWS]
        first, last = np.searchsorted(pair, [start, start + len(rows)])
        # Consecutive positions, as of a prompt that is scored whole, need no copy of their hidden states.
        if rows[-1] - rows[0] == len(rows) - 1:
            states = hidden[int(rows[0]) : int(rows[-1]) + 1]
        else:
            states = hidden.index_select(0, upload(rows.astype(np.int64), hidden.device))
        logprobs = compute_logits(states).log_softmax(-1, dtype=torch.float32)
        at = upload((pair[first:last] - start).astype(np.int64), hidden.device)
        wanted = upload(targets[first:last].astype(np.int64), hidden.device)
        if top == 0:  # several targets of a position share its row
            tokens = logprobs[at, wanted]
            nothing = logprobs.new_empty(len(at), 0)
            parts.append(LogprobTensors(tokens, nothing.long(), nothing))
        else:
            lines = logprobs if len(at) == len(rows) else logprobs[at]
            parts.append(gather_logprobs(lines, wanted, top))
    return LogprobTensors(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.top_ids for part in parts]),
        torch.cat([part.top for part in parts]),
    )
