"""The reference backend: plain torch operations, on any device. Tests compare the other backends with it."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.prompt_cascade import plan_prompts
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode, SharedGroups

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max


class TorchNativeBackend(AttentionBackend):
    """Gathers each row's keys and values and calls scaled_dot_product_attention; decode rows are padded to one batch.

    The backend copies the whole context in every layer and step, which the other backends avoid. A prefix that rows of
    the batch share is copied and attended to once, and merged with each row's suffix by log-sum-exp. The pool may be of
    float8_e4m3fn, which serves comparisons.
    """

    def __init__(self, kv_cache: KVCache) -> None:
        self._kv = kv_cache
        self._in_fp8 = kv_cache.dtype == torch.float8_e4m3fn
        self._plans: list[_Plan] = []

    def prepare(self, batch: ForwardBatch) -> None:
        self._plans = [_Plan(each) for each in batch.attended]

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        for pool, new in ((self._kv.k, k), (self._kv.v, v)):
            slots = pool[layer.layer_id]
            if self._in_fp8:  # clamped, for the format has no infinity; torch copies rows of such a dtype as bytes
                slots = slots.view(torch.uint8)
                new = new.clamp(-FP8_MAX, FP8_MAX).to(self._kv.dtype).view(torch.uint8)
            slots.index_copy_(0, batch.out_cache_loc, new.to(slots.dtype))

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if k is not None and v is not None:
            self.store(layer, k, v, batch)
        plan = next(plan for plan in self._plans if plan.batch is batch)
        pool = self._kv.k[layer.layer_id], self._kv.v[layer.layer_id]
        if self._in_fp8:
            return plan.attend(layer, q, _Widened(pool[0], q.dtype), _Widened(pool[1], q.dtype), sinks)
        return plan.attend(layer, q.to(self._kv.dtype), *pool, sinks).to(q.dtype)


class Slots(Protocol):
    """Keys or values by slot."""

    def __getitem__(self, slots: torch.Tensor, /) -> torch.Tensor: ...


class _Widened:
    """Keys or values of float8, which are widened when they are read."""

    def __init__(self, pool: torch.Tensor, dtype: torch.dtype) -> None:
        self._pool, self._dtype = pool, dtype

    def __getitem__(self, slots: torch.Tensor, /) -> torch.Tensor:
        return self._pool[slots].to(self._dtype)


class _Plan:
    """Slots of a batch's rows: one padded tensor for decode rows, otherwise one tensor for each row."""

    def __init__(self, batch: ForwardBatch) -> None:
        self.batch = batch
        rows = batch.req_to_token[batch.req_pool_indices]
        self._padded: torch.Tensor | None = None
        self._slots: list[torch.Tensor] = []
        self._cascade: _CascadePlan | _PromptCascade | None = None
        if batch.mode is ForwardMode.DECODE:
            self._padded = rows[:, : batch.max_seq_len].to(torch.int64)
            if batch.shared is not None:
                self._cascade = _CascadePlan(rows, batch, batch.shared)
        else:
            self._slots = [row[:n].to(torch.int64) for row, n in zip(rows, batch.seq_lens_cpu.tolist(), strict=True)]
            if batch.shared is not None:
                self._cascade = _PromptCascade(self._slots, batch, batch.shared)

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        keys: Slots,
        values: Slots,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        if self._cascade is not None and layer.sliding_window is None:
            return self._cascade.attend(layer, q, keys, values, sinks)
        if self._padded is not None:
            mask = _mask((self.batch.seq_lens - 1)[:, None, None], self._padded.shape[1], layer)
            return _attention(layer, q[:, None], keys[self._padded], values[self._padded], mask[:, None], sinks)[:, 0]
        parts, lens = [], self.batch.extend_lens_cpu.tolist()
        for queries, slots in zip(torch.split(q, lens), self._slots, strict=True):
            new = len(queries)
            mask = _mask(len(slots) - new + torch.arange(new, device=q.device)[:, None], len(slots), layer)
            parts.append(_attention(layer, queries[None], keys[slots][None], values[slots][None], mask, sinks)[0])
        return torch.cat(parts)


def _mask(query_positions: torch.Tensor, length: int, layer: AttentionLayer) -> torch.Tensor:
    """Return a mask that is True where a query at the given position sees the key at each of `length` positions."""
    positions = torch.arange(length, device=query_positions.device)
    seen = positions <= query_positions
    if layer.sliding_window is not None:
        seen &= positions > query_positions - layer.sliding_window
    return seen


