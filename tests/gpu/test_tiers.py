"""Keys and values that leave a GPU and come back: the mover's streams beside steps, drops, files, a whole engine."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from radixrt import Engine
from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.memory_file import MemoryFile
from radixrt.messages.kv_moves import (
    MAX_MOVES,
    MOVE_BYTES,
    KVConnectorOutput,
    KVDrop,
    KVIn,
    KVLoad,
    KVOpen,
    KVOut,
    KVSave,
    arena_path,
)
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.tiers.policy import Prices
from radixrt.parts.tiers.runner import arena as arena_module
from radixrt.parts.tiers.runner import staging
from radixrt.parts.tiers.runner.mover import Mover
from radixrt.parts.tiers.runner.pool_copies import pool_tensors
from tests.tiny_models import make_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PAGE = 64
LAYERS = [AttentionLayer(i, 8, 8, 128, 1.0) for i in range(4)]
NUM_SLOTS, NUM_PAGES = 60 * PAGE, 40
DTYPES = [torch.bfloat16, torch.float8_e4m3fn]


class Rank:
    """A mover over a pool on the GPU, whose slots have random bytes."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        device = torch.device("cuda")
        self._file = MemoryFile(arena_path(str(folder / "arena"), 0))
        self.pool = KVCache(LAYERS, NUM_SLOTS, 1, dtype, device)
        self.tensors = [tensor.view(torch.uint8).flatten(1) for tensor in pool_tensors(self.pool)]
        for tensor in self.tensors:
            tensor.random_(0, 256)
        self.mover = Mover()
        self.mover.use(self.pool, device)
        self.opening = KVOpen(str(folder / "arena"), NUM_PAGES * PAGE, PAGE, str(folder), 8, b"model")
        self.order(self.opening)

    def close(self) -> None:
        self.mover.close()
        self._file.close()

    def order(self, order: object) -> None:
        self.mover.order(msgspec.msgpack.encode(order))

    def out(self, move: int, slots: Int32Array, places: Int32Array) -> None:
        self.order(KVOut(move, pack_i32(slots), pack_i32(places)))

    def into(self, move: int, places: Int32Array, slots: Int32Array) -> None:
        self.order(KVIn(move, pack_i32(places), pack_i32(slots)))

    def poll(self) -> list[int]:
        """Return the finished moves; none may fail."""
        data = self.mover.poll()
        if data is None:
            return []
        report = msgspec.msgpack.decode(data, type=KVConnectorOutput)
        assert not report.failed_sending
        assert not report.failed_recving
        assert all(0 <= seconds < 10 for seconds in report.seconds)
        return [*report.finished_sending, *report.finished_recving]

    def settle(self) -> list[int]:
        """Poll until nothing is under way."""
        finished: list[int] = []
        deadline = time.monotonic() + 30
        while self.mover.is_busy:
            assert time.monotonic() < deadline
            finished += self.poll()
        return finished

    def rows(self, slots: Int32Array) -> torch.Tensor:
        """uint8 [n, row_bytes] on the GPU, in stream order."""
        at = torch.from_numpy(slots).long().pin_memory().to("cuda", non_blocking=True)
        return torch.cat([tensor[at] for tensor in self.tensors], dim=1)

    def overwrite(self, slots: Int32Array) -> torch.Tensor:
        """Launch a step that writes random bytes into slots; return the rows."""
        at = torch.from_numpy(slots).long().pin_memory().to("cuda", non_blocking=True)
        for tensor in self.tensors:
            tensor[at] = torch.randint(256, (len(slots), tensor.shape[1]), dtype=torch.uint8, device="cuda")
        return self.rows(slots)


