from __future__ import annotations

import numpy as np
import pytest

from radixrt.errors import InvariantError
from radixrt.mem_cache import ReqToTokenPool


def test_hands_out_every_row_but_the_padding_row() -> None:
    pool = ReqToTokenPool(max_requests=3, max_context_len=7)
    assert pool.table.shape == (4, 7)
    assert pool.table.dtype == np.int32
    assert pool.available() == 3
    assert {pool.alloc(), pool.alloc(), pool.alloc()} == {1, 2, 3}
    assert pool.alloc() is None
    assert pool.available() == 0
    pool.free(2)
    assert pool.in_use() == [1, 3]
    assert pool.available() == 1
    assert pool.alloc() == 2


def test_clear_frees_every_row() -> None:
    pool = ReqToTokenPool(3, 7)
    pool.alloc()
    pool.alloc()
    pool.clear()
    assert pool.available() == 3
    assert pool.in_use() == []
    assert sorted([pool.alloc(), pool.alloc(), pool.alloc()]) == [1, 2, 3]


@pytest.mark.parametrize("idx", [-1, 0, 2, 4])
def test_refuses_to_free_a_row_that_is_not_in_use(idx: int) -> None:
    pool = ReqToTokenPool(3, 7)
    assert pool.alloc() == 1
    with pytest.raises(InvariantError, match=f"row {idx}"):
        pool.free(idx)
    assert pool.available() == 2


@pytest.mark.parametrize(("rows", "length"), [(0, 4), (4, 0), (-1, 4)])
def test_rejects_empty_tables(rows: int, length: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        ReqToTokenPool(rows, length)
