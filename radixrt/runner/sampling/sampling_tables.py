"""`SamplingTables`: the sampling parameters of every running request, by req_pool_idx, and their token counts.

What decides *which* operations a step needs lies on the host as numpy columns, so choosing never waits for the device.
What an operation reads lies on the device: a row's logit bias and stop ids, and one count row per penalised request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixrt.forward_batch.upload import layout, pack, view
from radixrt.messages.runner import SamplingRow
from radixrt.messages.wire import Int32Array, unpack_i32

DRAW = 1
TOP_K = 2
TOP_P = 4
MIN_P = 8
BIAS = 16
PENALTY = 32
MIN_LEN = 64
LOGPROBS = 128
"""Bits of `SamplingTables.needs`. A row without DRAW is greedy, and then has no TOP_K, TOP_P or MIN_P either."""

MIN_TEMPERATURE = 1e-6
"""Lower temperatures are raised to this, where only tokens whose logits are equal share the draw."""

IN_PROMPT = 1
ONE_OUTPUT = 2
"""A count row holds ONE_OUTPUT for each time a token was generated, plus IN_PROMPT if the prompt holds it."""

Index = npt.NDArray[np.integer]
Rows = npt.NDArray[np.int64]
Needs = npt.NDArray[np.uint8]
NO_ROWS: Rows = np.zeros(0, np.int64)


def upload(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array as a tensor on the device, shared on the CPU. To CUDA it goes by pinned memory, so nobody waits."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def upload_together(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """As `upload`, several contiguous arrays in one copy; each starts at a multiple of 16 bytes.

    The pinned memory is torch's: it keeps freed blocks, and gives one out again once the event behind its last copy has
    passed. So as many buffers go round as copies are under way, and nobody waits for one.
    """
    if device.type == "cpu":
        return [torch.from_numpy(np.require(array, requirements="W")) for array in arrays]
    offsets, size = layout(arrays)
    staged = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pack(staged, arrays, offsets)
    there = staged.to(device, non_blocking=True)
    return [view(there, offset, array) for offset, array in zip(offsets, arrays, strict=True)]


def rows_with(needs: Needs, every: int, bits: int) -> Rows:
    """The rows that need any of these operations; every is what all rows need together."""
    return np.flatnonzero(needs & bits) if every & bits else NO_ROWS


def take(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """values[rows] for distinct ascending rows; values itself, not a copy, when those are all of them."""
    if len(rows) == len(values):
        return values
    return values.index_select(0, upload(rows, values.device))


def put(values: torch.Tensor, rows: Rows, part: torch.Tensor) -> None:
    """values[rows] = part, for rows as in `take`; nothing to do for what `take` gave when it is values itself."""
    if len(rows) < len(values):
        values.index_copy_(0, upload(rows, values.device), part)
    elif part is not values:
        values.copy_(part)


class SamplingTables:
    """Parameters by req_pool_idx. `write` replaces everything about one request; row 0 is padding and greedy.

    Attributes:
        needs: uint8 [max_requests + 1], the operations a row needs; 0 is plain greedy.
        temperature, top_p, min_p: float64, temperature at least MIN_TEMPERATURE where the row draws.
        top_k: int64, vocab_size where it is off.
        repetition, frequency, presence: float64.
        seed, min_seq_len: int64.
        logprobs: int32, alternatives per output token, -1 for none.
    """

    def __init__(self, max_requests: int, vocab_size: int, device: torch.device | str) -> None:
        n = max_requests + 1
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.needs = np.zeros(n, np.uint8)
        self.temperature = np.ones(n)
        self.top_p = np.ones(n)
        self.min_p = np.zeros(n)
        self.top_k = np.full(n, vocab_size, np.int64)
        self.repetition = np.ones(n)
        self.frequency = np.zeros(n)
        self.presence = np.zeros(n)
        self.seed = np.zeros(n, np.int64)
        self.min_seq_len = np.zeros(n, np.int64)
        self.logprobs = np.full(n, -1, np.int32)
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._stops: dict[int, torch.Tensor] = {}
        self._counts = CountRows(n, vocab_size, self.device)

    @torch.inference_mode()
    def write(self, row: SamplingRow) -> None:
        """Replace everything about row.req_pool_idx. Token ids outside the vocabulary are ignored."""
        i = row.req_pool_idx
        draws = row.temperature > 0.0
        penalised = (row.repetition_penalty, row.frequency_penalty, row.presence_penalty) != (1.0, 0.0, 0.0)
        stops = self._within(unpack_i32(row.stop_ids))
        bias_ids = self._within(np.fromiter(row.logit_bias.keys(), np.int32, len(row.logit_bias)))
        self.temperature[i] = max(row.temperature, MIN_TEMPERATURE)
        self.top_p[i] = row.top_p
        self.min_p[i] = row.min_p
        self.top_k[i] = row.top_k if 0 < row.top_k < self.vocab_size else self.vocab_size
        self.repetition[i] = row.repetition_penalty
        self.frequency[i] = row.frequency_penalty
        self.presence[i] = row.presence_penalty
        self.seed[i] = row.seed
        self.min_seq_len[i] = row.min_seq_len
        self.logprobs[i] = row.logprobs
        self.needs[i] = (
            DRAW * draws
            | TOP_K * (draws and self.top_k[i] < self.vocab_size)
            | TOP_P * (draws and row.top_p < 1.0)
            | MIN_P * (draws and row.min_p > 0.0)
            | BIAS * (len(bias_ids) > 0)
            | PENALTY * penalised
            | MIN_LEN * (len(stops) > 0 and row.min_seq_len > 0)
            | LOGPROBS * (row.logprobs >= 0)
        )
        self._bias.pop(i, None)
        self._stops.pop(i, None)
        if len(bias_ids):
            values = np.array([row.logit_bias[t] for t in bias_ids.tolist()], np.float32)
            self._bias[i] = self._ids(bias_ids), upload(values, self.device)
        if self.needs[i] & MIN_LEN:
            self._stops[i] = self._ids(stops)
        if penalised:
            prompt, output = self._within(unpack_i32(row.prompt_ids)), self._within(unpack_i32(row.output_ids))
            self._counts.start(i, self._ids(prompt), self._ids(output))
        else:
            self._counts.drop(i)

    def bias(self, idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The row's biased token ids (int64 [m], each once) and what is added to their logits (float32 [m])."""
        return self._bias[idx]

    def stops(self, idx: int) -> torch.Tensor:
        """int64 [m], the ids that a row with MIN_LEN may not sample before min_seq_len."""
        return self._stops[idx]

    def counts(self, idx: Index) -> torch.Tensor:
        """int32 [len(idx), vocab], a copy of the count rows of penalised requests; see ONE_OUTPUT."""
        return self._counts.rows(idx)

    @torch.inference_mode()
    def count(self, idx: Index, token_ids: torch.Tensor) -> None:
        """Count one sampled token (int64 [len(idx)]) for each of these penalised requests."""
        self._counts.add(idx, token_ids)

    def _within(self, ids: Int32Array) -> Int32Array:
        return ids[(ids >= 0) & (ids < self.vocab_size)]

    def _ids(self, ids: Int32Array) -> torch.Tensor:
        return upload(ids.astype(np.int64), self.device)