@pytest.fixture(params=DTYPES, ids=["bfloat16", "float8"])
def rank(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    """With chunks of the arena so small that moves cross them."""
    monkeypatch.setattr(arena_module, "CHUNK_BYTES", 2**18)
    with torch.inference_mode():
        made = Rank(tmp_path, request.param)
        yield made
        made.close()


def busy(milliseconds: float) -> None:
    """Launch a step that takes a while."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))  # type: ignore[no-untyped-call]


def places_of(page: int, pages: int = 1) -> Int32Array:
    return np.arange(page * PAGE, (page + pages) * PAGE, dtype=np.int32)


def shuffled(seed: int = 0) -> Int32Array:
    return np.random.default_rng(seed).permutation(np.arange(1, NUM_SLOTS + 1, dtype=np.int32))


@torch.inference_mode()
def test_bytes_come_back_while_steps_run(rank: Rank) -> None:
    slots = shuffled()
    expected = []
    for move in range(MAX_MOVES):
        own = slots[move * PAGE : (move + 1) * PAGE]
        busy(2)
        expected.append(rank.rows(own))
        rank.out(move, own, places_of(1 + move))
        rank.overwrite(own)  # the next step has the slots
    assert sorted(rank.settle()) == [*range(MAX_MOVES)]
    for move in range(MAX_MOVES):
        busy(2)
        rank.into(move, places_of(1 + move), slots[(20 + move) * PAGE : (21 + move) * PAGE])
    assert sorted(rank.settle()) == [*range(MAX_MOVES)]
    for move in range(MAX_MOVES):
        assert rank.rows(slots[(20 + move) * PAGE : (21 + move) * PAGE]).equal(expected[move])


@torch.inference_mode()
def test_one_order_brings_more_than_a_piece_holds(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of two pages, and copies on the link that are shorter than a page."""
    monkeypatch.setattr(staging, "MOVE_BYTES", PAGE * sum(tensor.shape[1] for tensor in rank.tensors))
    monkeypatch.setattr(staging, "RECEIVED_MOVES", 2)
    monkeypatch.setattr(arena_module, "COPY_BYTES", 100_000)
    rank.mover.close()
    rank.order(rank.opening)
    slots = shuffled()
    expected = rank.rows(slots[: 7 * PAGE])
    for move in range(7):
        rank.out(move, slots[move * PAGE : (move + 1) * PAGE], places_of(1 + move))
    assert sorted(rank.settle()) == [*range(7)]
    busy(2)
    rank.into(7, places_of(1, 7), slots[20 * PAGE : 27 * PAGE])
    busy(2)
    assert rank.settle() == [7]
    assert rank.rows(slots[20 * PAGE : 27 * PAGE]).equal(expected)


@torch.inference_mode()
def test_the_arena_has_the_documented_rows(rank: Rank) -> None:
    slots = shuffled()[:PAGE]
    rank.out(1, slots, places_of(3))
    rank.settle()
    row_bytes = sum(tensor.shape[1] for tensor in rank.tensors)
    arena = np.memmap(arena_path(rank.opening.arena, 0), np.uint8, "r")
    found = arena[: (NUM_PAGES + 1) * PAGE * row_bytes].reshape(-1, row_bytes)[places_of(3)]
    assert torch.from_numpy(found.copy()).equal(rank.rows(slots).cpu())


@torch.inference_mode()
def test_dropped_copies_write_no_slot_later(rank: Rank) -> None:
    slots = shuffled()
    rank.out(0, slots[: 4 * PAGE], places_of(1, 4))
    rank.settle()
    for delay in (0.0, 0.0002, 0.001, 0.005):
        busy(3)
        for move in range(4):
            rank.into(move, places_of(1 + move), slots[(10 + move) * PAGE : (11 + move) * PAGE])
        time.sleep(delay)
        rank.order(KVDrop())
        kept = rank.overwrite(slots[10 * PAGE : 14 * PAGE])
        assert rank.poll() == []
        torch.cuda.synchronize()
        time.sleep(0.01)
        assert rank.rows(slots[10 * PAGE : 14 * PAGE]).equal(kept)


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_moves_steps_and_drops(rank: Rank, seed: int) -> None:
    choose = random.Random(seed)
    free = shuffled(seed).tolist()
    known: dict[int, torch.Tensor] = {}
    under_way: dict[int, tuple[bool, int, Int32Array, torch.Tensor]] = {}
    bad = torch.zeros((), dtype=torch.int64, device="cuda")  # read once: each reading would wait for the device
    move = checked = 0
    deadline = time.monotonic() + 60
    while checked < 300:
        assert time.monotonic() < deadline
        event = choose.choice(["out", "out", "in", "in", "poll", "poll", "poll", "step", "busy", "drop"])
        outs = sum(each[0] for each in under_way.values())
        if event == "out" and outs < MAX_MOVES:
            taken = {each[1] for each in under_way.values()}
            page = choose.choice([each for each in range(1, NUM_PAGES + 1) if each not in taken])
            slots = np.array(choose.sample(free, PAGE), np.int32)
            known.pop(page, None)
            under_way[move] = (True, page, slots, rank.rows(slots))
            rank.out(move, slots, places_of(page))
            rank.overwrite(slots)
            move += 1
        elif event == "in" and known and len(under_way) - outs < 3 * MAX_MOVES:
            page = choose.choice([*known])
            slots = np.array(choose.sample(free, PAGE), np.int32)
            taken_slots = set(slots.tolist())
            free = [each for each in free if each not in taken_slots]
            under_way[move] = (False, page, slots, known[page])
            rank.into(move, places_of(page), slots)
            move += 1
        elif event == "poll":
            for number in rank.poll():
                sends, page, slots, expected = under_way.pop(number)
                checked += 1
                if sends:
                    known[page] = expected
                else:
                    bad += (rank.rows(slots) != expected).sum()
                    free += slots.tolist()
        elif event == "step":
            rank.overwrite(np.array(choose.sample(free, PAGE), np.int32))
        elif event == "busy":
            busy(choose.random())
        elif event == "drop" and choose.random() < 0.05:
            rank.order(KVDrop())
            free += [slot for sends, _, slots, _ in under_way.values() if not sends for slot in slots.tolist()]
            under_way.clear()
    assert bad.item() == 0


@torch.inference_mode()
def test_pages_come_back_from_the_file(rank: Rank) -> None:
    slots, keys = shuffled(), [bytes([i]) * 16 for i in range(3)]
    rank.out(0, slots[: 2 * PAGE], places_of(5, 2))
    rank.settle()
    expected = rank.rows(slots[: 2 * PAGE])
    rank.order(KVSave(1, pack_i32([5, 6]), pack_i32([2, 1]), b"".join(keys[:2])))
    assert rank.settle() == [1]
    rank.order(KVLoad(2, pack_i32([2, 1]), b"".join(keys[:2]), pack_i32([9, 10])))
    assert rank.settle() == [2]
    rank.into(3, places_of(9, 2), slots[10 * PAGE : 12 * PAGE])
    assert rank.settle() == [3]
    assert rank.rows(slots[10 * PAGE : 12 * PAGE]).equal(expected)


@torch.inference_mode()
def test_opening_takes_the_memory_that_the_pool_leaves(tmp_path: Path) -> None:
    before = torch.cuda.memory_allocated()
    rank = Rank(tmp_path, torch.bfloat16)
    pool = sum(tensor.nbytes for tensor in rank.tensors)
    assert MOVE_BYTES < torch.cuda.memory_allocated() - before - pool <= staging.STAGING_BYTES + 2**20
    rank.close()


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_evicted_prompts_come_back(tmp_path: Path, executor: str) -> None:
    """Float32 tokens of prompts that were fetched, beside prompts that were computed."""
    folder = str(make_tiny_model(tmp_path / "model", "llama", head_dim=64, max_position_embeddings=4096))
    prompts = [np.random.default_rng(i).integers(3, 400, 700).tolist() for i in range(6)]
    params = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}
    options = {"show_progress": False, "device": "cuda", "dtype": "float32", "executor": executor}
    with Engine(folder, kv_cache_tokens=8192, **options) as engine:
        expected = [engine.generate(prompt, params).token_ids for prompt in prompts]
    with Engine(folder, kv_cache_tokens=2048, kv_host_gib=0.25, max_running_requests=2, **options) as engine:
        fetched, deadline = 0, time.monotonic() + 60
        while fetched < 4 * 640:  # prompts are copied in idle moments
            assert time.monotonic() < deadline
            for prompt, tokens in zip(prompts, expected, strict=True):
                answer = engine.generate(prompt, params)
                assert answer.token_ids == tokens
                fetched += answer.usage.fetched_tokens.get("host", 0)
            time.sleep(0.3)
        moves = engine.stats.tiers.moves
        assert not any(each.failed for each in moves.values())
        if executor == "uni":
            engine.check_invariants()


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5"])
def test_states_come_back(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From host memory, then from disk in another engine; a tiny model would rather compute."""
    monkeypatch.setattr(Prices, "pays", lambda *_: True)
    overrides = {"hidden_size": 256} if kind == "lfm2" else {"head_dim": 64}
    folder = str(make_tiny_model(tmp_path / "model", kind, **overrides))
    prompts = [np.random.default_rng(i).integers(3, 400, 300 + 7 * i).tolist() for i in range(6)]
    params = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
    options = {"show_progress": False, "device": "cuda", "dtype": "float32", "executor": "uni", "context_length": 512}
    with Engine(folder, kv_cache_tokens=8192, **options) as engine:
        expected = [engine.generate(prompt, params).token_ids for prompt in prompts]
    tiers = {"kv_host_gib": 0.25, "kv_disk": str(tmp_path / "kv"), "kv_disk_gib": 0.5, "num_states": 8}
    for tier in ("host", "disk"):
        with Engine(folder, kv_cache_tokens=1024, max_running_requests=2, **tiers, **options) as engine:
            fetched, deadline = 0, time.monotonic() + 60
            while fetched < 600:  # prompts are copied in idle moments
                assert time.monotonic() < deadline
                for prompt, tokens in zip(prompts, expected, strict=True):
                    answer = engine.generate(prompt, params)
                    assert answer.token_ids == tokens
                    fetched += answer.usage.fetched_tokens.get(tier, 0)
                time.sleep(0.5)
            assert not any(each.failed for each in engine.stats.tiers.moves.values())
            engine.check_invariants()
