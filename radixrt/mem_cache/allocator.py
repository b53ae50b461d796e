"""Allocation of KV slots.

A slot is one token's keys and values in every layer. Slots come in pages of `page_size` neighbours; a page has one
owner at a time: this allocator (free), the prefix cache, or one request. Page 0 is padding, dummy rows may write to it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixrt.errors import InvariantError

Int32Array = npt.NDArray[np.int32]
I32 = np.dtype(np.int32)


class TokenToKVPoolAllocator:
    """Allocates KV slots by whole pages; slot ids are int32, page * page_size + offset.

    Pages 1..num_slots // page_size are allocated, page 0 (slots 0..page_size-1) never is, so the KV tensors need
    num_slots + page_size rows. The free pages are a stack in one preallocated array: alloc and free are slice copies.
    A fresh stack gives ascending contiguous runs, and a run that is freed comes back in the order it was freed in.

    Args:
        num_slots: slots that can be allocated, a positive multiple of page_size.
        page_size: slots per page.

    Raises:
        ValueError: num_slots is not a positive multiple of page_size, or page_size < 1.
    """

    def __init__(self, num_slots: int, page_size: int = 1) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        if num_slots < 1 or num_slots % page_size:
            raise ValueError(f"num_slots must be a positive multiple of page_size {page_size}, got {num_slots}")
        self.num_slots = num_slots
        self.page_size = page_size
        self._num_pages = num_slots // page_size
        self._offsets = np.arange(page_size, dtype=I32)
        self._stack = np.empty(self._num_pages, dtype=I32)  # [:_top] are the free pages, the next one last
        self._top = 0
        self.clear()

    def clear(self) -> None:
        """Free every page. All holders of slots must drop them."""
        self._stack[:] = np.arange(self._num_pages, 0, -1, dtype=I32)
        self._top = self._num_pages

    def available(self) -> int:
        """Free slots, a multiple of page_size."""
        return self._top * self.page_size

    # --- cost of an allocation ---

    def new_slots_for_extend(self, prefix_len: int, num_new: int) -> int:
        """Free slots (a multiple of page_size) that alloc_extend(prefix_len, num_new, ...) takes."""
        page_size = self.page_size
        room = -prefix_len % page_size  # left in the sequence's own last page
        return max(0, -(-(num_new - room) // page_size)) * page_size

    def new_slots_for_decode(self, seq_lens: Int32Array) -> int:
        """Free slots (a multiple of page_size) that alloc_decode(seq_lens, ...) takes."""
        if self.page_size == 1:
            return len(seq_lens)
        return (len(seq_lens) - int(np.count_nonzero(seq_lens % self.page_size))) * self.page_size

    # --- alloc and free ---

    def alloc_extend(self, prefix_len: int, num_new: int, last_slot: int) -> Int32Array | None:
        """Slots for positions prefix_len..prefix_len + num_new - 1 of one sequence.

        Args:
            prefix_len: positions that already have a slot.
            num_new: positions to add, 0 or more.
            last_slot: slot of position prefix_len - 1. The caller must own its page, whose remaining
                slots are filled first. Ignored where prefix_len is a multiple of page_size.

        Returns:
            int32[num_new], or None, with nothing changed, if too few slots are free.
        """
        page_size = self.page_size
        if page_size == 1:
            return self._pop_pages(num_new)
        room = min(-prefix_len % page_size, num_new)
        pages = self._pop_pages(-(-(num_new - room) // page_size))
        if pages is None:
            return None
        slots = np.empty(num_new, dtype=I32)
        slots[:room] = self._offsets[:room] + (last_slot + 1)
        slots[room:] = (pages[:, None] * page_size + self._offsets).ravel()[: num_new - room]
        return slots

    def alloc_decode(self, seq_lens: Int32Array, last_slots: Int32Array) -> Int32Array | None:
        """One new slot for each of B sequences.

        Args:
            seq_lens: int32[B], positions that already have a slot, so the length before the new token.
            last_slots: int32[B], slot of position seq_lens - 1; ignored where seq_lens is a multiple of
                page_size.

        Returns:
            int32[B], or None, with nothing changed, if too few slots are free.
        """
        if self.page_size == 1:
            return self._pop_pages(len(seq_lens))
        starts_page = seq_lens % self.page_size == 0
        pages = self._pop_pages(int(np.count_nonzero(starts_page)))
        if pages is None:
            return None
        slots = np.add(last_slots, 1, dtype=I32)
        slots[starts_page] = pages * self.page_size
        return slots

    def free(self, slots: Int32Array) -> None:
        """Free all pages with any of the slots. The caller must own these pages whole.

        Args:
            slots: int32[n], in any order; n may be 0.

        Raises:
            InvariantError: more pages are free than exist. Any other double free is left to check_invariants.
        """
        pages = slots
        if self.page_size > 1 and len(slots):
            pages = slots // self.page_size
            # Most slots are next to others of their page, which leaves little for unique (a sort).
            starts_run = np.empty(len(pages), dtype=np.bool_)
            starts_run[0] = True
            np.not_equal(pages[1:], pages[:-1], out=starts_run[1:])
            pages = np.unique(pages[starts_run])
        top = self._top + len(pages)
        if top > self._num_pages:
            raise InvariantError(f"double free: {top} pages would be free, only {self._num_pages} exist")
        self._stack[self._top : top] = pages[::-1]  # reversed, so that alloc pops the pages in this order
        self._top = top

    def _pop_pages(self, count: int) -> Int32Array | None:
        if count > self._top:
            return None
        top = self._top - count
        pages = self._stack[top : self._top][::-1].copy()
        self._top = top
        return pages

    # --- checks ---

    def free_slots(self) -> Int32Array:
        """The free slots, int32[available()], in no order: for invariants, not for allocation."""
        return (self._stack[: self._top, None] * self.page_size + self._offsets).ravel()

    def check_invariants(self) -> None:
        """Free pages are distinct and within 1..num_slots // page_size; so no page was freed twice.

        Raises:
            InvariantError: which pages are free twice or do not exist.
        """
        pages, counts = np.unique(self._stack[: self._top], return_counts=True)
        if len(pages) and (pages[0] < 1 or pages[-1] > self._num_pages):
            raise InvariantError(f"free pages {pages[0]}..{pages[-1]} reach outside 1..{self._num_pages}")
        if (counts > 1).any():
            raise InvariantError(f"pages free more than once (double free): {pages[counts > 1][:16].tolist()}")
