"""Which rows of an EXTEND step go through which kernel: three do the work of one in less time.

A prompt that begins in this step has all of its keys and values at hand, and reads them in order (ragged); one that
goes on reads what is in the pool by pages; a single token on a long context is a decode row, whatever rides beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radixrt.messages import Int32Array

MIN_FRESH_TOKENS = 1024
"""Fewer go by pages with the others: what is saved is less than a launch more, and steps of so few tokens are captured
(`radixrt.executor.prompt_graph_runner`)."""

MIN_SINGLE_ROWS = 4


@dataclass(frozen=True)
class ExtendParts:
    """Rows [0, fresh) go by pages, rows [fresh, single) as fresh prompts, rows [single, rows) as decode rows."""

    fresh: int
    single: int
    rows: int


def split_extend(prefix_lens: Int32Array, extend_lens: Int32Array) -> ExtendParts:
    """Cut a step's rows (int32 [B] each) where the scheduler's order allows: prompts that go on, then fresh ones, then
    single tokens. Any other order is computed too, by pages."""
    rows = len(prefix_lens)
    single = (extend_lens == 1) & (prefix_lens > 0)
    fresh = prefix_lens == 0
    first_single = rows - _run_at_end(single)
    first_fresh = first_single - _run_at_end(fresh[:first_single])
    if int(extend_lens[first_fresh:first_single].sum()) < MIN_FRESH_TOKENS:
        first_fresh = first_single
    if first_fresh == first_single and rows - first_single < MIN_SINGLE_ROWS:
        return ExtendParts(rows, rows, rows)
    return ExtendParts(first_fresh, first_single, rows)


def _run_at_end(flags: np.ndarray) -> int:
    """How many flags at the end are set."""
    unset = np.flatnonzero(~flags)
    return len(flags) - (int(unset[-1]) + 1 if len(unset) else 0)
