"""Division of an EXTEND step's rows among four attention kernels, which together are faster than one kernel.

A prompt that begins in the step reads the keys and values computed in the step, in order (ragged). A prompt that
extends a prefix reads the pool by pages, through a kernel with large query tiles or, for few new tokens, small query
tiles. A single token after a prefix is computed as a decode row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixrt.messages.wire import Int32Array

MIN_FRESH_TOKENS = 1024
"""Minimum number of tokens of prompts that begin in the step for a part of their own. For fewer tokens, the part saves
less time than its kernel launch takes, and the graphs of such short steps store keys and values
(`radixrt.runner.graphs.prompt_graph_runner`)."""

SHORT_PROMPT = 64
"""Maximum number of new tokens of a row for the kernel with small tiles."""
MIN_SHORT_ROWS = 4
MIN_SINGLE_ROWS = 4
"""Minimum number of rows of a part. Fewer rows join other rows that read by pages, if the step has such rows."""


@dataclass(frozen=True)
class ExtendParts:
    """Ranges of a step's rows: rows [0, short) read by pages through large tiles, rows [short, fresh) read by pages
    through small tiles, rows [fresh, single) are prompts that begin in the step, and rows [single, rows) are decode
    rows."""

    short: int
    fresh: int
    single: int
    rows: int


def split_extend(prefix_lens: Int32Array, extend_lens: Int32Array) -> ExtendParts:
    """Divide a step's rows (int32 [B] each), which the scheduler orders: prompts that extend a prefix with many tokens,
    with few, prompts without a prefix, then single tokens. Rows in any other order read by pages."""
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
    """Return the number of set flags at the beginning."""
    return _run_at_end(flags[::-1])


def _run_at_end(flags: npt.NDArray[np.bool_]) -> int:
    """Return the number of set flags at the end."""
    unset = np.flatnonzero(~flags)
    return len(flags) - (int(unset[-1]) + 1 if len(unset) else 0)
