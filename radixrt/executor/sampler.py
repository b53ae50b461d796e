"""`Sampler`: from a step's logits to one token per row.

The order, each step only for the rows that need it: raw log-probabilities, logit_bias, penalties (repetition,
frequency, presence), min_tokens, grammar mask, then argmax for greedy rows and temperature, top_k, top_p, min_p and a
draw for the others. The flags that decide this are on the host, so on CUDA nothing here waits for the device; reading
`SampleResult.logprobs` and `.row_errors` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixrt.executor import draw
from radixrt.executor.logprobs import LogprobTensors, gather_logprobs
from radixrt.executor.sampling_tables import (
    BIAS,
    DRAW,
    LOGPROBS,
    MIN_LEN,
    MIN_P,
    PENALTY,
    TOP_K,
    TOP_P,
    Index,
    SamplingTables,
    upload,
)
from radixrt.messages import Int32Array, LogprobColumns

Rows = npt.NDArray[np.int64]
Needs = npt.NDArray[np.uint8]
Uniforms = npt.NDArray[np.float64]
_NO_ROWS: Rows = np.zeros(0, np.int64)
Mask = tuple[Int32Array, npt.NDArray[np.uint32]]
"""Of a GrammarMask: int32 [m] sampling rows, and uint32 [m, ceil(vocab / 32)] bits (or the same, flat)."""


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
        """A copy in host memory (pinned, if from CUDA): underway, and there once the stream has passed this point."""
        return SampleResult(
            self.token_ids.to("cpu", non_blocking=True),
            self.best.to("cpu", non_blocking=True),
            None if self.gathered is None else self.gathered.to_host(),
            self.num_alternatives,
        )


def _failure(best: float) -> str:
    if math.isnan(best):
        return "the model's logits hold NaN"
    if best > 0:
        return "the model's logits hold infinity"
    return "no token may be sampled: the grammar, min_tokens or the model's logits rule out all of them"


class Sampler:
    """Samples with the parameters in `tables`, and counts what it sampled for the rows with penalties.

    Args:
        rowwise: draw filtered rows one by one in numpy (see `radixrt.executor.draw`); by default, on the CPU.
    """

    def __init__(self, tables: SamplingTables, *, rowwise: bool | None = None) -> None:
        self._tables = tables
        self._rowwise = tables.device.type == "cpu" if rowwise is None else rowwise
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._mask_bytes = torch.from_numpy(np.where(bits, np.float32(0), np.float32(-np.inf))).to(tables.device)

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, req_pool_idx: Index, seq_lens: Index, mask: Mask | None = None
    ) -> SampleResult:
        """Choose each row's next token, the one at position seq_lens[i] of its sequence.

        Args:
            logits: float32 [S, vocab], edited in place for rows with a bias, a penalty, min_tokens or a mask.
            req_pool_idx: int [S], the rows' parameters.
            seq_lens: int [S], length of the sequence whose last position gave the logits.
            mask: allowed tokens of some rows.
        """
        t = self._tables
        needs = t.needs[req_pool_idx]
        every = int(np.bitwise_or.reduce(needs))
        asked = _where(needs, every, LOGPROBS)
        raw = _take(logits, asked).log_softmax(-1) if len(asked) else None
        self._edit(logits, req_pool_idx, seq_lens, needs, every)
        if mask is not None and len(mask[0]):
            self._apply_mask(logits, mask)
        token_ids, best = _argmax(logits)
        drawn = _where(needs, every, DRAW)
        if len(drawn):
            idx = req_pool_idx[drawn]
            u = draw.uniforms(t.seed[idx], seq_lens[drawn])
            _put(token_ids, drawn, self._draw(_take(logits, drawn), _take(best, drawn), idx, u, needs[drawn]))
        token_ids.masked_fill_(~best.isfinite(), 0)
        penalised = _where(needs, every, PENALTY)
        if len(penalised):
            t.count(req_pool_idx[penalised], _take(token_ids, penalised))
        if raw is None:
            return SampleResult(token_ids, best)
        ks = tuple(t.logprobs[req_pool_idx[asked]].tolist())
        return SampleResult(token_ids, best, gather_logprobs(raw, _take(token_ids, asked), max(ks)), ks)

    def is_plain(self, req_pool_idx: Index) -> bool:
        """Whether these rows need at most a draw, so that `sample_plain` samples them."""
        return not np.bitwise_or.reduce(self._tables.needs[req_pool_idx]) & ~DRAW

    def draws(self, req_pool_idx: Index, seq_lens: Index) -> tuple[Uniforms, npt.NDArray[np.float64]]:
        """Each row's random number and its temperature, 0 for greedy ones."""
        t = self._tables
        u = draw.uniforms(t.seed[req_pool_idx], seq_lens)
        return u, np.where(t.needs[req_pool_idx] & DRAW, t.temperature[req_pool_idx], 0.0)

    def sample_plain(
        self, logits: torch.Tensor, temperature: torch.Tensor, u: torch.Tensor, token_ids: torch.Tensor,
        best: torch.Tensor,
    ) -> None:  # fmt: skip
        found, top = _argmax(logits)
        weights = draw.token_weights(logits, top, temperature.clamp(min=1e-6))
        token_ids.copy_(torch.where(temperature > 0, draw.inverse_cdf(weights, u), found))
        token_ids.masked_fill_(~top.isfinite(), 0)
        best.copy_(top)

    def _edit(self, logits: torch.Tensor, idx: Index, seq_lens: Index, needs: Needs, every: int) -> None:
        """Bias, penalties and held-back stop tokens, in place."""
        t = self._tables
        biased = _where(needs, every, BIAS)
        if len(biased):
            entries = [t.bias(int(i)) for i in idx[biased]]
            ids, values = torch.cat([e[0] for e in entries]), torch.cat([e[1] for e in entries])
            at = (_repeat(biased, [len(e[0]) for e in entries], logits.device), ids)
            logits[at] = logits[at] + values
        penalised = _where(needs, every, PENALTY)
        if len(penalised):
            self._penalise(logits, penalised, idx[penalised])
        held = _where(needs, every, MIN_LEN)
        held = held[seq_lens[held] < t.min_seq_len[idx[held]]]
        if len(held):
            stops = [t.stops(int(i)) for i in idx[held]]
            logits[_repeat(held, [len(s) for s in stops], logits.device), torch.cat(stops)] = -torch.inf

    def _penalise(self, logits: torch.Tensor, rows: Rows, idx: Index) -> None:
        """Repetition (CTRL, arXiv 1909.05858) over prompt and output, then frequency and presence over output."""
        t = self._tables
        counts = t.counts(idx)
        params = np.stack([t.repetition[idx], t.frequency[idx], t.presence[idx]]).astype(np.float32)
        repetition, frequency, presence = upload(params, logits.device)[:, :, None]
        if logits.is_cuda:
            _put(logits, rows, _penalised(_take(logits, rows), counts, repetition, frequency, presence))
            return
        # Few tokens have been seen, and on the CPU looking for them costs less than computing with all.
        flat = np.flatnonzero(counts.numpy().reshape(-1) != 0)
        row, token = torch.from_numpy(flat // t.vocab_size), torch.from_numpy(flat % t.vocab_size)
        at = (torch.from_numpy(rows)[row], token)
        logits[at] = _penalised(logits[at], counts[row, token], repetition[row, 0], frequency[row, 0], presence[row, 0])

    def _apply_mask(self, logits: torch.Tensor, mask: Mask) -> None:
        rows, bits = mask
        data = np.ascontiguousarray(bits, dtype="<u4").view(np.uint8).reshape(-1)
        index = upload(data, logits.device).int()
        added = self._mask_bytes.index_select(0, index).view(len(rows), -1)[:, : logits.shape[1]]
        logits.index_add_(0, upload(rows.astype(np.int64), logits.device), added)

    def _draw(self, logits: torch.Tensor, best: torch.Tensor, idx: Index, u: Uniforms, needs: Needs) -> torch.Tensor:
        """int64 [D], a token for each row: logits float32 [D, vocab], best float32 [D]."""
        t = self._tables
        if not self._rowwise:
            return self._draw_dense(logits, best, idx, u, needs)
        token_ids = torch.zeros(len(idx), dtype=torch.int64)
        plain = np.flatnonzero(needs & (TOP_K | TOP_P | MIN_P) == 0)
        if len(plain):
            x, biggest = _take(logits, plain), _take(best, plain)
            _put(token_ids, plain, self._draw_dense(x, biggest, idx[plain], u[plain], needs[plain]))
        array, tops, found = logits.numpy(), best.tolist(), token_ids.numpy()
        for i in np.flatnonzero(needs & (TOP_K | TOP_P | MIN_P)).tolist():
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
        """As `_draw`, all rows at once and without waiting for the device."""
        t = self._tables
        k = t.top_k[idx]
        host = np.stack([u, t.temperature[idx], t.top_p[idx], t.min_p[idx], k])
        where, temperature, top_p, min_p, top_k = upload(host, logits.device)
        temperature = temperature.float()
        weights = draw.token_weights(logits, best, temperature)
        some = np.flatnonzero(needs & TOP_K)
        if len(some):
            x, ks = _take(logits, some), _take(top_k, some).long()
            cutoff = draw.top_k_cutoff(x, _take(temperature, some), ks, _take(top_p, some), int(k[some].max()))
            _put(weights, some, cutoff.apply(_take(weights, some), x))
        some = np.flatnonzero(needs & (TOP_K | TOP_P) == TOP_P)
        if len(some):
            x, part = _take(logits, some), _take(weights, some)
            cutoff = draw.top_p_cutoff(x, _take(temperature, some), _take(top_p, some), part)
            _put(weights, some, cutoff.apply(part, x))
        some = np.flatnonzero(needs & MIN_P)
        if len(some):
            part, least = _take(weights, some), _take(min_p, some).float()[:, None]
            _put(weights, some, part.masked_fill_(part < least, 0.0))
        return draw.inverse_cdf(weights, where)


def _penalised(
    x: torch.Tensor, counts: torch.Tensor, repetition: torch.Tensor, frequency: torch.Tensor, presence: torch.Tensor
) -> torch.Tensor:
    """Logits like x after the penalties; counts as in `SamplingTables.counts`."""
    x = torch.where(counts > 0, torch.where(x > 0, x / repetition, x * repetition), x)
    outputs = counts >> 1  # over ONE_OUTPUT: the lowest bit is IN_PROMPT
    return x - frequency * outputs - presence * (outputs > 0)


def _argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [S] and float32 [S]: each row's first largest logit, or its first NaN. numpy's argmax is the faster."""
    if logits.is_cuda:
        ids = logits.argmax(-1)
        return ids, logits.gather(1, ids[:, None])[:, 0]
    array = logits.numpy()
    at = array.argmax(-1)
    return torch.from_numpy(at), torch.from_numpy(array[np.arange(len(at)), at])


def _where(needs: Needs, every: int, bit: int) -> Rows:
    return np.flatnonzero(needs & bit) if every & bit else _NO_ROWS


def _take(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """values[rows] for distinct ascending rows; values itself, not a copy, when those are all of them."""
    if len(rows) == len(values):
        return values
    return values.index_select(0, upload(rows, values.device))


def _put(values: torch.Tensor, rows: Rows, part: torch.Tensor) -> None:
    """values[rows] = part, for rows as in `_take`; nothing to do for what `_take` gave when it is values itself."""
    if len(rows) < len(values):
        values.index_copy_(0, upload(rows, values.device), part)
    elif part is not values:
        values.copy_(part)


def _repeat(rows: Rows, counts: list[int], device: torch.device) -> torch.Tensor:
    return upload(np.repeat(rows, counts), device)
