"""Moves under way: credits, ranks that report at different times, failures and drops."""

from __future__ import annotations

import pytest

from radixrt.messages.kv_moves import MAX_MOVES, KVConnectorOutput, KVIn, KVOrder, KVOut
from radixrt.parts.tiers.moves import MoveKind, Moves, Transfer
from radixrt.parts.tiers.moves import pieces as cut_pieces


class Sent:
    """Moves of two ranks, and the orders and ends that they have caused."""

    def __init__(self) -> None:
        self.orders: list[KVOrder] = []
        self.ended: list[tuple[str, bool]] = []
        self.times: list[tuple[MoveKind, int, float]] = []
        self.moves = Moves(2, self.orders.append, lambda *args: self.times.append(args))

    def start(self, name: str, kind: MoveKind, pieces: int = 1) -> None:
        columns = [(bytes(4 * pieces), 4)] * (2 if kind in (MoveKind.OUT, MoveKind.IN) else 3)
        cut = cut_pieces(columns, pieces, most=1, entry_bytes=100)
        assert len(cut) == pieces
        self.moves.start(Transfer(kind, cut, lambda ok: self.ended.append((name, ok))))

    def report(self, rank: int, number: int, *, ok: bool = True, seconds: float = 1.0) -> None:
        order = next(order for order in self.orders if order.move == number)  # type: ignore[union-attr]
        field = ("finished" if ok else "failed") + ("_sending" if isinstance(order, KVOut) else "_recving")
        self.moves.reported(rank, KVConnectorOutput(**{field: [number], "seconds": [seconds] * ok}))  # type: ignore[arg-type]


@pytest.fixture
def sent() -> Sent:
    return Sent()


def test_a_move_is_finished_when_the_last_rank_has_reported_it(sent: Sent) -> None:
    sent.start("a", MoveKind.OUT)
    sent.report(1, 1, seconds=2.0)
    sent.report(1, 1)
    assert not sent.ended, "a rank that reports twice is one rank"
    sent.report(0, 1, seconds=1.0)
    assert sent.ended == [("a", True)]
    assert sent.times == [(MoveKind.OUT, 100, 2.0)], "the time of the slowest rank"
    assert sent.moves.is_idle


@pytest.mark.parametrize("first", [True, False])
def test_a_failed_move_ends_when_no_rank_moves_it_any_more(sent: Sent, *, first: bool) -> None:
    sent.start("a", MoveKind.IN)
    sent.report(0, 1, ok=first)
    assert not sent.ended
    sent.report(1, 1, ok=not first)
    assert sent.ended == [("a", False)]
    assert not sent.times
    assert sent.moves.is_idle


def test_a_failed_piece_ends_the_rest_of_its_transfer(sent: Sent) -> None:
    sent.start("a", MoveKind.IN, pieces=MAX_MOVES + 5)
    sent.start("b", MoveKind.IN)
    for rank in (0, 1):
        sent.report(rank, 1, ok=False)
    assert [order.move for order in sent.orders][MAX_MOVES:] == [MAX_MOVES + 1], "b has its turn"  # type: ignore[union-attr]
    for number in range(2, MAX_MOVES + 1):
        assert not sent.ended
        for rank in (0, 1):
            sent.report(rank, number)
    assert sent.ended == [("a", False)]
    for rank in (0, 1):
        sent.report(rank, MAX_MOVES + 1)
    assert sent.ended == [("a", False), ("b", True)]


def test_a_transfer_is_ordered_before_its_last_piece_is_moved(sent: Sent) -> None:
    seen: list[str] = []
    cut = cut_pieces([(bytes(4 * (MAX_MOVES + 1)), 4)] * 2, MAX_MOVES + 1, most=1, entry_bytes=100)
    sent.moves.start(
        Transfer(MoveKind.OUT, cut, lambda ok: seen.append(f"ended {ok}"), ordered=lambda: seen.append("ordered"))
    )
    assert not seen, "a piece waits for a credit"
    for rank in (0, 1):
        sent.report(rank, 1)
    assert seen == ["ordered"]
    for number in range(2, MAX_MOVES + 2):
        for rank in (0, 1):
            sent.report(rank, number)
    assert seen == ["ordered", "ended True"]


def test_credits_are_never_exceeded(sent: Sent) -> None:
    sent.start("a", MoveKind.OUT, pieces=3 * MAX_MOVES)
    sent.start("b", MoveKind.SAVE)
    sent.start("c", MoveKind.IN)
    assert not sent.moves.has_room(MoveKind.OUT)
    assert not sent.moves.has_room(MoveKind.SAVE), "the same direction"
    assert sent.moves.has_room(MoveKind.LOAD)
    done = 0
    while not sent.moves.is_idle:
        assert sum(not isinstance(order, KVIn) for order in sent.orders[done:]) <= MAX_MOVES
        number = sent.orders[done].move  # type: ignore[union-attr]
        for rank in (0, 1):
            sent.report(rank, number)
        done += 1
    assert sent.ended == [("c", True), ("a", True), ("b", True)]


def test_a_late_report_on_a_dropped_move_has_no_effect(sent: Sent) -> None:
    sent.start("a", MoveKind.IN, pieces=MAX_MOVES + 1)
    sent.start("b", MoveKind.IN)
    sent.start("c", MoveKind.OUT)
    sent.report(0, 1)
    sent.moves.drop()
    assert sorted(sent.ended) == [("a", False), ("b", False), ("c", False)]
    assert sent.moves.is_idle
    for number in range(1, MAX_MOVES + 2):
        if any(order.move == number for order in sent.orders):  # type: ignore[union-attr]
            for rank in (0, 1):
                sent.report(rank, number)
    assert len(sent.ended) == 3
    sent.start("d", MoveKind.IN)
    assert len({order.move for order in sent.orders}) == len(sent.orders), "numbers are not used again"  # type: ignore[union-attr]
    for rank in (0, 1):
        sent.report(rank, sent.orders[-1].move)  # type: ignore[union-attr]
    assert sent.ended[-1] == ("d", True)
