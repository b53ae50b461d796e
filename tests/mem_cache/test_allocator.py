from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.errors import InvariantError
from radixrt.mem_cache import TokenToKVPoolAllocator


def i32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(("num_slots", "page_size"), [(0, 1), (-4, 1), (10, 4), (3, 4), (0, 16), (4, 0), (4, -2)])
def test_rejects_sizes_that_are_not_whole_pages(num_slots: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="page_size"):
        TokenToKVPoolAllocator(num_slots, page_size)


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_fresh_allocator_hands_out_everything_but_page_0_in_ascending_runs(page_size: int) -> None:
    allocator = TokenToKVPoolAllocator(64, page_size)
    assert (allocator.num_slots, allocator.page_size, allocator.available()) == (64, page_size, 64)
    first, second = allocator.alloc_extend(0, 32, 0), allocator.alloc_extend(0, 32, 0)
    assert first is not None
    assert second is not None
    assert first.dtype == np.int32
    np.testing.assert_array_equal(np.concatenate([first, second]), np.arange(page_size, 64 + page_size))
    assert allocator.available() == 0
    allocator.check_invariants()


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_freed_run_comes_back_in_order(page_size: int) -> None:
    allocator = TokenToKVPoolAllocator(64, page_size)
    run = allocator.alloc_extend(0, 32, 0)
    allocator.free(run)
    assert allocator.available() == 64
    np.testing.assert_array_equal(allocator.alloc_extend(0, 32, 0), run)


@pytest.mark.parametrize("page_size", [1, 16])
def test_freed_slots_are_taken_before_slots_that_were_never_used(page_size: int) -> None:
    """The pages of memory that are ever touched are those of the most slots in use at once."""
    allocator = TokenToKVPoolAllocator(4096, page_size)
    kept: list[np.ndarray] = []
    highest = 0
    for turn in range(300):
        slots = allocator.alloc_extend(0, 16 * (1 + turn % 5), 0)
        assert slots is not None
        highest = max(highest, int(slots.max()))
        kept.append(slots)
        if len(kept) == 4:
            allocator.free(kept.pop(turn % 4))
    assert highest < page_size + 4 * 80


def test_extend_fills_the_page_of_the_last_slot_first() -> None:
    allocator = TokenToKVPoolAllocator(16, 4)
    first = allocator.alloc_extend(0, 5, 0)
    np.testing.assert_array_equal(first, [4, 5, 6, 7, 8])
    assert allocator.available() == 8
    np.testing.assert_array_equal(allocator.alloc_extend(5, 2, 8), [9, 10])  # fits in the page, which stays open
    assert allocator.available() == 8
    np.testing.assert_array_equal(allocator.alloc_extend(7, 4, 10), [11, 12, 13, 14])
    assert allocator.available() == 4
    np.testing.assert_array_equal(allocator.alloc_extend(11, 1, 14), [15])
    np.testing.assert_array_equal(allocator.alloc_extend(12, 1, -1), [16])  # last_slot is not looked at
    assert allocator.available() == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_extend_by_nothing_is_empty(page_size: int) -> None:
    allocator = TokenToKVPoolAllocator(16, page_size)
    for prefix_len in (0, 3, 4):
        slots = allocator.alloc_extend(prefix_len, 0, 7)
        assert slots is not None
        assert slots.dtype == np.int32
        assert len(slots) == 0
    assert allocator.available() == 16
    assert allocator.new_slots_for_extend(3, 0) == 0


def test_decode_takes_a_page_only_where_one_is_full() -> None:
    allocator = TokenToKVPoolAllocator(16, 4)
    assert len(allocator.alloc_extend(0, 4, 0)) + len(allocator.alloc_extend(0, 5, 0)) == 9
    seq_lens, last_slots = i32(4, 5, 0), i32(7, 12, 0)
    assert allocator.available() == 4
    assert allocator.new_slots_for_decode(seq_lens) == 8
    assert allocator.alloc_decode(seq_lens, last_slots) is None  # two pages wanted, one free
    assert allocator.available() == 4
    slots = allocator.alloc_decode(seq_lens[:2], last_slots[:2])
    np.testing.assert_array_equal(slots, [16, 13])
    assert slots.dtype == np.int32
    assert allocator.available() == 0
    np.testing.assert_array_equal(allocator.alloc_decode(i32(5, 6), slots), [17, 14])  # no page wanted, none free
    np.testing.assert_array_equal(last_slots, [7, 12, 0])


def test_decode_with_pages_of_one_slot() -> None:
    allocator = TokenToKVPoolAllocator(5, 1)
    assert allocator.new_slots_for_decode(i32(3, 4, 9)) == 3
    np.testing.assert_array_equal(allocator.alloc_decode(i32(3, 4, 9), i32(1, 2, 3)), [1, 2, 3])
    assert allocator.alloc_decode(i32(3, 4, 9), i32(1, 2, 3)) is None
    assert allocator.available() == 2
    assert len(allocator.alloc_decode(i32(), i32())) == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_extend_beyond_what_is_free_changes_nothing(page_size: int) -> None:
    allocator = TokenToKVPoolAllocator(16, page_size)
    allocator.alloc_extend(0, 8, 0)
    assert allocator.alloc_extend(0, 9, 0) is None
    assert allocator.available() == 8
    assert allocator.alloc_extend(0, 8, 0) is not None


