"""What is run once at the start: before the KV pool is sized, the largest step, for the memory that it needs beside the
pool, and one with rows of every kind; then products of many sizes. So no kernel is loaded while requests wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch
import torch.nn.functional as F

from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS, MIN_SHORT_ROWS, MIN_SINGLE_ROWS, SHORT_PROMPT
from radixrt.forward_batch.forward_batch import MIN_WRITES, ForwardMode
from radixrt.layers.linear import Linear
from radixrt.layers.lm_head import LMHead
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.models.registry import Model


def largest_step(max_rows: int, max_tokens: int, context_length: int) -> ForwardStep:
    """An EXTEND step of max_tokens prompt tokens."""
    rows = max(min(max_rows, max_tokens), -(-max_tokens // context_length))
    lens = np.full(rows, max_tokens // rows, np.int32)
    lens[: max_tokens % rows] += 1
    return _step(lens, lens)


CACHED = 8
"""Positions of a row that a mixed step does not compute."""


def mixed_step(max_rows: int, max_tokens: int, context_length: int) -> ForwardStep:
    """An EXTEND step of prompts that go on with many tokens and with few, and share what they go on from, of one that
    begins, and of single tokens on a context; the first rows are written into req_to_token first.

    Where the options allow no such step, it is as close as it can be.
    """
    many, few = (max(1, min(count, context_length - CACHED)) for count in (SHORT_PROMPT + 1, CACHED))
    going_on = [many, *[few] * MIN_SHORT_ROWS]
    fresh = min(MIN_FRESH_TOKENS, max(1, max_tokens - sum(going_on) - MIN_SINGLE_ROWS), context_length)
    extends = np.array([*going_on, fresh, *[1] * MIN_SINGLE_ROWS], np.int32)
    cached = np.full_like(extends, min(CACHED, context_length - few))
    cached[len(going_on)] = 0
    extends, cached = extends[:max_rows], cached[:max_rows]
    step = _step(cached + extends, extends)
    written = min(MIN_WRITES, len(extends))
    writes = [RowWrite(row + 1, 0, pack_i32(np.zeros(cached[row]))) for row in range(written)]
    if len(extends) < 2:
        return msgspec.structs.replace(step, row_writes=writes)
    shared = {"shared_segments": pack_i32([0, cached[0], 0, 2]), "shared_rows": pack_i32([0, 1])}
    return msgspec.structs.replace(step, row_writes=writes, **shared)


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


def load_products(
    model: Model, hidden: torch.Tensor, rows: Sequence[int], place: Callable[[int], torch.Tensor | None]
) -> None:
    """Let torch multiply each kind of weight of a decoder by as many rows as may sample, and by some numbers of prompt
    tokens: cuBLAS has many kernels, chooses among them by size, and loads one when it is first chosen.

    Args:
        hidden: [T, hidden], of the largest step.
        rows: ascending, at most T.
        place: where the logits of so many rows may go, if there is room for them.
    """
    for count in rows:
        model.compute_logits(hidden[:count], place(count))
    layers = [m for m in model.modules() if isinstance(m, Linear) and not isinstance(m, LMHead)]
    kinds = {(*m.weight.shape, m.bias is None): (m.weight, m.bias) for m in layers if m.weight is not None}
    counts = [*rows, *_prompt_sizes(hidden.shape[0])]
    for (_, columns, _), (weight, bias) in kinds.items():
        x = weight.new_zeros(max(counts), columns)
        for count in counts:
            F.linear(x[:count], weight, bias)


def _prompt_sizes(max_tokens: int) -> list[int]:
    """Ascending numbers of prompt tokens, each a third or a half more than the one before."""
    powers = [2**power for power in range(9, max_tokens.bit_length())]
    return [n for power in powers for n in (power, power * 3 // 2) if n <= max_tokens]
