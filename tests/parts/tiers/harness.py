"""A scheduler with tiers over a fake device, whose moves take their time, fail, or are lost with the runner."""

from __future__ import annotations

import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np

from radixrt.mem_cache.tree_node import path_of
from radixrt.messages.kv_moves import KEY_BYTES, MAX_MOVES, MOVE_BYTES, TIERS, KVOpen, KVOrder, state_slots
from radixrt.messages.runner import ForwardStep, GrammarMask, PartOrder, PartReport, StepFailed, StepOutput
from radixrt.messages.state_slots import ZERO_STATE
from radixrt.messages.wire import Int32Array, pack_i32, unpack_i32
from radixrt.parts.simulated import StepRows
from radixrt.parts.tiers.policy import Prices
from radixrt.parts.tiers.records import HEADER_BYTES, PageRecords
from radixrt.parts.tiers.scheduler import Tiers
from radixrt.parts.tiers.tier import Tier, root_name
from radixrt.scheduler.scheduler import Scheduler
from tests.parts.tiers.fake_mover import (
    Cells,
    FakeHost,
    FakeMover,
    Move,
    cells_of,
    decode_order,
    no_cells,
    state_cells,
    without_state,
)  # fmt: skip
from tests.scheduler.fake_runner import VOCAB, FakeRunner, Harness, RunnerDied, expected_output
from tests.step_sections import states_in

Order = TypeVar("Order")
PAGE = 64


@dataclass(frozen=True)
class Sizes:
    """Sizes of the tiers.

    Attributes:
        host_pages: pages of the arena.
        file_pages: pages of the files; 0 without a disk tier.
        move_pages: pages of a move.
        receiving: moves towards the pool at a time; more than MAX_MOVES as for a pool in device memory.
        state_rows: rows of a state; 0 for a model without states.
    """

    ranks: int = 1
    host_pages: int = 20
    file_pages: int = 0
    move_pages: int = 1
    receiving: int = MAX_MOVES
    page: int = PAGE
    state_rows: int = 0

    @property
    def receive_bytes(self) -> int:
        """Largest size of a `KVIn`."""
        return MOVE_BYTES if self.receiving <= MAX_MOVES else 16 * MOVE_BYTES

    @property
    def token_bytes(self) -> int:
        return MOVE_BYTES // (self.page * self.move_pages)


SIZES = Sizes()


class Whim(Prices):
    """Prices without times: a fetch pays as often as the test wants."""

    def __init__(self, random: Random, share: float) -> None:
        super().__init__(1)
        self._random = random
        self._share = share

    def pays(self, tier: str, fetch_s: float, compute_s: float, others: int) -> bool:
        return self._random.random() < self._share


