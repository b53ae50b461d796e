"""Log-probabilities of tokens and of their best alternatives, in the columns that messages carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.messages.parts import LogprobColumns
from radixrt.messages.runner import ForwardStep, SamplingRow
from radixrt.messages.wire import Int32Array, pack_f32, pack_i32, unpack_i32
from radixrt.runner.sampling.sampling_tables import upload

FLOOR = -9999.0
"""Log-probability reported for a probability of 0 or NaN, because JSON has no infinities."""

SLICE_ROWS = 128
"""Positions of a prompt whose logits are in memory at once while it is scored (25 MB for a vocabulary of 49,152)."""

TIE_SLACK = 8
"""Alternatives examined beyond the requested ones, so that equal ones are selected by id, deterministically."""


@dataclass(frozen=True)
class LogprobTensors:
    """Log-probabilities of n tokens, on the device: float32 [n], and the alternatives, int64 and float32 [n, k]."""

    tokens: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor

    def to_host(self) -> LogprobTensors:
        """Return a copy in host memory; from CUDA the copy is asynchronous, in stream order."""
        tensors = (t.to("cpu", non_blocking=True) for t in (self.tokens, self.top_ids, self.top))
        return LogprobTensors(*tensors)

    def rows(self, ks: Sequence[int]) -> list[LogprobColumns]:
        """Return one message of one position for each of the n tokens, the i-th with its first ks[i] alternatives."""
        tokens, ids, top = _floored(self.tokens), self.top_ids.cpu().numpy(), _floored(self.top)
        return [
            LogprobColumns(pack_f32(tokens[i]), pack_i32(ids[i, :k]), pack_f32(top[i, :k]), k) for i, k in enumerate(ks)
        ]

    def columns(self) -> LogprobColumns:
        """Return one message of n positions."""
        tokens, ids, top = _floored(self.tokens), self.top_ids.cpu().numpy(), _floored(self.top)
        return LogprobColumns(pack_f32(tokens), pack_i32(ids), pack_f32(top), ids.shape[1])


def gather_logprobs(logprobs: torch.Tensor, token_ids: torch.Tensor, k: int) -> LogprobTensors:
    """Pick tokens and the k best alternatives out of normalized log-probabilities.

    Args:
        logprobs: float32 [n, vocab].
        token_ids: int64 [n].
        k: number of alternatives, best first and equal ones by id; at most the vocabulary.
    """
    tokens = logprobs.gather(1, token_ids[:, None])[:, 0]
    k = min(k, logprobs.shape[1])
    if k == 0:
        none = logprobs[:, :0]
        return LogprobTensors(tokens, none.long(), none)
    ids = logprobs.topk(min(k + TIE_SLACK, logprobs.shape[1])).indices.sort(-1).values
    top, order = logprobs.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return LogprobTensors(tokens, ids.gather(1, order)[:, :k], top[:, :k])


def prompt_logprobs(
    compute_logits: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, targets: Int32Array, k: int
) -> LogprobColumns:
    """Return the log-probabilities of prompt tokens in the model's own distribution. Waits for the device once.

    Logits are computed for SLICE_ROWS positions at a time, so those of a long chunk are never in memory at once.

    Args:
        compute_logits: maps hidden states [m, ...] to logits [m, vocab].
        hidden: [n, ...], hidden states of consecutive positions.
        targets: int32 [n], the next prompt token at each position; positions with -1 are excluded.
        k: alternatives per position.
    """
    known = np.flatnonzero(targets >= 0)
    if len(known) == 0:
        return LogprobColumns(b"", b"", b"", k)
    ids = upload(targets[known].astype(np.int64), hidden.device)
    if len(known) < len(targets):
        hidden = hidden.index_select(0, upload(known, hidden.device))
    scored = [
        gather_logprobs(compute_logits(states).log_softmax(-1, dtype=torch.float32), wanted, k)
        for states, wanted in zip(torch.split(hidden, SLICE_ROWS), torch.split(ids, SLICE_ROWS), strict=True)
    ]
    tokens = torch.cat([s.tokens for s in scored])
    top_ids, top = torch.cat([s.top_ids for s in scored]), torch.cat([s.top for s in scored])
    return LogprobTensors(tokens, top_ids, top).columns()


def target_logprobs(
    compute_logits: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, index: npt.NDArray[np.integer],
    targets: Int32Array,
) -> bytes:  # fmt: skip
    """Return the log-probabilities of given tokens at given positions. Waits for the device once.

    Args:
        compute_logits: as for `prompt_logprobs`; the logits of each position are computed once.
        hidden: [n, ...].
        index: integers [q], ascending, below n; a position may occur several times.
        targets: int32 [q], a token id for each.

    Returns:
        float32 [q] as bytes.
    """
    where, pair = np.unique(index, return_inverse=True)
    parts = []
    for start in range(0, len(where), SLICE_ROWS):
        rows = where[start : start + SLICE_ROWS]
        first, last = np.searchsorted(pair, [start, start + len(rows)])
        states = hidden.index_select(0, upload(rows.astype(np.int64), hidden.device))
        logprobs = compute_logits(states).log_softmax(-1, dtype=torch.float32)
        at = upload((pair[first:last] - start).astype(np.int64), hidden.device)
        parts.append(logprobs[at, upload(targets[first:last].astype(np.int64), hidden.device)])
    return pack_f32(_floored(torch.cat(parts)))


def _floored(values: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return the values on the host, with NaN and everything below FLOOR replaced by FLOOR."""
    return np.asarray(values.nan_to_num(FLOOR, 0.0, FLOOR).clamp_(min=FLOOR).cpu().numpy())


class PromptScorer:
    """Computes log-probabilities of a step's input tokens, for requests that ask for them.

    Args:
        compute_logits: maps final hidden states [n, hidden] to float32 logits [n, vocab].
    """

    def __init__(self, compute_logits: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._compute_logits = compute_logits
        self._alternatives: dict[int, int] = {}  # per prompt token, by req_pool_idx

    def write(self, row: SamplingRow) -> None:
        """Store a request's parameters."""
        self._alternatives[row.req_pool_idx] = row.prompt_logprobs

    def prompts(self, hidden: torch.Tensor, batch: ForwardBatch, step: ForwardStep) -> list[LogprobColumns]:
        """Return an entry for each of the step's logprob_rows, from `hidden` ([T, hidden]) of all new tokens."""
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

    def targets(self, hidden: torch.Tensor, step: ForwardStep, rows: npt.NDArray[np.int64]) -> bytes:
        """Return float32 [Q] as bytes, log-probabilities of the step's score_targets; empty if it has none.

        Args:
            rows: [Q], the row of `hidden` of each of the step's score_index.
        """
        if not step.score_index:
            return b""
        return target_logprobs(self._compute_logits, hidden, rows, unpack_i32(step.score_targets))
