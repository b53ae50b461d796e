"""Division of an EXTEND step into parts: the scheduler's order is used, rows in any other order read by pages."""

from __future__ import annotations

import numpy as np
import pytest

from radixrt.forward_batch.batch_builder import MIN_WRITES
from radixrt.forward_batch.extend_parts import (
    MIN_FRESH_TOKENS,
    MIN_SHORT_ROWS,
    MIN_SINGLE_ROWS,
    SHORT_PROMPT,
    ExtendParts,
    split_extend,
)
from radixrt.messages.wire import unpack_i32
from radixrt.runner.profile_run import mixed_step
from tests.step_sections import shared_in

GOING_ON, FEW, FRESH, SHORT, SINGLE = (100, 200), (100, SHORT_PROMPT), (0, MIN_FRESH_TOKENS), (0, 5), (300, 1)
MANY = [SINGLE] * MIN_SINGLE_ROWS
MANY_FEW = [FEW] * MIN_SHORT_ROWS


def split(*rows: tuple[int, int]) -> tuple[int, int, int, int]:
    prefix, extend = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    parts = split_extend(prefix, extend)
    return parts.short, parts.fresh, parts.single, parts.rows


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([GOING_ON, FRESH, FRESH, *MANY], (1, 1, 3, 3 + MIN_SINGLE_ROWS)),
        ([FRESH], (0, 0, 1, 1)),
        (MANY, (0, 0, 0, MIN_SINGLE_ROWS)),
        ([GOING_ON], (1, 1, 1, 1)),
        ([FEW], (0, 1, 1, 1)),
        ([GOING_ON, *MANY_FEW, FRESH], (1, 1 + MIN_SHORT_ROWS, 2 + MIN_SHORT_ROWS, 2 + MIN_SHORT_ROWS)),
        ([GOING_ON, FEW, FRESH], (2, 2, 3, 3)),  # too few rows with few tokens
        ([*MANY_FEW, *MANY], (0, MIN_SHORT_ROWS, MIN_SHORT_ROWS, MIN_SHORT_ROWS + MIN_SINGLE_ROWS)),
        ([*MANY_FEW, SINGLE], (0, MIN_SHORT_ROWS + 1, MIN_SHORT_ROWS + 1, MIN_SHORT_ROWS + 1)),
        ([GOING_ON, SHORT, *MANY], (2, 2, 2, 2 + MIN_SINGLE_ROWS)),  # too few fresh tokens
        ([GOING_ON, SINGLE], (2, 2, 2, 2)),  # too few single rows
        ([GOING_ON, FRESH, SINGLE], (1, 1, 2, 3)),  # but they cannot go with rows that lie elsewhere
        ([FRESH, GOING_ON], (2, 2, 2, 2)),  # not the scheduler's order
        ([*MANY_FEW, GOING_ON], (MIN_SHORT_ROWS + 1,) * 4),
        ([*MANY, FRESH], (0, MIN_SINGLE_ROWS, MIN_SINGLE_ROWS + 1, MIN_SINGLE_ROWS + 1)),
        (
            [(0, 1)] * MIN_FRESH_TOKENS,
            (0, 0, MIN_FRESH_TOKENS, MIN_FRESH_TOKENS),
        ),  # one token is a whole prompt: there is no context to be decoded on
    ],
)
def test_split(rows: list[tuple[int, int]], expected: tuple[int, int, int, int]) -> None:
    assert split(*rows) == expected


def test_a_profiled_step_has_every_part() -> None:
    step = mixed_step(max_rows=16, max_tokens=8192, context_length=4096)
    extends = unpack_i32(step.extend_lens)
    parts = split_extend(unpack_i32(step.seq_lens) - extends, extends)
    assert 0 < parts.short < parts.fresh < parts.single < parts.rows
    assert len(step.row_writes) >= MIN_WRITES
    assert max(unpack_i32(shared_in(step).rows)) < parts.fresh
    ids = np.split(unpack_i32(step.input_ids), np.cumsum(extends)[:-1])
    assert [row.min() < 0 for row in ids] == [False] * parts.single + [True] * (parts.rows - parts.single)
    for max_rows, max_tokens, context_length in ((1, 16, 16), (2, 1, 2), (64, 8192, 9), (8, 64, 4096)):
        small = mixed_step(max_rows, max_tokens, context_length)
        lens, extends = unpack_i32(small.seq_lens), unpack_i32(small.extend_lens)
        assert (extends >= 1).all()
        assert (extends <= lens).all()
        assert lens.max() <= context_length
        assert len(lens) <= max_rows


def test_every_row_is_in_one_part_and_of_its_kind() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 12))
        prefix, extend = rng.integers(0, 2, n) * 40, rng.choice([1, 7, 600], n)
        parts = split_extend(prefix.astype(np.int32), extend.astype(np.int32))
        assert 0 <= parts.short <= parts.fresh <= parts.single <= parts.rows == n
        assert (prefix[parts.fresh : parts.single] == 0).all()
        assert (extend[parts.short : parts.fresh] <= SHORT_PROMPT).all()
        assert (extend[parts.single :] == 1).all()
        assert (prefix[parts.single :] > 0).all()
        assert parts != ExtendParts(0, 0, 0, n) or (extend == 1).all()