class TieredRunner(FakeRunner):
    """A runner of several ranks, each with cells and a mover of its own, which executes messages in their order.

    Every slot that a step reads is checked on every rank: each cell continues the cell before it, and each row of a
    state belongs to the state.

    Attributes:
        cells: for each rank the cells of its slots and of the rows of its states; see `FakeMover`.
        movers: for each rank its end of the part `tiers`.
    """

    def __init__(self, *args: Any, host: FakeHost) -> None:
        super().__init__(*args)
        self.host = host
        count = len(self.content) + len(self.states) * host.state_rows
        self.cells = [no_cells(count) for _ in range(host.ranks)]
        self.movers = [host.make_mover(rank, cells, self._wrote) for rank, cells in enumerate(self.cells)]

    def successor(self) -> TieredRunner:
        for mover in self.movers:
            mover.kill()
        return TieredRunner(
            len(self.content) - 64, len(self.mirror) - 1, self.mirror.shape[1], self.deadly, len(self.states),
            self.stages, host=self.host,
        )  # fmt: skip

    def _wrote(self, slots: Int32Array, cells: Cells) -> None:
        for slot, state in zip(slots.tolist(), cells[:, 0].tolist(), strict=True):
            found = None if state < 0 else state
            if slot < 0:
                self.states[(-1 - slot) // self.host.state_rows] = found
            else:
                self.content[slot] = found

    def state_rows(self, state: int) -> Int32Array:
        """Return the indices of the cells of a state's rows."""
        return state_slots(state, self.host.state_rows)

    def run(self, step: ForwardStep, mask: GrammarMask | None = None) -> StepOutput:
        section, written = states_in(step), _states_written(step)
        for state in {*unpack_i32(section.src).tolist()} - {ZERO_STATE}:
            found = self.states[state]
            assert found is not None, "a state that was never written"
            for rank, cells in enumerate(self.cells):
                right = np.array_equal(cells[self.state_rows(state)], state_cells(found, self.host.state_rows))
                assert right, f"rank {rank} reads a state with rows of another one"
        output = super().run(step, mask)
        for state in written:
            found = self.states[state]
            assert found is not None
            for cells in self.cells:
                cells[self.state_rows(state)] = state_cells(found, self.host.state_rows)
        for row, length, new in _rows(step):
            slots = self.mirror[row, max(length - new - 1, 0) : length]
            states = np.array([self.content[slot] for slot in slots.tolist()], np.int64)
            if length == new:
                states = np.concatenate([np.zeros(1, np.int64), states])
            for cells in self.cells:
                cells[slots[len(slots) - new :]] = np.stack([states[1:], states[:-1]], axis=1)
        return output

    def spoil(self, step: ForwardStep) -> None:
        """Leave what a step leaves that raises, or that reads the slots of one that raised."""
        for write in step.row_writes:
            slots = np.frombuffer(write.slots, np.int32)
            self.mirror[write.req_pool_idx, write.start : write.start + len(slots)] = slots
        for sampling in step.sampling_rows:
            self.params[sampling.req_pool_idx] = sampling
        for state in _states_written(step):
            self.states[state] = None
            for cells in self.cells:
                cells[self.state_rows(state)] = -1
        rows = StepRows.of(step)
        at = 0
        for row, length, new in _rows(step):
            slots = rows.out_cache_loc[at : at + new]
            self.mirror[row, length - new : length][slots != 0] = slots[slots != 0]  # 0: the row has the token already
            self.future[row] = 0
            for cells in self.cells:
                cells[slots] = -1
            self._wrote(slots, no_cells(new))
            at += new

    def _check_prefix(self, row: int, length: int) -> None:
        slots = self.mirror[row, :length]
        assert (slots != 0).all(), "the row points at the padding slot"
        for rank, cells in enumerate(self.cells):
            state, before = cells[slots].T
            assert (state >= 0).all(), f"rank {rank} reads a slot that was never written"
            expected = np.concatenate([np.zeros(min(length, 1), np.int64), state[:-1]])
            assert np.array_equal(before, expected), f"rank {rank} reads keys and values of other tokens"
            assert np.array_equal(state, self.cells[0][slots, 0]), f"rank {rank} reads keys and values of its own"


def _rows(step: ForwardStep) -> list[tuple[int, int, int]]:
    """Row, length with the new tokens, and number of new tokens of each row of a step."""
    rows = StepRows.of(step)
    return list(zip(rows.req_pool_idx.tolist(), rows.seq_lens.tolist(), rows.extend_lens.tolist(), strict=True))


def _states_written(step: ForwardStep) -> list[int]:
    section = states_in(step)
    return [*unpack_i32(section.dst).tolist(), *unpack_i32(section.cuts)[2::3].tolist()]


class TieredHarness(Harness):
    """A scheduler with tiers, stepped by hand. Orders leave before each step and when nothing is submitted, as in
    `SchedulerLoop`; the device executes steps and orders in this order, at the latest when an answer is awaited.

    Args:
        host: arena and files, of these sizes; default: fake ones.
        seed: of the choice which unit of which move is done next.
        eager: probability that a turn does a unit of work, again and again.
        pays: probability that a fetch is predicted to pay.

    Attributes:
        host: arena and files.
        tiers: the part of the present scheduler.
        operations: number of iterations of the loop, and of units of work of the device and the links, so far.
        sent: steps and orders that the ranks have not executed.
        orders: all orders that the schedulers have sent.
        messages: what parts have sent to the tokenizer, or to the router.
        answers: for each rank what it has sent and the scheduler has not received; rank 0 answers steps.
    """

    def __init__(
        self,
        sizes: Sizes = SIZES,
        *,
        host: FakeHost | None = None,
        seed: int = 0,
        eager: float = 0.7,
        pays: float = 1.0,
        **options: Any,
    ) -> None:
        self.sizes = sizes
        self.random = Random(seed)
        self.eager = eager
        self.pays = pays
        places = sizes.host_pages * sizes.page
        self.host = host or FakeHost(sizes.ranks, places, sizes.page, sizes.receiving, sizes.state_rows)
        self.orders: list[KVOrder] = []
        self.messages: list[Any] = []
        self.operations = 0
        self._folder = tempfile.TemporaryDirectory()
        self.sequences: dict[str, list[Int32Array]] = {}  # by namespace: all tokens that requests may have computed
        super().__init__(**{"num_slots": 512, "max_context": 320, **options})
        self.scheduler = self._scheduler()
        old = self.runner
        self.runner: TieredRunner = TieredRunner(
            len(old.content) - 64, len(old.mirror) - 1, old.mirror.shape[1], old.deadly, len(old.states), old.stages,
            host=self.host,
        )  # fmt: skip
        self.clear_links()

    def close(self) -> None:
        for mover in self.runner.movers:
            mover.kill()
        self.host.close()
        self._folder.cleanup()

    def _table(self, name: str) -> str:
        return str(Path(self._folder.name) / name)

    def _scheduler(self) -> Scheduler:
        sizes = self.sizes
        places, files = sizes.host_pages * sizes.page, sizes.file_pages * sizes.page
        has_states = sizes.state_rows > 0
        records = PageRecords(self._table("host"), sizes.host_pages, sizes.page)
        host = Tier("host", places, sizes.page, records, has_states=has_states)
        disk = None
        if files:
            records = PageRecords(self._table("disk"), sizes.file_pages, sizes.page)
            disk = Tier("disk", files, sizes.page, records, has_states=has_states)
        opening = KVOpen(
            self.host.arena, places, sizes.page, self.host.disk if files else "", sizes.file_pages,
            state_rows=sizes.state_rows,
        )  # fmt: skip
        self.tiers = Tiers(
            host, disk, opening, sizes.ranks, sizes.token_bytes, sizes.receiving, self._table("host"),
            sizes.receive_bytes,
        )  # fmt: skip
        self.tiers.prices = Whim(self.random, self.pays)
        scheduler = self.make_scheduler(tiers=self.tiers)
        self.cache = scheduler.kv.cache
        return scheduler

    def clear_links(self) -> None:
        self.sent: deque[ForwardStep | PartOrder] = deque()
        self.answers: list[deque[StepOutput | StepFailed | PartReport]] = [deque() for _ in range(self.host.ranks)]
        self.spoiled: set[int] = set()

    # --- the scheduler's loop ---

    def submit(self) -> bool:
        submitted = super().submit()
        self.send_orders()
        if submitted:
            self.sent.append(self.steps[-1])
            assert not self.batches[-1].masked_rows, "requests with grammars are not for this harness"
        return submitted

    def send_orders(self) -> None:
        self.sent.extend(self.scheduler.orders)
        self.orders += [decode_order(order.data) for order in self.scheduler.orders]
        self.scheduler.orders.clear()

    def commit(self) -> bool:
        """Commit the answer of the oldest step, or take the reports that are there."""
        if not self.inflight:
            return self.take_reports()
        try:
            while not any(isinstance(answer, StepOutput | StepFailed) for answer in self.answers[0]):
                self.execute()
        except RunnerDied:
            self.kill()
            self.restart()
            return True
        self.take_reports()
        answer = self.answers[0].popleft()
        batch = self.inflight.popleft()
        assert not isinstance(answer, PartReport)
        assert answer.step_id == batch.step_id
        if isinstance(answer, StepFailed):
            self.scheduler.fail(batch, answer.error, self.now)
        else:
            self.scheduler.commit(batch, answer, self.now)
            self.scheduler.step_time.learn()
            for settle in self.scheduler.parts.settle:
                settle(self.now)
        self.take()
        self.verify()
        return True

    def take_reports(self, rank: int | None = None) -> bool:
        """Receive the reports of a rank, or of all ranks, up to the next answer."""
        taken = False
        for answers in self.answers if rank is None else [self.answers[rank]]:
            while answers and isinstance(answers[0], PartReport):
                report = answers.popleft()
                assert isinstance(report, PartReport)
                if self.scheduler.has_runner:
                    self.scheduler.reported(report, self.now)
                    self.verify()
                    taken = True
        return taken

    def turn(self) -> bool:
        self.operations += 1
        did = False
        while len(self.inflight) < self.depth and self.submit():
            did = True
        self.send_orders()
        while self.random.random() < self.eager and self.work():
            did = True
        did |= self.commit()
        for turn in self.scheduler.parts.turn:
            self.messages += turn(self.now)
        return did or bool(self.scheduler.orders or self.sent or self.moves)

    def handle(self, message: Any) -> None:
        """Let the part handle a message."""
        assert not self.tiers.handles()[type(message)](message, self.now)
        self.verify()

    # --- the device ---

    @property
    def moves(self) -> list[tuple[FakeMover, Move]]:
        """All moves under way on all ranks."""
        return [(mover, move) for mover in self.runner.movers for move in mover.moves]

    def execute(self) -> None:
        """Let every rank execute the next message.

        Raises:
            RunnerDied: the ranks did not survive it.
        """
        message = self.sent.popleft()
        if isinstance(message, PartOrder):
            assert message.part == TIERS
            for mover in self.runner.movers:
                mover.order(message.data)
        elif message.step_id in self.spoiled or message.step_id in self.poisoned:
            self.runner.spoil(message)
            if message.step_id in self.spoiled:
                self.answers[0].append(StepFailed(message.step_id, 0, "boom", fatal=False))
            else:
                count = int(np.count_nonzero(StepRows.of(message).samples))
                self.answers[0].append(StepOutput(message.step_id, pack_i32([VOCAB - 1] * count)))
        else:
            self.answers[0].append(self.runner.run(message))
        self.poll()

    def poll(self) -> None:
        for rank, mover in enumerate(self.runner.movers):
            while (report := mover.poll()) is not None:
                self.answers[rank].append(PartReport(rank, TIERS, report))

    def work(self) -> bool:
        """Execute the next message, or do a unit of work of any move; return False if there is nothing to do."""
        self.operations += 1
        moves = self.moves
        if self.sent and (not moves or self.random.random() < 0.5):
            try:
                self.execute()
            except RunnerDied:
                self.kill()
                self.restart()
            return True
        if not moves:
            return False
        mover, move = self.random.choice(moves)
        mover.step(move)
        self.poll()
        return True

    def finish_moves(self) -> None:
        """Do all the work of the moves under way."""
        for mover, move in self.moves:
            while move in mover.moves:
                mover.step(move)
        self.poll()

    def fail_move(self) -> None:
        """Let any move fail on one rank."""
        if self.moves:
            mover, move = self.random.choice(self.moves)
            mover.fail(move)
            self.poll()

    # --- what goes wrong ---

    @property
    def may_fail(self) -> bool:
        """The oldest step in flight is not executed, and no other rank is in its collectives."""
        return bool(self.inflight) and self.inflight[0].step in self.sent and self.host.ranks == 1

    def fail(self) -> None:
        """Let the oldest step in flight raise, and the later ones compute on what it has left."""
        self.spoiled.add(self.inflight[0].step_id)
        self.poisoned.update(batch.step_id for batch in list(self.inflight)[1:])
        self.commit()

    def kill(self) -> None:
        self.clear_links()
        super().kill()

    def restart(self) -> None:
        self.send_orders()
        super().restart()

    def restart_scheduler(self) -> None:
        """The scheduler dies. The ranks execute its last messages, then serve the next scheduler."""
        try:
            while self.sent:
                self.execute()
        except RunnerDied:
            self.runner = self.runner.successor()
        for _ in range(self.random.randrange(4)):  # copies that the device has begun
            if self.moves:
                mover, move = self.random.choice(self.moves)
                mover.step(move)
        for mover in self.runner.movers:
            mover.reset()
        self._begin_again()

    def restart_engine(self, *, keeps_memory: bool = False) -> None:
        """All processes die, and new ones begin with what is left of the arena and the files."""
        self.runner = self.runner.successor()
        if not keeps_memory:
            self.host.reboot()
            Path(self._table("host")).unlink()
        self._begin_again()

    def _begin_again(self) -> None:
        self.clear_links()
        self.inflight.clear()
        self.poisoned.clear()  # the next scheduler counts its steps from 0
        for open_requests in (self.requests, self.score_requests, self.embed_requests):
            for rid in list(open_requests):
                if rid not in self.finishes:
                    del open_requests[rid]
                    self.outputs.pop(rid, None)
        self.scheduler = self._scheduler()
        self.verify()

    def damage_table(self, name: str, number: int, bit: int) -> None:
        """Flip a bit of a record in the table "host" or "disk"; no scheduler reads the table before the next start."""
        path = Path(self._table(name))
        if not path.exists():
            return
        data = bytearray(path.read_bytes())
        data[HEADER_BYTES + number % (len(data) - HEADER_BYTES)] ^= 1 << bit % 8
        path.write_bytes(data)

    # --- what must hold ---

    def add(self, rid: str, prompt: list[int], **fields: Any) -> None:
        super().add(rid, prompt, **fields)
        sampling = self.requests[rid].sampling
        assert sampling is not None
        output, _ = expected_output(prompt, sampling, self.max_len)
        self.may_compute(fields.get("cache_salt", ""), prompt + output)

    def add_score(self, rid: str, choices: dict[tuple[int, ...], list[list[int]]], **envelope: Any) -> None:
        super().add_score(rid, choices, **envelope)
        for prefix, after in choices.items():
            for choice in after:
                self.may_compute(envelope.get("cache_salt", ""), [*prefix, *choice])

    def may_compute(self, namespace: str, tokens: list[int]) -> None:
        self.sequences.setdefault(namespace, []).append(np.array(tokens, np.int32))

    def check_tiers(self) -> None:
        """Each token of each tier was computed for its namespace, and its place holds its digest on every rank; the
        table has exactly the records of the tree."""
        for tier in (self.tiers.host, self.tiers.disk):
            if tier is not None:
                self._check_tier(tier)

    def _check_tier(self, tier: Tier) -> None:
        pages: dict[int, bytes] = {}
        seeds = {root_name(namespace): namespace for namespace in self.sequences}
        for node in tier.cache.iter_nodes():
            tokens, root = path_of(node)
            self._check_namespace(tokens, seeds[root])
            places = tier.cache.path_slots(node)
            keys = tier.keys(tokens, root)
            for number, page in enumerate((places[:: self.sizes.page] // self.sizes.page).tolist()):
                pages[page] = keys[number * KEY_BYTES : (number + 1) * KEY_BYTES]
            if tier is self.tiers.disk:
                self._check_files(places, keys, tokens)
            else:
                for arena in self.host.arenas:
                    right = cells_of(tokens, self.sizes.state_rows)
                    assert np.array_equal(arena[places], right), "the arena holds other tokens"
        table = PageRecords(self._copy_of(tier), tier.allocator.num_slots // self.sizes.page, self.sizes.page)
        recorded = {}
        for seed, tokens, numbers in table.runs():
            keys = tier.keys(tokens, seed.hex())
            for i, page in enumerate(numbers.tolist()):
                recorded[page] = keys[i * KEY_BYTES : (i + 1) * KEY_BYTES]
        assert recorded == pages, "the records are not those of the tree"

    def _check_namespace(self, tokens: Int32Array, namespace: str) -> None:
        known, tokens = self.sequences[namespace], tokens[: without_state(tokens)]
        assert any(np.array_equal(tokens, each[: len(tokens)]) for each in known), "tokens of another namespace"

    def _check_files(self, places: Int32Array, keys: bytes, tokens: Int32Array) -> None:
        """A page that would be loaded holds the right tokens."""
        size = self.sizes.page
        for number, page in enumerate((places[::size] // size).tolist()):
            for rank in range(self.host.ranks):
                found = self.host.file_page(rank, page, keys[number * KEY_BYTES : (number + 1) * KEY_BYTES])
                right = cells_of(tokens, self.sizes.state_rows)[number * size : (number + 1) * size]
                assert found is None or np.array_equal(found, right), "a file page holds other tokens"

    def _copy_of(self, tier: Tier) -> str:
        name = "host" if tier is self.tiers.host else "disk"
        copy = self._table(name + " copy")
        Path(copy).write_bytes(Path(self._table(name)).read_bytes())
        return copy

    def rest(self, seconds: float = 60.0) -> None:
        """Let time pass while no request is open, until nothing moves any more."""
        self.drain()
        for _ in range(int(seconds)):
            self.now += 1.0
            self.drain()

    def sent_orders(self, kind: type[Order]) -> list[Order]:
        return [order for order in self.orders if isinstance(order, kind)]

    def check_idle(self) -> None:
        """Nothing is left under way: no hold, no reserved slot or place, no request, no move."""
        self.verify()
        self.check_tiers()
        assert self.scheduler.is_idle
        copies = self.scheduler.kv.copies
        assert (copies.reserved, copies.held, copies.reserved_states, copies.pinned) == (0, [], [], [])
        assert self.tiers.moves.is_idle
        for tier in (self.tiers.host, self.tiers.disk):
            if tier is not None:
                assert (tier.copies.reserved, tier.copies.held) == (0, [])
                assert tier.allocator.available() + tier.cache.total_size == tier.allocator.num_slots
        assert self.cache.protected_size == 0
        for node in self.cache.iter_nodes():
            tokens, namespace = path_of(node)
            self._check_namespace(tokens, namespace)
            slots = self.cache.path_slots(node)
            for cells in self.runner.cells:
                assert np.array_equal(cells[slots], cells_of(tokens)), "the pool holds other tokens"
                if node.state is not None:
                    found = cells[self.runner.state_rows(node.state.slot)]
                    right = state_cells(int(cells_of(tokens)[-1, 0]), self.sizes.state_rows)
                    assert np.array_equal(found, right), "a node has the state of other tokens"
