"""`Moves`: the moves under way, of which each rank reports its share."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from radixrt.messages.kv_moves import MAX_MOVES, KVConnectorOutput, KVIn, KVLoad, KVOrder, KVOut, KVPull, KVSave
from radixrt.parts.tiers.counters import TierCounters


class MoveKind(enum.Enum):
    """Kind of a move; the value is its name in metrics."""

    OUT = "out"
    IN = "in"
    SAVE = "save"
    LOAD = "load"
    PULL = "pull"

    @property
    def is_sending(self) -> bool:
        """True for moves away from the pool."""
        return self in (MoveKind.OUT, MoveKind.SAVE)


ORDERS: dict[MoveKind, Callable[..., KVOrder]] = {
    MoveKind.OUT: KVOut,
    MoveKind.IN: KVIn,
    MoveKind.SAVE: KVSave,
    MoveKind.LOAD: KVLoad,
    MoveKind.PULL: KVPull,
}


class Piece(NamedTuple):
    """Part of a transfer that one order moves.

    Attributes:
        num_bytes: bytes in one rank.
        arguments: arguments of the order, without the number of the move.
    """

    num_bytes: int
    arguments: tuple[bytes, ...]


@dataclass(eq=False)
class Transfer:
    """A run of tokens that moves in pieces.

    Attributes:
        pieces: pieces whose moves have not begun.
        ended: called once, with True if every piece was moved. With False, no piece is being moved any more.
        ordered: called once the orders of all pieces are given, before `ended`; not called if that never happens.
        source: further arguments of each order, behind those of the piece.
    """

    kind: MoveKind
    pieces: deque[Piece]
    ended: Callable[[bool], None]
    ordered: Callable[[], None] | None = None
    source: tuple[str, ...] = ()
    under_way: int = 0
    failed: bool = False


@dataclass
class _Move:
    """A piece under way, and the ranks that have yet to report it."""

    transfer: Transfer
    num_bytes: int
    ranks: set[int]
    seconds: float = 0.0


class Moves:
    """Starts the pieces of transfers, a bounded number at a time in each direction, in the order of the transfers. A
    move is finished when every rank has finished it, and has failed when any rank has failed.

    Args:
        num_ranks: ranks of the model.
        order: sends an order to all ranks.
        moved: called with kind, bytes in one rank and seconds of each finished move.
        max_receiving: number of moves towards the pool at a time; MAX_MOVES of the others.

    Attributes:
        counters: totals for metrics.
    """

    def __init__(
        self,
        num_ranks: int,
        order: Callable[[KVOrder], None],
        moved: Callable[[MoveKind, int, float], None],
        max_receiving: int = MAX_MOVES,
    ) -> None:
        self._ranks = frozenset(range(num_ranks))
        self._order = order
        self._moved = moved
        self._next = 0
        self._moves: dict[int, _Move] = {}
        self._queues: dict[bool, deque[Transfer]] = {True: deque(), False: deque()}
        self._under_way = {True: 0, False: 0}
        self._most = {True: MAX_MOVES, False: max_receiving}
        self.counters = TierCounters()

    @property
    def is_idle(self) -> bool:
        """True if nothing is being moved."""
        return not self._moves and not any(self._queues.values())

    def has_room(self, kind: MoveKind) -> bool:
        """Return True if the first piece of a new transfer would start at once."""
        return not self._queues[kind.is_sending] and self._under_way[kind.is_sending] < self._most[kind.is_sending]

    def queued_bytes(self, kind: MoveKind) -> int:
        """Return the bytes of one rank that a link is to move before a new transfer."""
        queued = self._queues[kind.is_sending]
        moves = sum(move.num_bytes for move in self._moves.values() if move.transfer.kind is kind)
        return moves + sum(piece.num_bytes for each in queued if each.kind is kind for piece in each.pieces)

    def start(self, transfer: Transfer) -> None:
        """Start a transfer of at least one piece, behind all transfers of the same direction."""
        self._queues[transfer.kind.is_sending].append(transfer)
        self._pump(sending=transfer.kind.is_sending)

    def _pump(self, *, sending: bool) -> None:
        queue = self._queues[sending]
        while queue and self._under_way[sending] < self._most[sending]:
            transfer = queue[0]
            num_bytes, arguments = transfer.pieces.popleft()
            if not transfer.pieces:
                queue.popleft()
            self._next += 1
            self._moves[self._next] = _Move(transfer, num_bytes, set(self._ranks))
            self._under_way[sending] += 1
            transfer.under_way += 1
            self._order(ORDERS[transfer.kind](self._next, *arguments, *transfer.source))
            if transfer.ordered is not None and not transfer.pieces:
                transfer.ordered()

    def reported(self, rank: int, output: KVConnectorOutput) -> None:
        """Read a rank's report. Reports on dropped moves have no effect."""
        ended: list[Transfer] = []
        finished = [*output.finished_sending, *output.finished_recving]
        for number, seconds in zip(finished, output.seconds, strict=True):
            self._share_ended(number, rank, seconds, ended)
        for number in (*output.failed_sending, *output.failed_recving):
            if number in self._moves:
                self._moves[number].transfer.failed = True
                self._share_ended(number, rank, 0.0, ended)
        for sending in (True, False):
            self._pump(sending=sending)
        for transfer in ended:
            transfer.ended(not transfer.failed)

    def _share_ended(self, number: int, rank: int, seconds: float, ended: list[Transfer]) -> None:
        """Note that a rank has moved its share of a move, or has failed to. Append the transfer to `ended` if no piece
        of it is left."""
        move = self._moves.get(number)
        if move is None or rank not in move.ranks:
            return
        move.ranks.remove(rank)
        move.seconds = max(move.seconds, seconds)
        if move.ranks:
            return
        # The last rank has reported: a failed piece is not finished before, because the other ranks still move it.
        del self._moves[number]
        transfer, kind = move.transfer, move.transfer.kind
        self._under_way[kind.is_sending] -= 1
        transfer.under_way -= 1
        if transfer.failed:
            self.counters.failed(kind.value)
            if transfer.pieces:
                self._queues[kind.is_sending].remove(transfer)
                transfer.pieces.clear()
        else:
            self.counters.finished(kind.value, move.num_bytes * len(self._ranks), move.seconds)
            self._moved(kind, move.num_bytes, move.seconds)
        if not transfer.pieces and not transfer.under_way:
            ended.append(transfer)

    def drop(self) -> None:
        """End all transfers without success. The caller tells the ranks, or the ranks are dead."""
        dropped = dict.fromkeys([move.transfer for move in self._moves.values()])
        dropped.update(dict.fromkeys(transfer for queue in self._queues.values() for transfer in queue))
        self._moves.clear()
        for sending in (True, False):
            self._queues[sending].clear()
            self._under_way[sending] = 0
        for transfer in dropped:
            transfer.ended(False)


def pieces(columns: Iterable[tuple[bytes, int]], count: int, most: int, entry_bytes: int) -> deque[Piece]:
    """Cut columns of `count` entries into pieces of at most `most` entries.

    Args:
        columns: each column, and the bytes of its entries.
        entry_bytes: bytes that an entry moves in one rank.
    """
    cut: deque[Piece] = deque()
    for first in range(0, count, most):
        last = min(first + most, count)
        arguments = tuple(column[first * size : last * size] for column, size in columns)
        cut.append(Piece((last - first) * entry_bytes, arguments))
    return cut
