"""States of recurrent layers as rows of the arena, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.state_pool import StatePool, StateShape
from radixrt.memory_file import MemoryFile
from radixrt.messages.kv_moves import KVIn, KVOpen, KVOut, arena_path, state_slots
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.tiers.runner.mover import Mover
from radixrt.parts.tiers.runner.state_rows import PoolRows, StateRows, kinds, state_tensors

PAGE, NUM_STATES = 8, 6
SHAPES = [
    StateShape(0, 3, 2, torch.bfloat16, heads=1, v_dim=2, k_dim=5),
    StateShape(1, 5, 3, torch.bfloat16),
    StateShape(2, 2, 1, torch.float32, heads=2, v_dim=3, k_dim=1),
]
SIZE = sum(shape.num_bytes for shape in SHAPES)
ROW_BYTES = 2 * 2 * 2 * 3  # keys and values of two layers with one head of three bfloat16 numbers, less than a state
ROWS = -(-SIZE // ROW_BYTES)


def random_states(seed: int = 0) -> StatePool:
    """Random bytes in all slots but the reserved ones."""
    pool = StatePool(SHAPES, NUM_STATES, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    for tensor in state_tensors(pool):
        tensor[2:].view(torch.uint8).random_(0, 256, generator=generator)
    return pool


def bytes_of(pool: StatePool, state: int) -> torch.Tensor:
    return torch.cat([tensor[state].contiguous().view(torch.uint8).flatten() for tensor in state_tensors(pool)])


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[KVOpen]:
    prefix = str(tmp_path / "arena")
    file = MemoryFile(arena_path(prefix, 0))
    yield KVOpen(prefix, 6 * PAGE, PAGE, state_rows=ROWS)
    file.close()


def mover(opening: KVOpen, kv_cache: KVCache, states: StatePool | None) -> Mover:
    made = Mover()
    made.use(kv_cache, torch.device("cpu"), states)
    made.order(msgspec.msgpack.encode(opening))
    return made


def keys_and_values() -> KVCache:
    pool = KVCache([AttentionLayer(i, 1, 1, 3, 1.0) for i in range(2)], 40, 1, torch.bfloat16, torch.device("cpu"))
    for tensor in (*pool.k, *pool.v):
        tensor.view(torch.uint8).random_(0, 256)
    return pool


def test_a_state_takes_several_rows() -> None:
    assert ROWS > 2
    assert SIZE % ROW_BYTES, "the last row is not full"


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_prefix_and_its_state_come_back_into_other_slots(opening: KVOpen, cut: int) -> None:
    """Also in two moves, the cut within the state."""
    pool, states = keys_and_values(), random_states()
    made = mover(opening, pool, states)
    slots = np.concatenate([np.array([7, 3, 30], np.int32), state_slots(4, ROWS), np.zeros(2, np.int32)])
    places = np.arange(PAGE, PAGE + len(slots), dtype=np.int32)
    expected, key = bytes_of(states, 4), pool.k[1][3].clone()
    for number, part in enumerate((slice(0, 3 + cut), slice(3 + cut, None))):
        order = KVOut(number, pack_i32(slots[part]), pack_i32(places[part]))
        made.order(msgspec.msgpack.encode(order))
    for tensor in (*pool.k, *pool.v, *state_tensors(states)):
        tensor.view(torch.uint8).bitwise_not_()
    before = [bytes_of(states, state) for state in range(NUM_STATES)]
    target = np.concatenate([np.array([9, 21, 2], np.int32), state_slots(2, ROWS)])
    for number, part in enumerate((slice(0, 3 + cut), slice(3 + cut, None))):
        order = KVIn(2 + number, pack_i32(places[: len(target)][part]), pack_i32(target[part]))
        made.order(msgspec.msgpack.encode(order))
    assert bytes_of(states, 2).equal(expected)
    assert pool.k[1][21].equal(key)
    for state in (0, 1, 3, 4, 5):
        assert bytes_of(states, state).equal(before[state])
    made.close()


def test_a_stage_without_recurrent_layers_moves_zeros(opening: KVOpen) -> None:
    made = mover(opening, keys_and_values(), None)
    places = np.arange(PAGE, PAGE + ROWS, dtype=np.int32)
    made.order(msgspec.msgpack.encode(KVOut(1, pack_i32(state_slots(4, ROWS)), pack_i32(places))))
    made.order(msgspec.msgpack.encode(KVIn(2, pack_i32(places), pack_i32(state_slots(3, ROWS)))))
    assert not np.fromfile(arena_path(opening.arena, 0), np.uint8)[PAGE * ROW_BYTES :][: ROWS * ROW_BYTES].any()
    made.close()


@pytest.mark.parametrize("slots", [state_slots(1, ROWS), state_slots(NUM_STATES, ROWS), state_slots(0, ROWS)[:1]])
def test_rows_of_no_state_or_of_a_reserved_one_end_the_rank(opening: KVOpen, slots: Int32Array) -> None:
    made = mover(opening, keys_and_values(), random_states())
    places = np.arange(PAGE, PAGE + len(slots), dtype=np.int32)
    with pytest.raises(ValueError, match="rows of states"):
        made.order(msgspec.msgpack.encode(KVIn(1, pack_i32(places), pack_i32(slots))))
    made.close()


def test_rows_that_are_too_small_for_a_state_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        StateRows(state_tensors(random_states()), ROWS - 1, ROW_BYTES)


def test_pages_of_a_model_with_other_states_are_foreign(opening: KVOpen) -> None:
    """The layout in the header of each page; without states it is the one of earlier versions."""
    whole = mover(opening, keys_and_values(), random_states())._layout(opening)
    plain = msgspec.structs.replace(opening, state_rows=0)
    others = [
        mover(plain, keys_and_values(), None)._layout(plain),
        mover(opening, keys_and_values(), None)._layout(opening),
    ]
    assert whole not in others
    part = (0, 1, 0, 1, (), PAGE, [6, 6, 6, 6])
    assert others[0] == blake2b(repr(part).encode(), digest_size=16).digest()


class Tokens:
    """Rows of keys and values with plain torch."""

    row_bytes = ROW_BYTES

    def __init__(self) -> None:
        self.slots = torch.randint(256, (40, ROW_BYTES), dtype=torch.uint8)

    def upload(self, slots: Int32Array) -> Int32Array:
        return slots.copy()

    def gather(self, slots: Int32Array, rows: torch.Tensor) -> None:
        rows.copy_(self.slots[torch.from_numpy(slots.copy()).long()])

    def scatter(self, slots: Int32Array, rows: torch.Tensor) -> None:
        self.slots[torch.from_numpy(slots.copy()).long()] = rows


def test_rows_of_both_kinds_share_a_piece_of_staging_memory() -> None:
    tokens, states = Tokens(), random_states()
    pool = PoolRows(tokens, StateRows(state_tensors(states), ROWS, ROW_BYTES))
    slots = np.concatenate([np.array([7, 3], np.int32), state_slots(4, ROWS), np.zeros(3, np.int32)])
    assert [is_state for _, is_state in kinds(slots)] == [False, True, False]
    piece = torch.full((len(slots), ROW_BYTES), 77, dtype=torch.uint8)
    pool.gather(pool.upload(slots), piece)
    expected = bytes_of(states, 4)
    assert piece[2 : 2 + ROWS].flatten()[:SIZE].equal(expected)
    assert not piece[2 : 2 + ROWS].flatten()[SIZE:].any(), "bytes of an earlier piece"
    tokens_before = tokens.slots[[7, 3]].clone()
    target = pool.upload(np.concatenate([np.array([11, 12], np.int32), state_slots(5, ROWS)]))
    for part in (slice(0, 4), slice(4, 2 + ROWS)):  # the staging memory is used twice
        pool.scatter(target[part], piece[part])
    assert tokens.slots[[11, 12]].equal(tokens_before)
    assert bytes_of(states, 5).equal(expected)
