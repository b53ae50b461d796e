"""`Sampler`: chooses one token for each row from a step's logits.

Operations run in this order, each only for the rows that need it: raw log-probabilities, logit_bias, penalties
(repetition, frequency, presence), min_tokens, grammar mask; then argmax for greedy rows, and temperature, top_k, top_p,
min_p and a random draw for the others. The flags that select operations are on the host, so on CUDA nothing in this
module waits for the device; reading `SampleResult.logprobs` and `.row_errors` does.

On CUDA, Triton kernels compute argmax and draws: two launches for all rows (`radixrt.kernels.triton.sampling`), which a
CUDA graph can hold (`Sampler.sample_plain`), and one for the rows with filters (`radixrt.kernels.triton.filters`).
Without Triton, torch operations compute them.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from radixrt.executor.mask_table import Mask
from radixrt.messages.wire import Int32Array
from radixrt.runner.logprobs import gather_logprobs
from radixrt.runner.sampling import draw
from radixrt.runner.sampling.device_masks import DeviceMasks, slots_of_rows
from radixrt.runner.sampling.sampling_tables import (
    BIAS,
    DRAW,
    LOGPROBS,
    MIN_LEN,
    MIN_P,
    PENALTY,
    SPECIAL,
    TOP_K,
    TOP_P,
    Index,
    Needs,
    Rows,
    SamplingTables,
    put,
    rows_with,
    take,
    upload,
    upload_together,
)
from radixrt.runner.step_result import SampleResult

if TYPE_CHECKING:
    from radixrt.kernels.triton.sampling import SampleWorkspace

FILTERS = TOP_K | TOP_P | MIN_P

Uniforms = npt.NDArray[np.float64]


class Sampler:
    """Samples with the parameters in `tables`, and counts sampled tokens for the rows with penalties.

    Args:
        rowwise: draw filtered rows one by one in numpy (see `radixrt.runner.sampling.draw`); the default on the CPU.
        fused: use the Triton kernels; the default on CUDA where Triton is installed.
        never: token ids that no row may sample.
    """

    def __init__(
        self,
        tables: SamplingTables,
        *,
        rowwise: bool | None = None,
        fused: bool | None = None,
        never: Sequence[int] = (),
    ) -> None:
        self._tables = tables
        self._never = tuple(never)
        self._never_columns: dict[int, torch.Tensor] = {}
        self._rowwise = tables.device.type == "cpu" if rowwise is None else rowwise
        self._kernels = Kernels() if (_has_kernels(tables.device) if fused is None else fused) else None
        self._masks: DeviceMasks | None = None
        if self._kernels is not None:
            self._masks = DeviceMasks(len(tables.needs) - 1, tables.vocab_size, tables.device)
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._mask_bytes = torch.from_numpy(np.where(bits, np.float32(0), np.float32(-np.inf))).to(tables.device)

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, req_pool_idx: Index, seq_lens: Index, mask: Mask | None = None
    ) -> SampleResult:
        """Choose each row's next token, which goes to position seq_lens[i] of its sequence.

        Args:
            logits: float32 [S, vocab], edited in place for rows with a bias, a penalty, min_tokens or a mask.
            req_pool_idx: int [S], indices of the rows' parameters.
            seq_lens: int [S], length of the sequence that the logits belong to; they were computed at its last
            position.
            mask: allowed tokens of some rows.
        """
        t = self._tables
        needs = t.needs[req_pool_idx]
        every = int(np.bitwise_or.reduce(needs))
        asked = rows_with(needs, every, LOGPROBS)
        raw = take(logits, asked).log_softmax(-1) if len(asked) else None
        edit_logits(t, logits, req_pool_idx, seq_lens, needs, every)
        if mask is not None:
            self._apply_mask(logits, mask)
        if self._kernels is None:
            token_ids, best = _argmax(logits)
            drawn = rows_with(needs, every, DRAW)
            if len(drawn):
                idx = req_pool_idx[drawn]
                u = t.uniforms(idx, seq_lens[drawn])
                put(token_ids, drawn, self._draw(take(logits, drawn), take(best, drawn), idx, u, needs[drawn]))
            token_ids.masked_fill_(~best.isfinite(), 0)
        else:
            filtered = rows_with(needs, every, FILTERS)
            token_ids, best = self._sample_fused(self._kernels, logits, req_pool_idx, seq_lens, filtered)
        penalised = rows_with(needs, every, PENALTY)
        if len(penalised):
            t.count(req_pool_idx[penalised], take(token_ids, penalised))
        if raw is None:
            return SampleResult(token_ids, best)
        ks = tuple(t.logprobs[req_pool_idx[asked]].tolist())
        return SampleResult(token_ids, best, gather_logprobs(raw, take(token_ids, asked), max(ks)), ks)

    def _sample_fused(
        self, kernels: Kernels, logits: torch.Tensor, idx: Index, seq_lens: Index, filtered: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (token_ids, best) of all rows; `filtered` are the rows with a filter."""
        t = self._tables
        plain = self.plain_inputs(idx, seq_lens)
        if len(filtered) == 0:
            temperature, u = upload_together(plain, logits.device)
            return kernels.sample(logits, temperature, u)
        which = idx[filtered]
        rows, top_k = filtered.astype(np.int32), t.top_k[which].astype(np.int32)
        filters = (rows, top_k, t.top_p[which], t.min_p[which].astype(np.float32))
        temperature, u, *there = upload_together((*plain, *filters), logits.device)
        workspace = kernels.workspace(logits.shape[0], t.vocab_size, t.device)
        found = kernels.sample(logits, temperature, u, workspace)
        kernels.filtered_sample(logits, temperature, u, workspace, *there)
        return found

    def suppress(self, logits: torch.Tensor, first: int = 0) -> None:
        """Set the logits of the tokens that no row may sample to -inf, in place.

        Args:
            logits: [S, columns].
            first: token id of the first column, of logits that ranks have parts of.
        """
        if not self._never:
            return
        if first not in self._never_columns:
            columns = [token - first for token in self._never if 0 <= token - first < logits.shape[1]]
            self._never_columns[first] = torch.tensor(columns, dtype=torch.int64, device=logits.device)
        logits.index_fill_(1, self._never_columns[first], -torch.inf)

    # --- for captured graphs ---

    def plain(self, req_pool_idx: Index) -> bool:
        """Return whether `sample_plain` performs every operation that these rows need, apart from a mask."""
        if self._kernels is None or not self._tables.num_special:
            return self._kernels is not None
        return not (self._tables.needs[req_pool_idx] & SPECIAL).any()

    def plain_inputs(self, req_pool_idx: Index, seq_lens: Index) -> tuple[npt.NDArray[np.float32], Uniforms]:
        """Return the inputs of `sample_plain` on the host: temperatures, float32 [S], 0 for greedy rows; u, float64
        [S]."""
        return self._tables.plain_temperature[req_pool_idx], self._tables.uniforms(req_pool_idx, seq_lens)

    def workspace(self, max_rows: int) -> SampleWorkspace:
        """Allocate the memory that `sample_plain` writes into. Calls on one stream may share it.

        Raises:
            RuntimeError: Triton is not installed; `plain` is then never true.
        """
        if self._kernels is None:
            raise RuntimeError("sampling in a graph needs CUDA and triton")
        return self._kernels.workspace(max_rows, self._tables.vocab_size, self._tables.device)

    @torch.inference_mode()
    def sample_plain(
        self, logits: torch.Tensor, temperature: torch.Tensor, u: torch.Tensor, out: SampleWorkspace
    ) -> SampleResult:
        """Sample rows that are all `plain`, by two launches without allocations, so that a CUDA graph can capture them.

        Args:
            logits: float32 or bfloat16 [S, vocab]; not changed.
            temperature, u: float32 and float64 [S], the values of `plain_inputs` on the device; 0 for padding rows.
            out: result of `workspace` for at least S rows; it holds the returned tensors until the next call.
        """
        if self._kernels is None:
            raise RuntimeError("sampling in a graph needs CUDA and triton")
        return SampleResult(*self._kernels.sample(logits, temperature, u, out))

    @torch.inference_mode()
    def launch_all(self, rows: int) -> None:
        """Launch each Triton kernel with every kind of arguments, on some rows of logits."""
        if self._kernels is None or self._masks is None:
            return
        vocab, device = self._tables.vocab_size, self._tables.device
        logits = torch.zeros(rows, vocab, device=device)
        each = np.arange(rows, dtype=np.int32)
        columns = (np.ones(rows, np.float32), np.zeros(rows), each, each + 1, np.ones(rows), np.zeros(rows, np.float32))
        temperature, u, *filters = upload_together(columns, device)
        self._masks.load_kernels()
        self.apply_slots(logits, torch.full((rows,), -1, dtype=torch.int32, device=device))
        workspace = self._kernels.workspace(rows, vocab, device)
        self._kernels.sample(logits, temperature, u, workspace)
        self._kernels.filtered_sample(logits, temperature, u, workspace, *filters)

    # --- masks ---

    def masks_changed(self, slots: Int32Array) -> None:
        """Note that the table of masks on the host has new ones in these slots; all later steps may use them."""
        if self._masks is not None:
            self._masks.changed(slots)

    def mask_slots(self, mask: Mask, rows: int) -> Int32Array:
        """Return int32 [rows], argument of `apply_slots`; the masks are on the device once the current stream is."""
        assert self._masks is not None
        self._masks.update(mask)
        return slots_of_rows(mask, rows)

    def apply_slots(self, logits: torch.Tensor, slots: torch.Tensor) -> None:
        """Set the logits (float32 or bfloat16 [S, vocab]) of tokens that are not in the masks in these slots (int32
        [S], -1 for none) to -inf, in place. One launch, which a CUDA graph can hold."""
        assert self._kernels is not None
        assert self._masks is not None
        self._kernels.apply_bitmask(logits, slots, self._masks.table)

    def _apply_mask(self, logits: torch.Tensor, mask: Mask) -> None:
        """Same as `apply_slots`, for the masks of a step."""
        if self._kernels is not None:
            self.apply_slots(logits, *upload_together([self.mask_slots(mask, len(logits))], logits.device))
            return
        used, index = np.unique(mask.slots, return_inverse=True)
        data = upload(mask.table[used].astype("<u4").view(np.uint8).reshape(-1), logits.device).int()
        added = self._mask_bytes.index_select(0, data).view(len(used), -1)[:, : logits.shape[1]]
        for row, which in zip(mask.rows.tolist(), index.tolist(), strict=True):
            logits[row] += added[which]

    def _draw(self, logits: torch.Tensor, best: torch.Tensor, idx: Index, u: Uniforms, needs: Needs) -> torch.Tensor:
        """Draw a token for each row (int64 [D]) from logits, float32 [D, vocab], and best, float32 [D]."""
        t = self._tables
        if not self._rowwise:
            return self._draw_dense(logits, best, idx, u, needs)
        token_ids = torch.zeros(len(idx), dtype=torch.int64)
        plain = np.flatnonzero(needs & FILTERS == 0)
        if len(plain):
            x, biggest = take(logits, plain), take(best, plain)
            put(token_ids, plain, self._draw_dense(x, biggest, idx[plain], u[plain], needs[plain]))
        array, tops, found = logits.numpy(), best.tolist(), token_ids.numpy()
        for i in np.flatnonzero(needs & FILTERS).tolist():
            if math.isfinite(tops[i]):
                r = idx[i]
                found[i] = draw.draw_row(
                    array[i],
                    tops[i],
                    float(u[i]),
                    float(t.temperature[r]),
                    int(t.top_k[r]),
                    float(t.top_p[r]),
                    float(t.min_p[r]),
                )
        return token_ids

    def _draw_dense(
        self, logits: torch.Tensor, best: torch.Tensor, idx: Index, u: Uniforms, needs: Needs
    ) -> torch.Tensor:
        """Same as `_draw` for all rows at once, without waiting for the device."""
        t = self._tables
        k = t.top_k[idx]
        host = np.stack([u, t.temperature[idx], t.top_p[idx], t.min_p[idx], k])
        where, temperature, top_p, min_p, top_k = upload(host, logits.device)
        temperature = temperature.float()
        weights = draw.token_weights(logits, best, temperature)
        some = np.flatnonzero(needs & TOP_K)
        if len(some):
            x, ks = take(logits, some), take(top_k, some).long()
            cutoff = draw.top_k_cutoff(x, take(temperature, some), ks, take(top_p, some), int(k[some].max()))
            put(weights, some, cutoff.apply(take(weights, some), x))
        some = np.flatnonzero(needs & (TOP_K | TOP_P) == TOP_P)
        if len(some):
            x, part = take(logits, some), take(weights, some)
            cutoff = draw.top_p_cutoff(x, take(temperature, some), take(top_p, some), part)
            put(weights, some, cutoff.apply(part, x))
        some = np.flatnonzero(needs & MIN_P)
        if len(some):
            part, least = take(weights, some), take(min_p, some).float()[:, None]
            put(weights, some, part.masked_fill_(part < least, 0.0))
        return draw.inverse_cdf(weights, where)


