"""Rows that are divided because their keys are too many to be copied at once; tests/gpu/test_flashinfer.py computes."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.parametrize(
    ("lens", "ends"),
    [([], []), ([5], [1]), ([500], [1]), ([60, 40, 1], [2, 3]), ([1, 200, 1, 99, 1], [1, 2, 4, 5]), ([10] * 9, [9])],
)
def test_no_part_has_too_many_keys_unless_it_is_one_row(lens: list[int], ends: list[int]) -> None:
    from radixrt.attention.flashinfer_plans import divide

    assert divide(np.array(lens, np.int32), 100) == ends
