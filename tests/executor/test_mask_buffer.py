"""Grammar masks through memory that the scheduler and the runner map."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from radixrt.executor.mask_buffer import MaskBuffer, MaskReader


def test_what_is_written_is_read_at_the_offset(tmp_path: Path) -> None:
    path = str(tmp_path / "masks")
    buffer, reader = MaskBuffer(path, max_rows=5, words=7), MaskReader(path)
    rng = np.random.default_rng(1)
    for num_rows in (1, 5, 3, 4):
        rows, offset = buffer.next_rows(num_rows)
        rows[:] = rng.integers(0, 2**32, rows.shape, dtype=np.uint32)
        assert np.array_equal(reader.read(offset, num_rows, 7), rows)


def test_the_mask_before_is_whole_while_the_next_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "masks")
    buffer, reader = MaskBuffer(path, max_rows=2, words=3), MaskReader(path)
    rows, offset = buffer.next_rows(2)
    rows[:] = 1
    before = reader.read(offset, 2, 3)
    following, _ = buffer.next_rows(2)
    following[:] = 2
    assert (before == 1).all()


def test_only_this_user_reads_it_and_nobody_elses_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    MaskBuffer(str(path), max_rows=1, words=1)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(FileExistsError):
        MaskBuffer(str(path), max_rows=1, words=1)
