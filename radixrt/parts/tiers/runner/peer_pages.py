"""`PeerPages`: pages of another replica's arena, which that replica may overwrite at any time. Imports no torch."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from radixrt.parts.tiers.records import SharedRecords
from radixrt.parts.tiers.runner.page_file import PageError


class PageGone(PageError):
    """The page does not hold the expected tokens any more."""


class PeerPages:
    """Pages of one rank of another replica, read as files, so that the memory of a replica that has left is freed.

    A reader asks for the changes of a page before and after it reads the page: its bytes belong to the key if both
    calls return the same number.

    Args:
        arena: path of the arena of the rank.
        records: path of the records of the replica's pages.

    Raises:
        OSError: the replica has left.
    """

    def __init__(self, arena: str, records: str, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._records = SharedRecords(records)
        try:
            self._fd = os.open(arena, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._records.close()
            raise

    def changes(self, page: int, key: bytes) -> int:
        """Return the number of changes of a page so far.

        Raises:
            PageGone: the page does not have this key.
        """
        found = self._records.changes(page, key)
        if found is None:
            raise PageGone("the page holds other tokens")
        return found

    def read(self, page: int, first: int, target: npt.NDArray[np.uint8]) -> None:
        """Read bytes of a page, from byte `first` on.

        Raises:
            PageError: the arena is too short.
        """
        start, view, done = page * self._page_bytes + first, target.data, 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], start + done)
            if not count:
                raise PageError("the arena is too short")
            done += count

    def close(self) -> None:
        self._records.close()
        os.close(self._fd)
