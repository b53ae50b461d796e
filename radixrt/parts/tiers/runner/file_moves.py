"""`FileMoves`: a thread that copies pages between the arena and a rank's file, and from arenas of other replicas."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixrt.messages.kv_moves import KEY_BYTES, KVLoad, KVPull, KVSave
from radixrt.messages.wire import unpack_i32
from radixrt.parts.tiers.runner.page_file import PageError, PageFile
from radixrt.parts.tiers.runner.peer_pages import PageGone, PeerPages
from radixrt.parts.tiers.runner.pool_copies import Ended

logger = logging.getLogger(__name__)

COPIED_BYTES = 2**20
"""Bytes that are copied between two looks at `drop`, which waits as long: about 0.2 ms."""
CLOSE_S = 5.0
"""Seconds that `close` waits for a file system that does not answer."""
WARNING_S = 60.0
"""Least time between two warnings about failed moves."""


class _Dropped(Exception):
    """The move under way was dropped."""


@dataclass(frozen=True)
class _Job:
    order: KVSave | KVLoad | KVPull
    epoch: int
    fence: Callable[[], None]

    @property
    def saves(self) -> bool:
        return isinstance(self.order, KVSave)


class FileMoves:
    """Executes `KVSave`, `KVLoad` and `KVPull` in a thread. Loads and pulls overtake saves, because requests wait for
    them.

    A page goes through the file's buffer: the arena gets verified bytes only, and a page of the file has the bytes that
    belonged to its key, even if a dropped move's pages of the arena are used again.

    Args:
        file: None without a disk tier.
        pages: uint8 [pages, page_bytes], the arena.
    """

    def __init__(self, file: PageFile | None, pages: npt.NDArray[np.uint8]) -> None:
        self._file = file
        self._pages = pages
        # The lock guards the queues, the epoch, and the copies into and out of the arena.
        self._changed = threading.Condition()
        self._loads: deque[_Job] = deque()
        self._saves: deque[_Job] = deque()
        self._epoch = 0  # number of calls of `drop`
        self._closing = False
        self._under_way = 0
        self._ended: deque[tuple[int, Ended]] = deque()  # with the epoch of each
        self._warned: float | None = None
        self._thread = threading.Thread(target=self._run, name="radixrt-tiers", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """True while `poll` may return something."""
        return self._under_way > 0

    def begin(self, order: KVSave | KVLoad | KVPull, fence: Callable[[], None]) -> None:
        """Begin a move.

        Args:
            fence: called by the thread before it writes into the arena; see `PoolCopies.fence`.
        """
        self._under_way += 1
        with self._changed:
            job = _Job(order, self._epoch, fence)
            (self._saves if job.saves else self._loads).append(job)
            self._changed.notify()

    def poll(self) -> list[Ended]:
        """Return the moves that have ended since the last call."""
        ended = []
        while self._ended:
            epoch, each = self._ended.popleft()
            if epoch == self._epoch:
                ended.append(each)
                self._under_way -= 1
        return ended

    def drop(self) -> None:
        """End all moves. The thread does not touch the arena for them any more, and no move is reported; a page that
        is being written to the file is completed."""
        with self._changed:
            self._epoch += 1
            self._loads.clear()
            self._saves.clear()
        self._under_way = 0

    def close(self) -> None:
        """End the thread, and close the file."""
        self.drop()
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive() and self._file is not None:
            self._file.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._loads or self._saves or self._closing):
                    self._changed.wait()
                if self._closing:
                    return
                job = (self._loads or self._saves).popleft()
            started, seconds = time.perf_counter(), None
            try:
                self._execute(job)
                seconds = time.perf_counter() - started
            except _Dropped:
                continue
            except PageGone:
                pass  # the other replica has evicted the page, as it may at any time
            except (OSError, PageError) as error:
                self._warn(job, error)
            except Exception:
                logger.exception("a move of keys and values failed")
            self._ended.append((job.epoch, Ended(job.order.move, job.saves, seconds)))

    def _execute(self, job: _Job) -> None:
        order = job.order
        if not job.saves:
            job.fence()
        if isinstance(order, KVPull):
            self._pull(job, order)
            return
        file_of_rank = self._file
        assert file_of_rank is not None
        for i, (page, file) in enumerate(zip(unpack_i32(order.pages).tolist(), unpack_i32(order.files).tolist())):
            key = order.keys[i * KEY_BYTES : (i + 1) * KEY_BYTES]
            if job.saves:
                self._copy(job, self._pages[page], file_of_rank.page)
                file_of_rank.write(file, key)
            else:
                file_of_rank.read(file, key)
                self._copy(job, file_of_rank.page, self._pages[page])

    def _pull(self, job: _Job, order: KVPull) -> None:
        """Copy pages of another replica into the arena. A page that turns out to be another one makes the move fail:
        the scheduler then frees the places."""
        pages, theirs = unpack_i32(order.pages).tolist(), unpack_i32(order.theirs).tolist()
        peer = PeerPages(order.arena, order.records, self._pages.shape[1])
        try:
            for i, (page, their) in enumerate(zip(pages, theirs, strict=True)):
                before = peer.changes(their, order.keys[i * KEY_BYTES : (i + 1) * KEY_BYTES])
                for first in range(0, self._pages.shape[1], COPIED_BYTES):
                    with self._changed:
                        if job.epoch != self._epoch:
                            raise _Dropped
                        peer.read(their, first, self._pages[page, first : first + COPIED_BYTES])
                if peer.changes(their, order.keys[i * KEY_BYTES : (i + 1) * KEY_BYTES]) != before:
                    raise PageGone("the page has changed while it was copied")
        finally:
            peer.close()

    def _copy(self, job: _Job, source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8]) -> None:
        """Copy a page, unless the move is dropped."""
        for first in range(0, len(source), COPIED_BYTES):
            part = slice(first, first + COPIED_BYTES)
            with self._changed:
                if job.epoch != self._epoch:
                    raise _Dropped
                target[part] = source[part]

    def _warn(self, job: _Job, error: Exception) -> None:
        now = time.monotonic()
        if self._warned is None or now - self._warned >= WARNING_S:
            self._warned = now
            if isinstance(job.order, KVPull):
                logger.warning("cannot copy keys and values of another replica, requests compute them: %s", error)
                return
            what = "save keys and values to" if job.saves else "load keys and values from"
            logger.warning("cannot %s disk, requests compute them: %s", what, error)