def test_free_takes_back_each_touched_page_once_in_any_order() -> None:
    allocator = TokenToKVPoolAllocator(32, 4)
    slots = allocator.alloc_extend(0, 30, 0)
    allocator.free(slots[[13, 1, 12, 2]])  # pages 1 and 4, twice each
    assert allocator.available() == 8
    allocator.check_invariants()
    allocator.free(slots[4:12])
    allocator.free(slots[16:])
    allocator.free(slots[:0])
    assert allocator.available() == 32
    allocator.check_invariants()
    np.testing.assert_array_equal(np.sort(allocator.free_slots()), np.arange(4, 36))


@pytest.mark.parametrize("page_size", [1, 4])
def test_clear_makes_everything_free(page_size: int) -> None:
    allocator = TokenToKVPoolAllocator(16, page_size)
    allocator.free(allocator.alloc_extend(0, 12, 0)[4:])
    allocator.alloc_extend(0, 4, 0)
    allocator.clear()
    assert allocator.available() == 16
    allocator.check_invariants()
    np.testing.assert_array_equal(allocator.alloc_extend(0, 16, 0), np.arange(page_size, 16 + page_size))


@pytest.mark.parametrize("page_size", [1, 4])
def test_double_free_is_detected(page_size: int) -> None:
    allocator = TokenToKVPoolAllocator(16, page_size)
    slots = allocator.alloc_extend(0, 12, 0)
    allocator.free(slots[:4])
    allocator.check_invariants()
    allocator.free(slots[:4])
    with pytest.raises(InvariantError, match="double free"):
        allocator.check_invariants()


def test_freeing_more_than_exists_is_refused_at_once() -> None:
    allocator = TokenToKVPoolAllocator(4, 1)
    with pytest.raises(InvariantError, match="double free"):
        allocator.free(i32(1))
    assert allocator.available() == 4


def test_padding_and_unknown_slots_among_the_free_ones_are_detected() -> None:
    for bad in (0, 5):
        allocator = TokenToKVPoolAllocator(4, 1)
        allocator.alloc_extend(0, 1, 0)
        allocator.free(i32(bad))
        with pytest.raises(InvariantError, match="outside"):
            allocator.check_invariants()


@settings(max_examples=100, deadline=None)
@given(data=st.data(), page_size=st.sampled_from([1, 2, 3, 16]))
def test_sequences_never_share_a_page_and_costs_are_foretold(data: st.DataObject, page_size: int) -> None:
    allocator = TokenToKVPoolAllocator(12 * page_size, page_size)
    sequences: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["new", "extend", "decode", "free"]))
        before = allocator.available()
        if action == "decode" and sequences:
            lens = np.array([len(s) for s in sequences], dtype=np.int32)
            cost = allocator.new_slots_for_decode(lens)
            slots = allocator.alloc_decode(lens, np.array([s[-1] for s in sequences], dtype=np.int32))
            if slots is not None:
                for sequence, slot in zip(sequences, slots.tolist(), strict=True):
                    sequence.append(slot)
        elif action == "free" and sequences:
            sequence = sequences.pop(data.draw(st.integers(0, len(sequences) - 1)))
            allocator.free(np.array(sequence, dtype=np.int32))
            assert allocator.available() == before + allocator.new_slots_for_extend(0, len(sequence))
            slots, cost, before = None, allocator.num_slots + 1, allocator.available()
        else:
            if action == "new" or not sequences:
                sequence = []
            else:
                sequence = sequences[data.draw(st.integers(0, len(sequences) - 1))]
            count = data.draw(st.integers(1, 3 * page_size))
            cost = allocator.new_slots_for_extend(len(sequence), count)
            slots = allocator.alloc_extend(len(sequence), count, sequence[-1] if sequence else 0)
            if slots is not None:
                assert len(slots) == count
                if not sequence:
                    sequences.append(sequence)
                sequence.extend(slots.tolist())
        assert (slots is None) == (cost > before)
        assert allocator.available() == before - (cost if slots is not None else 0)
        allocator.check_invariants()
        pages: list[int] = []
        for sequence in sequences:
            assert [slot % page_size for slot in sequence] == [i % page_size for i in range(len(sequence))]
            own = [slot // page_size for slot in sequence[::page_size]]
            assert [slot // page_size for slot in sequence] == [own[i // page_size] for i in range(len(sequence))]
            pages += own
        assert len(pages) == len(set(pages))
        assert 0 not in pages
        assert len(pages) * page_size + allocator.available() == allocator.num_slots
        assert not set(pages) & set((allocator.free_slots() // page_size).tolist())
