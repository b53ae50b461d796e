"""Batches whose rows share prefixes several levels deep, and reference attention over decode rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch, SharedGroups
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.wire import pack_i32
from tests.step_sections import sections


@dataclass(frozen=True)
class SharedBatch:
    """Decode rows: table int32 [B + 1, positions] with row i's slots in table[i + 1], seq_lens int32 [B]."""

    table: np.ndarray
    seq_lens: np.ndarray
    shared: SharedGroups
    num_slots: int

    @property
    def rows(self) -> np.ndarray:
        return np.arange(1, len(self.seq_lens) + 1, dtype=np.int32)


def random_tree(
    rng: np.random.Generator, num_rows: int, *, levels: int, run: int, own: int, least: int = 1
) -> SharedBatch:
    """Create rows in random nested groups, at most `levels` deep; some rows share nothing.

    Args:
        run, own: maximum length of a shared run, and of a row's suffix; at least one each.
        least: minimum length of a row's suffix.
    """
    order = rng.permutation(num_rows)
    paths: list[list[int]] = [[] for _ in range(num_rows)]
    segments: list[tuple[int, int, int, int]] = []
    used = 0

    def take(count: int) -> list[int]:
        nonlocal used
        used += count
        return list(range(used - count + 1, used + 1))

    def grow(first: int, count: int, start: int, level: int) -> None:
        length = int(rng.integers(1, run + 1))
        slots = take(length)
        for row in order[first : first + count]:
            paths[row] += slots
        segments.append((start, length, first, count))
        divide(first, count, start + length, level + 1)

    def divide(first: int, count: int, start: int, level: int) -> None:
        at = first
        while level < levels and at < first + count:
            size = int(rng.integers(1, max(2, first + count - at + 1)))
            if size >= 2 and (size < count or level == 0):
                grow(at, size, start, level)
            at += size

    divide(0, num_rows, 0, 0)
    for path in paths:
        path += take(int(rng.integers(least, own + 1)))
    shuffled = np.concatenate([[0], rng.permutation(used) + 1])  # slots are independent of rows and positions
    table = np.zeros((num_rows + 1, max(map(len, paths)) + 3), np.int32)
    for row, path in enumerate(paths):
        table[row + 1, : len(path)] = shuffled[path]
    groups = SharedGroups(np.array(segments, np.int32).reshape(-1, 4), order.astype(np.int32))
    return SharedBatch(table, np.array([len(path) for path in paths], np.int32), groups, used)


def plain_attention(
    batch: SharedBatch, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float,
    starts: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of each row over positions [starts[i], seq_len), in float64: output [B, heads, dim], lse [B, heads]."""
    group = q.shape[1] // keys.shape[1]
    outs, sums = [], []
    for row, length in enumerate(batch.seq_lens.tolist()):
        start = 0 if starts is None else int(starts[row])
        slots = torch.from_numpy(batch.table[row + 1, start:length].astype(np.int64)).to(keys.device)
        k = keys[slots].to(q.dtype).double().repeat_interleave(group, dim=1)
        v = values[slots].to(q.dtype).double().repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,nhd->hn", q[row].double(), k) * scale
        sums.append(scores.logsumexp(-1))
        outs.append(torch.einsum("hn,nhd->hd", scores.softmax(-1), v))
    return torch.stack(outs), torch.stack(sums)


def extend_step(
    prompts: SharedBatch, single: SharedBatch, rng: np.random.Generator, device: torch.device
) -> ForwardBatch:
    """Create an EXTEND step: prompts that extend shared prefixes, then rows with one new token each, which share too;
    a narrowed batch has three padding rows.

    Args:
        prompts: rows with a suffix of at least 3 positions, of which 2 or more, and not all, are new tokens; few in the
            second half of the rows.
    """
    shift = prompts.num_slots
    tables = [prompts.table[1:], np.where(single.table > 0, single.table + shift, 0)[1:]]
    width = max(table.shape[1] for table in tables)
    table = np.concatenate([np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables])
    seq_lens = np.concatenate([prompts.seq_lens, single.seq_lens])
    own = prompts.seq_lens - prompts.shared.ends(len(prompts.seq_lens))
    count = len(own)
    most = np.where(np.arange(count) < count // 2, own, np.minimum(own, 50))
    extends = np.concatenate([rng.integers(2, most), np.ones(len(single.seq_lens), np.int64)])
    segments = single.shared.segments + np.array([0, 0, len(prompts.shared.rows), 0], np.int32)
    paths = [row[:length] for row, length in zip(table, seq_lens.tolist(), strict=True)]
    pairs = list(zip(paths, extends.tolist(), strict=True))
    builder = BatchBuilder(len(paths), width, device, sample_sizes=(len(paths) + 3,))
    writes = [RowWrite(i + 1, 0, pack_i32(path[:-new])) for i, (path, new) in enumerate(pairs)]
    builder.write_rows([write for write in writes if write.slots])
    step = ForwardStep(
        step_id=0, mode=1, req_pool_idx=pack_i32(np.arange(1, len(paths) + 1)), seq_lens=pack_i32(seq_lens),
        out_cache_loc=pack_i32(np.concatenate([path[-new:] for path, new in pairs])), extend_lens=pack_i32(extends),
        input_ids=pack_i32(np.zeros(extends.sum())), samples=bytes([1] * len(paths)),
        sections=sections(
            pack_i32(np.concatenate([prompts.shared.segments, segments]).reshape(-1)),
            pack_i32(np.concatenate([prompts.shared.rows, single.shared.rows + count])),
        ),
    )  # fmt: skip
    return builder.build(step, narrow=True)
