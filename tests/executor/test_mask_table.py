"""Grammar masks on their way from the scheduler to the runner: each is sent once, and every step gets its own."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from radixrt.constrained.grammar import Bitmask
from radixrt.executor.mask_table import MaskReader, MaskTable, mask_slots
from radixrt.messages.wire import unpack_i32

VOCAB = 70
WORDS = 3


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Limit the size of files as a full file system does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def kept(value: int) -> Bitmask:
    """A mask as caches hold it: read-only."""
    mask = np.full(WORDS, value, np.uint32)
    mask.flags.writeable = False
    return mask


def send(table: MaskTable, reader: MaskReader, masks: Sequence[Bitmask]) -> tuple[list[int], int]:
    """The first word of each row's mask as the runner reads it, for one row to a mask; and the number of new ones."""
    message = table.message(1, list(range(len(masks))), list(range(len(masks))), masks)
    mask, new = reader.read(message, VOCAB)
    assert mask is not None
    assert (mask.table[mask.slots] == mask.table[mask.slots][:, :1]).all()
    return mask.table[mask.slots][:, 0].tolist(), len(new)


@pytest.fixture(params=["mapped", "carried"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return str(tmp_path / "masks") if request.param == "mapped" else None


def test_a_mask_is_sent_once(path: str | None) -> None:
    table, reader = MaskTable(4, WORDS, path), MaskReader(path)
    one, two = kept(1), kept(2)
    assert send(table, reader, [one, two]) == ([1, 2], 2)
    assert send(table, reader, [two, one]) == ([2, 1], 0)
    assert send(table, reader, [one, kept(3)]) == ([1, 3], 1)


def test_rows_share_masks(path: str | None) -> None:
    table, reader = MaskTable(2, WORDS, path), MaskReader(path)
    mask, _ = reader.read(table.message(1, [3, 0, 5], [1, 0, 1], [kept(1), kept(2)]), VOCAB)
    assert mask is not None
    assert mask.rows.tolist() == [3, 0, 5]
    assert mask.table[mask.slots][:, 0].tolist() == [2, 1, 2]


def test_any_sequence_of_steps(path: str | None) -> None:
    rng = random.Random(3)
    table, reader = MaskTable(6, WORDS, path), MaskReader(path)
    known, sent, rows = [kept(value) for value in range(10)], 0, 0
    for value in range(100, 400):
        masks = [*rng.sample(known, rng.randint(0, 5)), np.full(WORDS, value, np.uint32)]  # the last may be changed
        found, new = send(table, reader, masks)
        assert found == [int(mask[0]) for mask in masks]
        masks[-1][:] = 0
        sent, rows = sent + new, rows + len(masks)
        if rng.random() < 0.02:
            table.forget()
            reader = MaskReader(path)
    assert 300 < sent < 0.8 * rows


def test_a_mask_that_may_be_changed_is_sent_anew(path: str | None) -> None:
    table, reader = MaskTable(2, WORDS, path), MaskReader(path)
    mask = np.full(WORDS, 1, np.uint32)
    assert send(table, reader, [mask]) == ([1], 1)
    mask[:] = 2
    assert send(table, reader, [mask]) == ([2], 1)


def test_a_step_without_masks(path: str | None) -> None:
    mask, new = MaskReader(path).read(MaskTable(2, WORDS, path).message(1, [], [], []), VOCAB)
    assert mask is None
    assert len(new) == 0


def test_only_this_user_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    MaskTable(1, 1, str(path))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize("mapped", [(True, True), (True, False), (False, True)])
def test_a_restarted_scheduler_writes_every_mask_anew(tmp_path: Path, mapped: tuple[bool, bool]) -> None:
    """To the same reader; its file system may be full by then, or no longer."""
    path, one = str(tmp_path / "masks"), kept(1)
    reader = MaskReader(path)
    for life in mapped:
        table = MaskTable(2, WORDS, path if life else None)
        assert send(table, reader, [kept(7), one]) == ([7, 1], 2)
        assert send(table, reader, [one]) == ([1], 0)


def test_every_block_is_allocated_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    MaskTable(64, 4096, str(path))
    assert path.stat().st_blocks * 512 >= path.stat().st_size == 64 * 4096 * 4


def test_a_full_file_system_leaves_no_file_behind_that_could_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    with no_file_above(4096), pytest.raises(OSError, match="large"):
        MaskTable(64, 64, str(path))
    assert path.stat().st_size == 0


def test_there_are_slots_for_every_row_of_a_step() -> None:
    assert all(mask_slots(rows) >= rows for rows in (1, 64, 1000))


def test_slots_of_different_masks_are_different() -> None:
    message = MaskTable(8, WORDS).message(1, [0, 1, 2], [0, 1, 2], [kept(1), kept(1), kept(2)])
    assert len(set(unpack_i32(message.slots).tolist())) == 3
