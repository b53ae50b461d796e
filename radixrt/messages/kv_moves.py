"""Orders and reports of the part `tiers`, which moves keys and values between the KV pool, host memory and disk.

An order is the data of a `PartOrder`, a report the data of a `PartReport`. Every rank gets the same orders, executes
orders on the pool between the steps before and after them, and moves the heads and layers that it has. A *place* is a
token's row in the arena, which is memory of the host; a *file page* is a page of the rank's file on disk.

A model with recurrent layers has states besides keys and values. A state takes a fixed number of consecutive rows
(`KVOpen.state_rows`), so that a state is copied like as many tokens: a negative slot is a row of a state
(`state_slots`).

scheduler -> ranks   KVOpen, KVOut, KVIn, KVSave, KVLoad, KVPull, KVDrop
ranks -> scheduler   KVConnectorOutput
"""

from __future__ import annotations

import msgspec
import numpy as np

from radixrt.messages.wire import Int32Array

TIERS = "tiers"
"""Name of the part."""

KEY_BYTES = 16
"""Bytes of the chain hash of a page, which covers the namespace and all tokens up to the page's end."""

MOVE_BYTES = 16 * 2**20
"""Largest size of a move in one rank, unless a page is larger: then one page. Also the size of a piece of a rank's
staging memory."""
STATE_TOKEN = -1
"""Token that stands for a row of a state in trees, records and keys of tiers, and for padding behind the last row."""
MAX_MOVES = 8
"""Largest number of moves away from the pool under way, each with a piece of staging memory."""
MAX_RECEIVING_ON_DEVICE = 64
"""Largest number of moves towards a pool in device memory. Towards a pool in host memory it is MAX_MOVES, because there
a step waits for the moves that were ordered before the step."""
RECEIVE_BYTES_ON_DEVICE = 256 * 2**20
"""Largest size of a `KVIn` towards a pool in device memory. An order takes the host of a rank about 0.3 ms, in which no
step is launched: a prefix of 1 GiB must not be sixty orders. Towards a pool in host memory it is MOVE_BYTES."""


class KVOpen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Announcement of the memory of a scheduler, the first order to new ranks. Repeated orders have no effect.

    Attributes:
        arena: prefix of the paths of the ranks' arenas; the arena of rank r is `arena_path(arena, r)`.
        num_places: number of places, without the page 0 that is never used.
        page: tokens of a page.
        disk: folder of the files; empty without a disk tier.
        num_files: number of file pages, without the page 0 that is never used.
        model: fingerprint of the model, which the files carry.
        state_rows: number of rows that a state of the recurrent layers takes; 0 for a model without such layers.
    """

    arena: str
    num_places: int
    page: int
    disk: str = ""
    num_files: int = 0
    model: bytes = b""
    state_rows: int = 0


class KVOut(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy from the pool to the arena. The slots may be reused from the next step on.

    Attributes:
        slots: int32[n], KV slots, and rows of states. Slot 0 fills the rest of a page and means nothing.
        places: int32[n], place of each.
    """

    move: int
    slots: bytes
    places: bytes


class KVIn(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy from the arena to the pool. No step reads the slots before all ranks have reported the move.

    Attributes:
        places: int32[n], places.
        slots: int32[n], KV slot, or row of a state, of each.
    """

    move: int
    places: bytes
    slots: bytes


class KVSave(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy from the arena to the files.

    Attributes:
        pages: int32[m], pages of the arena.
        files: int32[m], file page of each.
        keys: KEY_BYTES of each page, which are stored with the page.
    """

    move: int
    pages: bytes
    files: bytes
    keys: bytes


class KVLoad(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy from the files to the arena. The move fails if a page's key or checksum is another one.

    Attributes:
        files: int32[m], file pages.
        keys: KEY_BYTES of each page.
        pages: int32[m], page of the arena for each.
    """

    move: int
    files: bytes
    keys: bytes
    pages: bytes


class KVPull(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy from the arena of another replica to the arena. The move fails if a page of the other arena does not have
    its key from the begin of the copy to the end.

    Attributes:
        theirs: int32[m], pages of the other arena.
        keys: KEY_BYTES of each page.
        pages: int32[m], page of the arena for each.
        arena: prefix of the paths of the other replica's arenas.
        records: path of the records of these arenas' pages.
    """

    move: int
    theirs: bytes
    keys: bytes
    pages: bytes
    arena: str
    records: str


class KVDrop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End of all moves under way, of which none is reported any more. An earlier `KVIn` writes into the pool before the
    steps that follow this order, or not at all. Later moves access the arena and the files after the earlier moves."""


class KVConnectorOutput(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Report of a rank on its moves.

    Attributes:
        finished_sending, failed_sending: moves out of the pool and to the files.
        finished_recving, failed_recving: moves into the pool, from the files, and from other replicas.
        seconds: seconds on the link of each finished move, those of finished_sending first.
    """

    finished_sending: list[int] = []
    failed_sending: list[int] = []
    finished_recving: list[int] = []
    failed_recving: list[int] = []
    seconds: list[float] = []


KVOrder = KVOpen | KVOut | KVIn | KVSave | KVLoad | KVPull | KVDrop


def arena_path(prefix: str, rank: int) -> str:
    """Return the path of a rank's arena."""
    return f"{prefix}-{rank}"


def state_slots(state: int, rows: int) -> Int32Array:
    """Return the slots by which orders name the rows of a state: int32[rows], negative.

    Args:
        state: slot of the state.
        rows: see `KVOpen.state_rows`.
    """
    return -1 - state * rows - np.arange(rows, dtype=np.int32)