def _attention(
    layer: AttentionLayer,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q [B, M, heads, D], k and v [B, N, kv_heads, D], mask broadcastable to [B, heads, M, N] -> [B, M, heads * D]."""
    group = layer.num_heads // layer.num_kv_heads
    if sinks is not None:  # append a key of zeros per head; the mask's column adds the sink as the key's score
        shape = (q.shape[0], layer.num_heads, q.shape[1])
        mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -torch.inf)
        column = sinks.to(q.dtype)[:, None, None].expand(*shape, 1)
        mask = torch.cat((mask.expand(*shape, mask.shape[-1]), column), dim=-1)
        k, v = (F.pad(each, (0, 0, 0, 0, 0, 1)) for each in (k, v))
    k = k.repeat_interleave(group, dim=2).transpose(1, 2)
    v = v.repeat_interleave(group, dim=2).transpose(1, 2)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, scale=layer.scale)
    return out.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)


class _CascadePlan:
    """Slots of a DECODE step's shared prefixes, and of each row's suffix."""

    def __init__(self, rows: torch.Tensor, batch: ForwardBatch, shared: SharedGroups) -> None:
        device = rows.device
        self._parts = []
        for start, length, first, count in shared.segments.tolist():
            members = torch.from_numpy(shared.rows[first : first + count].astype("int64")).to(device)
            self._parts.append((members, rows[members[0], start : start + length].to(torch.int64)))
        ends = torch.from_numpy(shared.ends(len(batch.seq_lens_cpu)).astype("int64")).to(device)
        suffix = batch.seq_lens - ends
        offsets = torch.arange(int(suffix.max()), device=device)
        self._seen = offsets < suffix[:, None]
        self._suffix = rows.gather(1, (ends[:, None] + offsets).clamp(max=rows.shape[1] - 1)).to(torch.int64)

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        keys: Slots,
        values: Slots,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        group = layer.num_heads // layer.num_kv_heads
        queries = q.float().view(-1, layer.num_kv_heads, group, layer.head_dim) * layer.scale
        slots = self._suffix * self._seen  # padding reads slot 0, whose values are finite
        scores = torch.einsum("bhgd,bnhd->bhgn", queries, keys[slots].float())
        scores.masked_fill_(~self._seen[:, None, None], -torch.inf)
        lse = scores.logsumexp(-1)
        out = torch.einsum("bhgn,bnhd->bhgd", (scores - lse[..., None]).exp(), values[slots].float())
        for members, slots in self._parts:
            scores = torch.einsum("bhgd,nhd->bhgn", queries[members], keys[slots].float())
            part_lse = scores.logsumexp(-1)
            part = torch.einsum("bhgn,nhd->bhgd", (scores - part_lse[..., None]).exp(), values[slots].float())
            merged = torch.logaddexp(lse[members], part_lse)
            out[members] *= (lse[members] - merged).exp()[..., None]
            out[members] += part * (part_lse - merged).exp()[..., None]
            lse[members] = merged
        if sinks is not None:
            out *= (lse - sinks.view(layer.num_kv_heads, group)).sigmoid()[..., None]
        return out.flatten(1).to(q.dtype)


class _PromptCascade:
    """Slots of an EXTEND step's shared prefixes, and of each row's suffix."""

    def __init__(self, slots: list[torch.Tensor], batch: ForwardBatch, shared: SharedGroups) -> None:
        plan = plan_prompts(shared, batch.extend_lens_cpu)
        queries = torch.from_numpy(plan.queries.astype("int64")).to(slots[0].device)
        columns = (plan.leaders.tolist(), plan.starts.tolist(), plan.key_lens.tolist())
        self._parts = [
            (which, slots[leader][start : start + length])
            for which, leader, start, length in zip(
                torch.split(queries, plan.query_lens.tolist()), *columns, strict=True
            )
        ]
        self._suffix = [row[end:] for row, end in zip(slots, plan.ends.tolist(), strict=True)]
        self._lens = batch.extend_lens_cpu.tolist()

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        keys: Slots,
        values: Slots,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        suffix = []
        for queries, slots in zip(torch.split(q, self._lens), self._suffix, strict=True):
            new = len(queries)
            mask = _mask(len(slots) - new + torch.arange(new, device=q.device)[:, None], len(slots), layer)
            suffix.append(_partial_attention(layer, queries, keys[slots], values[slots], mask))
        out, lse = (torch.cat(parts) for parts in zip(*suffix, strict=True))
        for which, slots in self._parts:
            part, part_lse = _partial_attention(layer, q[which], keys[slots], values[slots])
            merged = torch.logaddexp(lse[which], part_lse)
            out[which] = (
                out[which] * (lse[which] - merged).exp()[..., None] + part * (part_lse - merged).exp()[..., None]
            )
            lse[which] = merged
        if sinks is not None:
            out *= (lse - sinks).sigmoid()[..., None]
        return out.flatten(1).to(q.dtype)


def _partial_attention(
    layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend in float32: q [M, heads, D], k and v [N, kv_heads, D], mask [M, N] -> [M, heads, D], lse [M, heads]."""
    group = layer.num_heads // layer.num_kv_heads
    k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("mhd,nhd->mhn", q.float() * layer.scale, k)
    if mask is not None:
        scores.masked_fill_(~mask[:, None], -torch.inf)
    lse = scores.logsumexp(-1)
    return torch.einsum("mhn,nhd->mhd", (scores - lse[..., None]).exp(), v), lse
