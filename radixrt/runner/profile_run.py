"""Dummy steps and GEMMs that run once at the start.

The largest step, and a step with rows of every kind, run before the KV pool is sized, to measure the memory that steps
need in addition to the pool. GEMMs of many sizes run afterwards, so that no kernel is loaded while requests wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch
import torch.nn.functional as F

from radixrt.forward_batch.batch_builder import MIN_WRITES
from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS, MIN_SHORT_ROWS, MIN_SINGLE_ROWS, SHORT_PROMPT
from radixrt.forward_batch.forward_batch import ForwardMode
from radixrt.layers.formats.plain import Plain
from radixrt.layers.linear import Linear
from radixrt.layers.lm_head import LMHead
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.sections import SHARING, STATES, SharedSection, StateSection, encode
from radixrt.messages.state_slots import SCRATCH_STATE, ZERO_STATE
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.models.registry import Model


def largest_step(max_rows: int, max_tokens: int, context_length: int) -> ForwardStep:
    """Return an EXTEND step of max_tokens prompt tokens."""
    rows = max(min(max_rows, max_tokens), -(-max_tokens // context_length))
    lens = np.full(rows, max_tokens // rows, np.int32)
    lens[: max_tokens % rows] += 1
    return _step(lens, lens)


CACHED = 8
"""Cached positions of each row of a mixed step."""
FUTURE_TOKEN = -1
"""Input id of a row's future token, see `ForwardStep`."""


def mixed_step(max_rows: int, max_tokens: int, context_length: int) -> ForwardStep:
    """Return an EXTEND step with rows of every kind: prompts that extend a shared prefix with many tokens and with few,
    a prompt without a prefix, and single tokens, which are future tokens. The step writes its first rows into
    req_to_token.

    If the limits are too small for such a step, the step has fewer rows or tokens.
    """
    many, few = (max(1, min(count, context_length - CACHED)) for count in (SHORT_PROMPT + 1, CACHED))
    going_on = [many, *[few] * MIN_SHORT_ROWS]
    fresh = min(MIN_FRESH_TOKENS, max(1, max_tokens - sum(going_on) - MIN_SINGLE_ROWS), context_length)
    extends = np.array([*going_on, fresh, *[1] * MIN_SINGLE_ROWS], np.int32)
    cached = np.full_like(extends, min(CACHED, context_length - few))
    cached[len(going_on)] = 0
    extends, cached = extends[:max_rows], cached[:max_rows]
    step = _step(cached + extends, extends, np.where(np.repeat(extends, extends) == 1, FUTURE_TOKEN, 0))
    written = min(MIN_WRITES, len(extends))
    writes = [RowWrite(row + 1, 0, pack_i32(np.zeros(cached[row]))) for row in range(written)]
    if len(extends) < 2:
        return msgspec.structs.replace(step, row_writes=writes)
    shared = SharedSection(pack_i32([0, cached[0], 0, 2]), pack_i32([0, 1]))
    return msgspec.structs.replace(step, row_writes=writes, sections={**step.sections, SHARING: encode(shared)})


def _step(seq_lens: Int32Array, extend_lens: Int32Array, input_ids: Int32Array | None = None) -> ForwardStep:
    """Return a step of rows 1, 2, ..., all of which sample; their new tokens go to slots 1, 2, ... in order.

    Args:
        input_ids: int32 [tokens]; None: all 0.
    """
    tokens, rows = int(extend_lens.sum()), len(seq_lens)
    # A model without recurrent layers ignores the states.
    states = StateSection(pack_i32(np.full(rows, ZERO_STATE)), pack_i32(np.full(rows, SCRATCH_STATE)))
    return ForwardStep(
        step_id=0,
        mode=int(ForwardMode.EXTEND),
        req_pool_idx=pack_i32(np.arange(1, rows + 1)),
        seq_lens=pack_i32(seq_lens),
        out_cache_loc=pack_i32(np.arange(1, tokens + 1)),
        extend_lens=pack_i32(extend_lens),
        input_ids=pack_i32(np.zeros(tokens) if input_ids is None else input_ids),
        samples=bytes([1] * rows),
        sections={STATES: encode(states)},
    )


def load_gemm_kernels(
    model: Model, hidden: torch.Tensor, rows: Sequence[int], logits_buffer: Callable[[int], torch.Tensor | None]
) -> None:
    """Run a GEMM with each distinct weight of a decoder, for every number of sampling rows and for some numbers of
    prompt tokens. cuBLAS selects among many kernels by size and loads a kernel when it is first selected.

    Args:
        hidden: [T, ...], result of the largest step. Before the last pipeline stage, which computes the logits, the
            result has three dimensions.
        rows: ascending numbers of sampling rows, at most T.
        logits_buffer: returns a buffer for the logits of a number of rows, or None.
    """
    for count in rows if hidden.dim() == 2 else ():
        model.compute_logits(hidden[:count], logits_buffer(count))
    layers = [m for m in model.modules() if isinstance(m, Linear) and not isinstance(m, LMHead)]
    layers = [m for m in layers if isinstance(m.format, Plain)]  # cuBLAS multiplies plain weights
    kinds = {(*m.weight.shape, m.bias is None): (m.weight, m.bias) for m in layers if m.weight is not None}
    counts = [*rows, *_prompt_sizes(hidden.shape[0])]
    for (_, columns, _), (weight, bias) in kinds.items():
        x = weight.new_zeros(max(counts), columns)
        for count in counts:
            F.linear(x[:count], weight, bias)


def _prompt_sizes(max_tokens: int) -> list[int]:
    """Return ascending numbers of prompt tokens, each a third or a half larger than the previous one."""
    powers = [2**power for power in range(9, max_tokens.bit_length())]
    return [n for power in powers for n in (power, power * 3 // 2) if n <= max_tokens]
