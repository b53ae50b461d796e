"""Grammar masks through memory that the scheduler and the runner map."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from radixrt.executor.mask_buffer import MaskBuffer, MaskReader


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Limit the size of files as a full file system does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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


def test_only_this_user_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    MaskBuffer(str(path), max_rows=1, words=1)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_restarted_scheduler_writes_to_the_buffer_that_the_runner_has_mapped(tmp_path: Path) -> None:
    path = str(tmp_path / "masks")
    first, reader = MaskBuffer(path, max_rows=2, words=3), MaskReader(path)
    rows, offset = first.next_rows(2)
    rows[:] = 1
    assert (reader.read(offset, 2, 3) == 1).all()
    rows, offset = MaskBuffer(path, max_rows=2, words=3).next_rows(2)
    rows[:] = 2
    assert (reader.read(offset, 2, 3) == 2).all()


def test_every_block_is_allocated_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    MaskBuffer(str(path), max_rows=64, words=4096)
    assert path.stat().st_blocks * 512 >= path.stat().st_size == 2 * 64 * 4096 * 4


def test_a_full_file_system_leaves_no_file_behind_that_could_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    with no_file_above(4096), pytest.raises(OSError, match="large"):
        MaskBuffer(str(path), max_rows=64, words=64)
    assert path.stat().st_size == 0
