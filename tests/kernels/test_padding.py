"""Memory behind a batch's tokens."""

from __future__ import annotations

import pytest
import torch

from radixrt.kernels.triton.padding import empty_padded, padded_view
from radixrt.kernels.triton.skinny_gemm_config import MAX_PADDED, MAX_TOKENS

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rows", "there"), [(1, 16), (16, 16), (72, 128), (MAX_TOKENS, MAX_TOKENS), (257, 384), (MAX_PADDED, MAX_PADDED)]
)
def test_room_up_to_the_next_tile(rows: int, there: int) -> None:
    x = empty_padded(rows, 8, dtype=torch.bfloat16, device=CPU)
    assert x.shape == (rows, 8)
    assert x.is_contiguous()
    whole = padded_view(x.zero_(), there)
    assert whole.shape == (there, 8)
    assert whole.data_ptr() == x.data_ptr()
    assert torch.equal(whole[:rows], x)
    assert padded_view(x, there + 1) is x


@pytest.mark.parametrize("rows", [0, MAX_PADDED + 1])
def test_no_room_where_no_product_reads_it(rows: int) -> None:
    x = empty_padded(rows, 2, 4, dtype=torch.float32, device=CPU)
    assert x.shape == (rows, 2, 4)
    assert x.untyped_storage().nbytes() == rows * 32


def test_rows_within_a_matrix_have_what_follows_them() -> None:
    matrix = torch.arange(12.0).view(6, 2)
    assert torch.equal(padded_view(matrix[2:4], 4), matrix[2:])
    assert padded_view(matrix[2:4], 5).shape == (2, 2)
