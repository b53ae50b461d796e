"""Reference attention backend: keys and values in a dict per row and layer, dense causal attention per row.

Recurrent layers have one state slot for each row.
"""

from __future__ import annotations

import numpy as np
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.state_pool import LayerStates, RecurrentLayer, StatePool
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode
from radixrt.forward_batch.state_rows import StateRows
from radixrt.messages.state_slots import RESERVED_STATES, ZERO_STATE
from radixrt.models.registry import Model

MAX_ROWS = 8


class DenseAttention(AttentionBackend):
    """Keeps everything it is given, by (request, layer); nothing is paged.

    Attributes:
        states: of recurrent layers, by layer; slot 2 + request.
    """

    def __init__(self) -> None:
        self._cache: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.states: dict[int, LayerStates] = {}

    def prepare(self, batch: ForwardBatch) -> None:
        pass

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        raise NotImplementedError("batches without a pool are not narrowed")

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert k is not None
        assert v is not None
        assert q.shape[1:] == (layer.num_heads, layer.head_dim)
        assert q.stride()[1:] == (layer.head_dim, 1)
        assert k.shape[1:] == v.shape[1:] == (layer.num_kv_heads, layer.head_dim)
        assert (sinks is None) != layer.has_sinks
        outputs, start = [], 0
        for row, new in zip(batch.req_pool_indices.tolist(), batch.extend_lens_cpu.tolist(), strict=True):
            part = slice(start, start + new)
            outputs.append(self._attend_row((row, layer.layer_id), layer, q[part], k[part], v[part], sinks))
            start += new
        return torch.cat(outputs)

    def mix_states(self, layer: RecurrentLayer, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        assert batch.states is not None
        shape = layer.state
        if shape.layer_id not in self.states:
            self.states[shape.layer_id] = StatePool([shape], RESERVED_STATES + MAX_ROWS, x.device).layers[0]
        mixed = layer.recur(x, self.states[shape.layer_id], batch.states)
        assert mixed.shape == (x.shape[0], layer.mixed_features)
        assert mixed.dtype == x.dtype
        return mixed

    def _attend_row(
        self, key: tuple[int, int], layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        if key in self._cache:
            k, v = torch.cat((self._cache[key][0], k)), torch.cat((self._cache[key][1], v))
        self._cache[key] = (k, v)
        group = layer.num_heads // layer.num_kv_heads
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)).float() * layer.scale
        query_at = torch.arange(len(k) - len(q), len(k))[:, None]
        distance = query_at - torch.arange(len(k))
        hidden = (distance < 0) | (distance >= (layer.sliding_window or len(k)))
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks[:, None, None].expand(-1, len(q), 1)), dim=-1)
        weights = scores.softmax(-1)[..., : len(k)].to(v.dtype)
        return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1)).reshape(len(q), -1)


def make_batch(lens: list[tuple[int, int, int]], input_ids: list[int]) -> ForwardBatch:
    """A batch of rows (request, prefix length, new tokens) without a KV pool."""
    rows, prefix, new = (np.array(column, np.int32) for column in zip(*lens, strict=True))
    slots = torch.tensor(RESERVED_STATES + rows.astype(np.int64))
    src, starts = torch.where(torch.tensor(prefix > 0), slots, ZERO_STATE), torch.tensor([0, *np.cumsum(new)])
    positions = [p for _, start, count in lens for p in range(start, start + count)]
    return ForwardBatch(
        mode=ForwardMode.EXTEND,
        input_ids=torch.tensor(input_ids),
        positions=torch.tensor(positions),
        req_pool_indices=torch.tensor(rows.astype(np.int64)),
        seq_lens=torch.tensor((prefix + new).astype(np.int64)),
        out_cache_loc=torch.arange(1, len(input_ids) + 1),
        logits_index=torch.arange(len(input_ids)),
        sample_rows=torch.arange(len(input_ids)),
        req_to_token=torch.zeros(1, 1, dtype=torch.int32),
        seq_lens_cpu=prefix + new,
        extend_lens_cpu=new,
        req_pool_indices_cpu=rows,
        states=StateRows(src, slots, starts, None if (new == 1).all() else new),
    )


@torch.inference_mode()
def logits_of(
    model: Model, attention: DenseAttention, lens: list[tuple[int, int, int]], ids: list[int]
) -> torch.Tensor:
    """Run one step; float32 logits at every position."""
    batch = make_batch(lens, ids)
    hidden = model.forward(batch.input_ids, batch.positions, batch, attention)
    return model.compute_logits(hidden)


def steps_of(sequences: list[list[int]]) -> list[tuple[list[tuple[int, int, int]], list[int]]]:
    """Cut sequences into steps: a first part of each, all but the last token, then that one; rows interleaved."""
    cuts = [(0, len(s) // 3, len(s) - 1, len(s)) for s in sequences]
    steps = []
    for i in range(3):
        lens = [(row, cut[i], cut[i + 1] - cut[i]) for row, cut in enumerate(cuts)]
        ids = [token for s, cut in zip(sequences, cuts, strict=True) for token in s[cut[i] : cut[i + 1]]]
        steps.append((lens, ids))
    return steps


def run_in_steps(model: Model, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Logits [len, vocab] of each sequence, computed together and in three steps."""
    attention = DenseAttention()
    parts: list[list[torch.Tensor]] = [[] for _ in sequences]
    for lens, ids in steps_of(sequences):
        logits = logits_of(model, attention, lens, ids)
        for part, rows in zip(parts, logits.split([count for _, _, count in lens]), strict=True):
            part.append(rows)
    return [torch.cat(part) for part in parts]
