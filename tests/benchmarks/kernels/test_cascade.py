"""The cascade benchmark's batches have the stated geometry, and both computations of them agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.kernels.cascade import Geometry, make_batch, measure_cpu


def test_rows_of_a_group_hold_the_same_slots() -> None:
    batch = make_batch(Geometry((2, 3, 2), (5, 4, 3), 2), "cpu")
    assert batch.shared is not None
    table = batch.req_to_token.numpy()[1:]
    assert table.shape == (12, 14)
    assert [(s, n, c) for s, n, _, c in batch.shared.segments.tolist()] == [(0, 5, 6)] * 2 + [(5, 4, 2)] * 6
    for start, length, first, count in batch.shared.segments.tolist():
        slots = table[batch.shared.rows[first : first + count], start : start + length]
        assert (slots == slots[0]).all()
    assert len({*table[:, 9:].reshape(-1).tolist()}) == 12 * 5
    assert batch.out_cache_loc.tolist() == table[:, -1].tolist()


@pytest.mark.usefixtures("cache_folder")
def test_a_row_of_the_table(cache_folder: Path) -> None:
    with torch.inference_mode():
        row = measure_cpu((4, 2, 32), Geometry((1, 4), (70, 5), 3), seconds=0.01)
    assert len(row) == 5
    assert float(row[-1]) < 1e-2
