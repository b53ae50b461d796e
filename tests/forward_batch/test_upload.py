"""Packing a step's numbers for one copy: each array can be read back at its offset of the layout."""

from __future__ import annotations

import numpy as np
import torch

from radixrt.forward_batch.upload import ALIGNMENT, layout, pack, view


def test_packed_arrays_are_found_again() -> None:
    arrays = [
        np.arange(5, dtype=np.int64),
        np.zeros(0, np.int32),
        np.array([[1.5, 2.5]], np.float32),
        np.arange(3, dtype=np.float64),
    ]
    offsets, size = layout(arrays)
    packed = torch.zeros(size, dtype=torch.uint8)
    pack(packed, arrays, offsets)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    for array, offset in zip(arrays, offsets, strict=True):
        found = view(packed, offset, array)
        assert found.shape == array.shape
        np.testing.assert_array_equal(found.numpy(), array)
