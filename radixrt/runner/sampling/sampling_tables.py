"""`SamplingTables`: the sampling parameters and token counts of every running request, by req_pool_idx.

Numpy columns on the host decide which operations a step needs, so the decision never waits for the device. The data
that an operation reads is on the device: logit bias and stop ids of a row, and one count row for each penalized
request.
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
"""Bits of `SamplingTables.needs`, which has 32. A row without DRAW is greedy, and then has no TOP_K, TOP_P or MIN_P
either."""

SPECIAL = 0xFFFF_FFFF ^ DRAW
"""All bits but DRAW: operations, those that are added later included, which plain sampling does not perform."""

MIN_TEMPERATURE = 1e-6
"""Lower temperatures are raised to this value, at which only tokens with equal logits are drawn from."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
"""Constants of SplitMix64."""

IN_PROMPT = 1
ONE_OUTPUT = 2
"""A count row holds ONE_OUTPUT for each time that a token was generated, plus IN_PROMPT if the prompt contains it."""

Index = npt.NDArray[np.integer]
Rows = npt.NDArray[np.int64]
Needs = npt.NDArray[np.uint32]
NO_ROWS: Rows = np.zeros(0, np.int64)


def upload(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on the device: without a copy on the CPU, by an asynchronous copy to CUDA."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def upload_together(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Same as `upload` for several contiguous arrays in one copy; each starts at a multiple of 16 bytes.

    The pinned memory comes from torch's allocator, which keeps freed blocks and reuses a block once the event after its
    last copy has completed. So there are as many buffers as copies in flight, and the host never waits.
    """
    if device.type == "cpu":
        return [torch.from_numpy(np.require(array, requirements="W")) for array in arrays]
    offsets, size = layout(arrays)
    staged = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pack(staged, arrays, offsets)
    there = staged.to(device, non_blocking=True)
    return [view(there, offset, array) for offset, array in zip(offsets, arrays, strict=True)]


def uniforms(seeds: npt.NDArray[np.int64], positions: Index) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) for each (seed, position), with 53 random bits.

    The number is the position-th output of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014: a Weyl sequence through a
    64-bit mixer). The sequence starts at the mixed seed, so that consecutive seeds give unrelated sequences.
    """
    return _uniforms(_mix(seeds.astype(np.int64).view(np.uint64) + GOLDEN), positions)


def _uniforms(starts: npt.NDArray[np.uint64], positions: Index) -> npt.NDArray[np.float64]:
    bits = _mix(starts + GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return np.asarray(z ^ (z >> np.uint64(31)))


def rows_with(needs: Needs, every: int, bits: int) -> Rows:
    """Return the rows that need any of these operations; `every` is the union of `needs`."""
    return np.flatnonzero(needs & bits) if every & bits else NO_ROWS


def take(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return values[rows] for distinct ascending rows; without a copy if these are all rows."""
    if len(rows) == len(values):
        return values
    return values.index_select(0, upload(rows, values.device))


def put(values: torch.Tensor, rows: Rows, part: torch.Tensor) -> None:
    """Assign values[rows] = part, for rows as in `take`; a part that `take` returned without a copy is left as it
    is."""
    if len(rows) < len(values):
        values.index_copy_(0, upload(rows, values.device), part)
    elif part is not values:
        values.copy_(part)


class SamplingTables:
    """Parameters by req_pool_idx. `write` replaces all parameters of one request; row 0 is padding and greedy.

    Attributes:
        needs: uint32 [max_requests + 1], the operations that each row needs; 0 is plain greedy.
        temperature, top_p, min_p: float64, temperature at least MIN_TEMPERATURE where the row draws.
        top_k: int64, vocab_size where the filter is off.
        repetition, frequency, presence: float64.
        seed, min_seq_len: int64.
        logprobs: int32, alternatives per output token, -1 for none.
        plain_temperature: float32, the temperature of rows that draw, 0 of greedy ones.
        num_special: number of rows with other operations than DRAW.
    """

    def __init__(self, max_requests: int, vocab_size: int, device: torch.device | str) -> None:
        n = max_requests + 1
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.needs = np.zeros(n, np.uint32)
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
        self.plain_temperature = np.zeros(n, np.float32)
        self.num_special = 0
        self._starts = _mix(self.seed.view(np.uint64) + GOLDEN)  # of each row's random numbers
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._stops: dict[int, torch.Tensor] = {}
        self._counts = CountRows(n, vocab_size, self.device)

    @torch.inference_mode()
    def write(self, row: SamplingRow) -> None:
        """Replace all parameters of row.req_pool_idx. Token ids outside the vocabulary are ignored."""
        i = row.req_pool_idx
        draw = row.draw
        draws, penalised = not draw.is_greedy, draw.needs_penalties
        stops = self._within(unpack_i32(row.stop_ids))
        bias_ids = self._within(np.fromiter(row.logit_bias.keys(), np.int32, len(row.logit_bias)))
        self.temperature[i] = max(draw.temperature, MIN_TEMPERATURE)
        self.top_p[i] = draw.top_p
        self.min_p[i] = draw.min_p
        self.top_k[i] = draw.top_k if 0 < draw.top_k < self.vocab_size else self.vocab_size
        self.repetition[i] = draw.repetition_penalty
        self.frequency[i] = draw.frequency_penalty
        self.presence[i] = draw.presence_penalty
        self.seed[i] = row.seed
        self._starts[i : i + 1] = _mix(self.seed[i : i + 1].view(np.uint64) + GOLDEN)
        self.plain_temperature[i] = self.temperature[i] if draws else 0.0
        self.num_special -= self._is_special(i)
        self.min_seq_len[i] = row.min_seq_len
        self.logprobs[i] = row.logprobs
        self.needs[i] = (
            DRAW * draws
            | TOP_K * (draws and self.top_k[i] < self.vocab_size)
            | TOP_P * (draws and draw.top_p < 1.0)
            | MIN_P * (draws and draw.min_p > 0.0)
            | BIAS * (len(bias_ids) > 0)
            | PENALTY * penalised
            | MIN_LEN * (len(stops) > 0 and row.min_seq_len > 0)
            | LOGPROBS * (row.logprobs >= 0)
        )
        self.num_special += self._is_special(i)
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

    def _is_special(self, idx: int) -> bool:
        return bool(self.needs[idx] & SPECIAL)

    def uniforms(self, idx: Index, positions: Index) -> npt.NDArray[np.float64]:
        """Return the random numbers of rows idx at these positions; see the function `uniforms`."""
        return _uniforms(self._starts[idx], positions)

    def bias(self, idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a row's biased token ids (int64 [m], distinct) and their biases (float32 [m])."""
        return self._bias[idx]

    def stops(self, idx: int) -> torch.Tensor:
        """Return int64 [m], the ids that a row with MIN_LEN must not sample before min_seq_len."""
        return self._stops[idx]

    def counts(self, idx: Index) -> torch.Tensor:
        """Return int32 [len(idx), vocab], a copy of the count rows of penalized requests; see ONE_OUTPUT."""
        return self._counts.rows(idx)

    @torch.inference_mode()
    def count(self, idx: Index, token_ids: torch.Tensor) -> None:
        """Count one sampled token (int64 [len(idx)]) for each of these penalized requests."""
        self._counts.add(idx, token_ids)

    def _within(self, ids: Int32Array) -> Int32Array:
        return ids[(ids >= 0) & (ids < self.vocab_size)]

    def _ids(self, ids: Int32Array) -> torch.Tensor:
        return upload(ids.astype(np.int64), self.device)


class CountRows:
    """Count rows (int32 [vocab] each) of the requests that have penalties.

    A row stays allocated until its req_pool_idx is written again; dropped rows are reused before more are allocated.
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
