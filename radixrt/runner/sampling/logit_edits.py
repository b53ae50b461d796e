"""What changes a row's logits before a token is chosen: bias, penalties, and stop tokens that are held back."""

from __future__ import annotations

import numpy as np
import torch

from radixrt.runner.sampling.row_ops import Needs, Rows, put, rows_with, take
from radixrt.runner.sampling.sampling_tables import BIAS, MIN_LEN, PENALTY, Index, SamplingTables, upload


def edit_logits(t: SamplingTables, logits: torch.Tensor, idx: Index, seq_lens: Index, needs: Needs, every: int) -> None:
    """Apply bias, penalties and held-back stop tokens, in place.

    Args:
        logits: float32 [S, vocab].
        idx: int [S], the rows' places in t.
        seq_lens: int [S], as for `Sampler.sample`.
        needs: uint8 [S], of t.
        every: what all rows need together.
    """
    biased = rows_with(needs, every, BIAS)
    if len(biased):
        entries = [t.bias(int(i)) for i in idx[biased]]
        ids, values = torch.cat([e[0] for e in entries]), torch.cat([e[1] for e in entries])
        at = (_repeat(biased, [len(e[0]) for e in entries], logits.device), ids)
        logits[at] = logits[at] + values
    penalised = rows_with(needs, every, PENALTY)
    if len(penalised):
        _penalise(t, logits, penalised, idx[penalised])
    held = rows_with(needs, every, MIN_LEN)
    held = held[seq_lens[held] < t.min_seq_len[idx[held]]]
    if len(held):
        stops = [t.stops(int(i)) for i in idx[held]]
        logits[_repeat(held, [len(s) for s in stops], logits.device), torch.cat(stops)] = logits.new_full(
            (), -torch.inf
        )  # a number would be copied to the device, and waited for


def _penalise(t: SamplingTables, logits: torch.Tensor, rows: Rows, idx: Index) -> None:
    """Repetition (CTRL, arXiv 1909.05858) over prompt and output, then frequency and presence over output."""
    counts = t.counts(idx)
    params = np.stack([t.repetition[idx], t.frequency[idx], t.presence[idx]]).astype(np.float32)
    repetition, frequency, presence = upload(params, logits.device)[:, :, None]
    if logits.is_cuda:
        put(logits, rows, _penalised(take(logits, rows), counts, repetition, frequency, presence))
        return
    # Few tokens have been seen, and on the CPU looking for them costs less than computing with all.
    flat = np.flatnonzero(counts.numpy().reshape(-1) != 0)
    row, token = torch.from_numpy(flat // t.vocab_size), torch.from_numpy(flat % t.vocab_size)
    at = (torch.from_numpy(rows)[row], token)
    logits[at] = _penalised(logits[at], counts[row, token], repetition[row, 0], frequency[row, 0], presence[row, 0])


def _penalised(
    x: torch.Tensor, counts: torch.Tensor, repetition: torch.Tensor, frequency: torch.Tensor, presence: torch.Tensor
) -> torch.Tensor:
    """Logits like x after the penalties; counts as in `SamplingTables.counts`."""
    x = torch.where(counts > 0, torch.where(x > 0, x / repetition, x * repetition), x)
    outputs = counts >> 1  # over ONE_OUTPUT: the lowest bit is IN_PROMPT
    return x - frequency * outputs - presence * (outputs > 0)


def _repeat(rows: Rows, counts: list[int], device: torch.device) -> torch.Tensor:
    return upload(np.repeat(rows, counts), device)