def edit_logits(t: SamplingTables, logits: torch.Tensor, idx: Index, seq_lens: Index, needs: Needs, every: int) -> None:
    """Apply bias, penalties and suppressed stop tokens, in place.

    Args:
        logits: float32 [S, vocab].
        idx: int [S], the rows' indices in the tables.
        seq_lens: int [S], as for `Sampler.sample`.
        needs: uint32 [S], operations of each row.
        every: union of `needs`.
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
        )  # a Python number would be copied to the device synchronously


def _penalise(t: SamplingTables, logits: torch.Tensor, rows: Rows, idx: Index) -> None:
    """Repetition (CTRL, arXiv 1909.05858) over prompt and output, then frequency and presence over output."""
    counts = t.counts(idx)
    params = np.stack([t.repetition[idx], t.frequency[idx], t.presence[idx]]).astype(np.float32)
    repetition, frequency, presence = upload(params, logits.device)[:, :, None]
    if logits.is_cuda:
        put(logits, rows, _penalised(take(logits, rows), counts, repetition, frequency, presence))
        return
    # Few tokens have been counted, and on the CPU finding them is cheaper than computing with all of the vocabulary.
    flat = np.flatnonzero(counts.numpy().reshape(-1) != 0)
    row, token = torch.from_numpy(flat // t.vocab_size), torch.from_numpy(flat % t.vocab_size)
    at = (torch.from_numpy(rows)[row], token)
    logits[at] = _penalised(logits[at], counts[row, token], repetition[row, 0], frequency[row, 0], presence[row, 0])


def _penalised(
    x: torch.Tensor, counts: torch.Tensor, repetition: torch.Tensor, frequency: torch.Tensor, presence: torch.Tensor
) -> torch.Tensor:
    """Return x after the penalties; counts as in `SamplingTables.counts`."""
    x = torch.where(counts > 0, torch.where(x > 0, x / repetition, x * repetition), x)
    outputs = counts >> 1  # divided by ONE_OUTPUT: the lowest bit is IN_PROMPT
    return x - frequency * outputs - presence * (outputs > 0)


def _repeat(rows: Rows, counts: list[int], device: torch.device) -> torch.Tensor:
    return upload(np.repeat(rows, counts), device)


class Kernels:
    """Triton kernels for sampling. Creating an instance imports Triton."""

    def __init__(self) -> None:
        from radixrt.kernels.triton import filters, mask, sampling

        self.apply_bitmask = mask.apply_bitmask
        self.filtered_sample = filters.filtered_sample
        self.sample = sampling.fused_sample
        self.workspace = sampling.SampleWorkspace


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def _argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int64 [S] and float32 [S]: each row's first largest logit, or its first NaN. On the CPU numpy is
    faster."""
    if logits.is_cuda:
        ids = logits.argmax(-1)
        return ids, logits.gather(1, ids[:, None])[:, 0]
    array = logits.numpy()
    at = array.argmax(-1)
    return torch.from_numpy(at), torch.from_numpy(array[np.arange(len(at)), at])