class CountRows:
    """Count rows (int32 [vocab] each) of the requests that have penalties, and of no others.

    A row is kept until its req_pool_idx is written again; a dropped row is used again before more are allocated.
    """

    def __init__(self, num_indices: int, vocab_size: int, device: torch.device) -> None:
        self._rows = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._slot = np.full(num_indices, -1, np.int64)
        self._free: list[int] = []

    @property
    def allocated(self) -> int:
        return len(self._rows)

    def start(self, idx: int, prompt_ids: torch.Tensor, output_ids: torch.Tensor) -> None:
        if self._slot[idx] < 0:
            if not self._free:
                self._grow()
            self._slot[idx] = self._free.pop()
        row = self._rows[int(self._slot[idx])]
        row.zero_()
        row.index_fill_(0, prompt_ids, IN_PROMPT)
        row.index_add_(0, output_ids, torch.full_like(output_ids, ONE_OUTPUT, dtype=torch.int32))

    def drop(self, idx: int) -> None:
        if self._slot[idx] >= 0:
            self._free.append(int(self._slot[idx]))
            self._slot[idx] = -1

    def rows(self, idx: Index) -> torch.Tensor:
        return self._rows.index_select(0, self._slots(idx))

    def add(self, idx: Index, token_ids: torch.Tensor) -> None:
        at = (self._slots(idx), token_ids)
        self._rows[at] = self._rows[at] + ONE_OUTPUT

    def _slots(self, idx: Index) -> torch.Tensor:
        return upload(self._slot[idx], self._rows.device)

    def _grow(self) -> None:
        old = len(self._rows)
        new = max(4, old)
        self._rows = torch.cat([self._rows, self._rows.new_zeros(new, self._rows.shape[1])])
        self._free.extend(range(old + new - 1, old - 1, -1))
