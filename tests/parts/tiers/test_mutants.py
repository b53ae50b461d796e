"""Each known race of caches that copy keys and values is found when it is written into the part or into a mover."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from radixrt.errors import InvariantError
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.messages.kv_moves import KVDrop, KVIn, KVOrder
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.parts.tiers import records, scheduler, tier
from radixrt.parts.tiers.moves import Moves, Transfer
from radixrt.parts.tiers.scheduler import Tiers
from tests.parts.tiers import test_scheduler
from tests.parts.tiers.events import run
from tests.parts.tiers.fake_mover import FakeMover, LinkError, Move

SEQUENCES = 150
EVENTS = 120

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(patch: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[patch.__name__] = patch
    return patch


def slots_are_free_before_their_gather_is_ordered(patch: Patch) -> None:
    """The leaf is not held while later pieces of it wait for their turn."""

    def attach(self: Tiers, core: Any) -> None:
        real(self, core)
        patch.setattr(core.kv.copies, "hold", lambda node: None)
        patch.setattr(core.kv.copies, "let_go", lambda node: None)

    real = Tiers.attach
    patch.setattr(Tiers, "attach", attach)


@mutant
def slots_are_gathered_after_the_next_step(patch: Patch) -> None:
    """A side stream without an order to the forward passes."""

    def begin(self: FakeMover, order: Any) -> tuple[str, Iterator[None]]:
        if isinstance(order, scheduler.KVOpen) or not hasattr(order, "slots") or isinstance(order, KVIn):
            return real(self, order)
        slots, places = unpack_i32(order.slots), unpack_i32(order.places)

        def late() -> Iterator[None]:
            yield
            yield from self._out(self._cells[slots].copy(), places)

        return "out", late()

    real = FakeMover._begin
    patch.setattr(FakeMover, "_begin", begin)


@mutant
def slots_are_scattered_after_the_report(patch: Patch) -> None:
    """A step that reads the slots may come first."""

    def late(self: FakeMover, places: Int32Array, slots: Int32Array) -> Iterator[None]:
        staged = self._arena[places]

        def scatter() -> Iterator[None]:
            yield
            yield
            self._cells[slots] = staged
            self._write(slots, staged)

        yield
        self.moves.append(Move(-len(self.moves) - 1, "late", False, scatter()))

    def step(self: FakeMover, move: Move) -> None:
        real(self, move)
        self._done = [(done, ok) for done, ok in self._done if done.number > 0]

    real = FakeMover.step
    patch.setattr(FakeMover, "_in", late)
    patch.setattr(FakeMover, "step", step)


@mutant
def a_move_ends_with_the_first_rank(patch: Patch) -> None:
    """Records are written, and slots and places are freed, before the last rank has reported."""

    def ended(self: Moves, number: int, *args: Any) -> None:
        if number in self._moves:
            rank = args[0]
            self._moves[number].ranks.intersection_update({rank})
        real(self, number, *args)

    real = Moves._share_ended
    patch.setattr(Moves, "_share_ended", ended)


def a_dropped_fetch_still_writes(patch: Patch) -> None:
    def order(self: FakeMover, data: bytes) -> None:
        kept = [move for move in self.moves if move.link == "in"]
        real(self, data)
        if isinstance(scheduler.msgspec.msgpack.decode(data, type=KVOrder), KVDrop):
            for move in kept:
                self.moves.append(Move(-1 - move.number, "dropped", False, move.work))

    def step(self: FakeMover, move: Move) -> None:
        real_step(self, move)
        self._done = [(done, ok) for done, ok in self._done if done.number > 0]

    real, real_step = FakeMover.order, FakeMover.step
    patch.setattr(FakeMover, "order", order)
    patch.setattr(FakeMover, "step", step)


@mutant
def moves_are_dropped_without_telling_the_ranks(patch: Patch) -> None:
    def tell(self: Tiers, order: KVOrder) -> None:
        if not isinstance(order, KVDrop):
            real(self, order)

    real = Tiers._order
    patch.setattr(Tiers, "_order", tell)


@mutant
def a_failed_move_is_adopted(patch: Patch) -> None:
    def start(self: Moves, transfer: Transfer) -> None:
        ended = transfer.ended
        transfer.ended = lambda ok: ended(True)
        real(self, transfer)

    real = Moves.start
    patch.setattr(Moves, "start", start)


@mutant
def a_place_is_free_while_a_save_reads_it(patch: Patch) -> None:
    def attach(self: Tiers, core: Any) -> None:
        real(self, core)
        patch.setattr(self.host.copies, "hold", lambda node: None)
        patch.setattr(self.host.copies, "let_go", lambda node: None)

    real = Tiers.attach
    patch.setattr(Tiers, "attach", attach)


@mutant
def records_are_found_by_their_hashes_alone(patch: Patch) -> None:
    """The tokens of a record are not compared with the hash that covers them."""
    patch.setattr(records, "_intact", lambda raw, table, pages: np.ones(len(pages), bool))


@mutant
def pages_are_loaded_without_a_check_of_the_key(patch: Patch) -> None:
    def load(self: FakeMover, moved: list[tuple[int, int, bytes]]) -> Iterator[None]:
        files = self._host.files[self._rank]
        for page, file, _ in moved:
            yield
            if file not in files or not files[file].is_whole:
                raise LinkError
            self._arena[self._page(page)] = files[file].cells

    patch.setattr(FakeMover, "_load", load)


@mutant
def pages_are_loaded_without_a_check_of_the_bytes(patch: Patch) -> None:
    def load(self: FakeMover, moved: list[tuple[int, int, bytes]]) -> Iterator[None]:
        files = self._host.files[self._rank]
        for page, file, key in moved:
            yield
            if file not in files or files[file].key != key:
                raise LinkError
            self._arena[self._page(page)] = files[file].cells

    patch.setattr(FakeMover, "_load", load)


def copies_of_a_failed_step_are_kept(patch: Patch) -> None:
    def reported(self: Tiers, rank: int, data: bytes, now: float) -> None:
        self.moves.reported(rank, self._decoder.decode(data))

    patch.setattr(Tiers, "reported", reported)


@mutant
def records_outlive_their_places(patch: Patch) -> None:
    patch.setattr(tier._Places, "free", TokenToKVPoolAllocator.free)


@mutant
def tenants_share_a_namespace(patch: Patch) -> None:
    name = tier.root_name("")
    for module in (scheduler, tier):
        patch.setattr(module, "root_name", lambda namespace: name)


def numbers_of_dropped_moves_are_used_again(patch: Patch) -> None:
    def drop(self: Moves) -> None:
        self._next -= len(self._moves)
        real(self)

    real = Moves.drop
    patch.setattr(Moves, "drop", drop)


@mutant
def new_ranks_do_not_get_the_memory(patch: Patch) -> None:
    def attach(self: Tiers, core: Any) -> None:
        real(self, core)
        self._opening = KVDrop()  # type: ignore[assignment]

    real = Tiers.attach
    patch.setattr(Tiers, "attach", attach)


def found() -> int | None:
    """Return the first sequence that fails, None if none does."""
    for seed in range(SEQUENCES):
        try:
            run(seed, EVENTS)
        except (AssertionError, InvariantError, RuntimeError, IndexError, KeyError) as error:
            print(f"sequence {seed}: {error!r:.90}")
            return seed
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        seed = found()
    assert seed is not None, f"{SEQUENCES} sequences of {EVENTS} events have not found it"
    run(seed, EVENTS)


@pytest.mark.parametrize(
    ("name", "directed"),
    [
        (
            slots_are_free_before_their_gather_is_ordered,
            test_scheduler.test_a_leaf_is_kept_until_its_last_piece_is_gathered,
        ),
        (a_dropped_fetch_still_writes, test_scheduler.test_a_dropped_fetch_writes_no_slot_that_has_another_owner),
        (copies_of_a_failed_step_are_kept, test_scheduler.test_a_failed_step_spoils_no_copy),
        (
            numbers_of_dropped_moves_are_used_again,
            test_scheduler.test_a_report_that_was_under_way_when_its_move_was_dropped_has_no_effect,
        ),
    ],
)
def test_a_mutant_that_needs_a_rare_sequence_is_found(
    name: Callable[[Patch], None], directed: Callable[[], None], monkeypatch: Patch
) -> None:
    name(monkeypatch)
    with pytest.raises((AssertionError, InvariantError)):
        directed()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
