"""The largest step that a configuration allows, run once before the KV pool is sized: what it needs beside the pool."""

from __future__ import annotations

import numpy as np

from radixrt.executor.forward_batch import ForwardMode
from radixrt.messages import ForwardStep, pack_i32


def largest_step(max_rows: int, max_tokens: int, context_length: int) -> ForwardStep:
    """An EXTEND step of max_tokens prompt tokens in rows 1, 2, ... of the pools, every row sampled; its tokens go to
    slots 1, 2, ... one after the other."""
    rows = max(min(max_rows, max_tokens), -(-max_tokens // context_length))
    lens = np.full(rows, max_tokens // rows, np.int32)
    lens[: max_tokens % rows] += 1
    tokens = int(lens.sum())
    return ForwardStep(
        step_id=0,
        mode=int(ForwardMode.EXTEND),
        req_pool_idx=pack_i32(np.arange(1, rows + 1)),
        seq_lens=pack_i32(lens),
        out_cache_loc=pack_i32(np.arange(1, tokens + 1)),
        extend_lens=pack_i32(lens),
        input_ids=pack_i32(np.zeros(tokens)),
        samples=bytes([1] * rows),
    )
