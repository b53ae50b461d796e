"""Which rows of an EXTEND step go through which kernel: four do the work of one in less time.

A prompt that begins in this step has all of its keys and values at hand, and reads them in order (ragged); one that
goes on reads what is in the pool by pages, through a kernel with large tiles of queries, or, if it has few, through one
with small tiles; a single token on a long context is a decode row, whatever rides beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixrt.messages.wire import Int32Array

MIN_FRESH_TOKENS = 1024
"""Fewer go by pages with the others: what is saved is less than a launch more, and steps of so few tokens are captured
(`radixrt.runner.graphs.prompt_graph_runner`)."""

SHORT_PROMPT = 64
"""New tokens of a row that goes through small tiles, at most."""
MIN_SHORT_ROWS = 4
MIN_SINGLE_ROWS = 4
"""Fewer go with others that read by pages, if there are such."""


@dataclass(frozen=True)
class ExtendParts:
    """Rows [0, short) and [short, fresh) go by pages, through large and small tiles; rows [fresh, single) as fresh
    prompts, rows [single, rows) as decode rows."""

    short: int
    fresh: int
    single: int
    rows: int


def split_extend(prefix_lens: Int32Array, extend_lens: Int32Array) -> ExtendParts:
    """Cut a step's rows (int32 [B] each) where the scheduler's order allows: prompts that go on with many tokens, those
    with few, then fresh ones, then single tokens. Any other order is computed too, by pages."""
    rows = len(prefix_lens)
    fresh = prefix_lens == 0
    first_single = rows - _run_at_end((extend_lens == 1) & ~fresh)
    first_fresh = first_single - _run_at_end(fresh[:first_single])
    if int(extend_lens[first_fresh:first_single].sum()) < MIN_FRESH_TOKENS:
        first_fresh = first_single
    if first_fresh == first_single and rows - first_single < MIN_SINGLE_ROWS:
        first_fresh = first_single = rows
    first_short = first_fresh - _run_at_end(extend_lens[:first_fresh] <= SHORT_PROMPT)
    if first_short > 0 and first_fresh - first_short < MIN_SHORT_ROWS:
        first_short = first_fresh
    return ExtendParts(first_short, first_fresh, first_single, rows)


def leading(flags: npt.NDArray[np.bool_]) -> int:
    """How many flags at the beginning are set."""
    return _run_at_end(flags[::-1])


def _run_at_end(flags: npt.NDArray[np.bool_]) -> int:
    """How many flags at the end are set."""
    unset = np.flatnonzero(~flags)
    return len(flags) - (int(unset[-1]) + 1 if len(unset) else 0)
