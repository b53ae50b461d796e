"""Steps that are run once before the KV pool is sized: the largest one, for the memory that it needs beside the pool,
and one with rows of every kind, so that no kernel is loaded while requests wait."""

from __future__ import annotations

import numpy as np

from radixrt.attention.extend_parts import MIN_FRESH_TOKENS, MIN_SINGLE_ROWS
from radixrt.batch.forward_batch import ForwardMode
from radixrt.messages import ForwardStep, Int32Array, pack_i32


def largest_step(max_rows: int, max_tokens: int, context_length: int) -> ForwardStep:
    """An EXTEND step of max_tokens prompt tokens."""
    rows = max(min(max_rows, max_tokens), -(-max_tokens // context_length))
    lens = np.full(rows, max_tokens // rows, np.int32)
    lens[: max_tokens % rows] += 1
    return _step(lens, lens)


def mixed_step(max_tokens: int, context_length: int) -> ForwardStep:
    """An EXTEND step of a prompt that goes on, one that begins, and single tokens on a context."""
    fresh = min(MIN_FRESH_TOKENS, max(1, max_tokens - 24), context_length)
    return _step(np.array([16, fresh, *[8] * MIN_SINGLE_ROWS]), np.array([8, fresh, *[1] * MIN_SINGLE_ROWS]))


def _step(seq_lens: Int32Array, extend_lens: Int32Array) -> ForwardStep:
    """Rows 1, 2, ... of the pools, every one sampled; the new tokens go to slots 1, 2, ... one after the other."""
    tokens, rows = int(extend_lens.sum()), len(seq_lens)
    return ForwardStep(
        step_id=0,
        mode=int(ForwardMode.EXTEND),
        req_pool_idx=pack_i32(np.arange(1, rows + 1)),
        seq_lens=pack_i32(seq_lens),
        out_cache_loc=pack_i32(np.arange(1, tokens + 1)),
        extend_lens=pack_i32(extend_lens),
        input_ids=pack_i32(np.zeros(tokens)),
        samples=bytes([1] * rows),
    )
