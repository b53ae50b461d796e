"""Deferral of waiting requests, against its definition: a comparison with every active request."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.chunk_cache import ChunkCache
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32
from radixrt.parts.reads.scheduler import reads_of
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.admission import DEFER_TOKENS, PrefillPrefixes
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.req import Req, ReqState


def request(ids: list[int], *, namespace: str = "", state: ReqState = ReqState.PREFILL, **sampling: object) -> Req:
    message = Request.generate("r", pack_i32(ids), SamplingParams(**sampling), cache_salt=namespace)  # type: ignore[arg-type]
    assert message.sampling is not None
    req = Req(
        message.envelope,
        np.array(ids, np.int32),
        message.sampling,
        reads=reads_of(message.rows[0]),
        seq=0,
        seed=0,
        eos_ids=frozenset(),
        max_len=4096,
        now=0.0,
        timeout_s=60.0,
    )
    req.state = state
    return req


def manager(cached: list[int], *, shares: bool = True) -> KVManager:
    allocator = TokenToKVPoolAllocator(4096)
    cache = RadixCache(allocator) if shares else ChunkCache(allocator)
    if cached and shares:
        slots = allocator.alloc_extend(0, len(cached), 0)
        assert slots is not None
        cache.insert(np.array(cached, np.int32), slots)
    return KVManager(cache, allocator, ReqToTokenPool(8, 4096))


def held_back(req: Req, active: list[Req], kv: KVManager) -> bool:
    """The definition."""
    reusable = req.reusable_ids.tolist()
    have = kv.match_len(req)
    for other in active:
        known, common = other.known_ids.tolist(), 0
        while common < min(len(known), len(reusable)) and known[common] == reusable[common]:
            common += 1
        same = other.state is ReqState.PREFILL and other.namespace == req.namespace
        if same and common - have >= DEFER_TOKENS:
            return True
    return False


PREFIX = list(range(100, 100 + 2 * DEFER_TOKENS))


@pytest.mark.parametrize("shared", [DEFER_TOKENS - 1, DEFER_TOKENS, DEFER_TOKENS + 1])
@pytest.mark.parametrize("cached", [0, 1, 20])
def test_the_border(shared: int, cached: int) -> None:
    ids = PREFIX[: cached + shared]
    kv = manager(PREFIX[:cached])
    computing = PrefillPrefixes([request([*ids, 1, 1])], kv)
    assert computing.covers(request([*ids, 2, 2])) is (shared >= DEFER_TOKENS)


def test_the_last_token_is_always_computed() -> None:
    kv = manager([])
    computing = PrefillPrefixes([request(PREFIX)], kv)
    assert not computing.covers(request(PREFIX[:DEFER_TOKENS]))
    assert computing.covers(request(PREFIX[: DEFER_TOKENS + 1]))


def test_nobody_waits_for_what_is_not_computed_or_not_shared() -> None:
    waiting = request(PREFIX)
    assert not PrefillPrefixes([], manager([])).covers(waiting)
    assert not PrefillPrefixes([request(PREFIX, state=ReqState.RUNNING)], manager([])).covers(waiting)
    assert not PrefillPrefixes([request(PREFIX, namespace="x")], manager([])).covers(waiting)
    assert not PrefillPrefixes([request(PREFIX)], manager([], shares=False)).covers(waiting)
    scored = request(PREFIX, prompt_logprobs=0)
    assert not PrefillPrefixes([request(PREFIX)], manager([])).covers(scored)


def test_equal_windows_behind_other_prefixes_do_not_count() -> None:
    window = PREFIX[:DEFER_TOKENS]
    kv = manager([1, 1])
    computing = PrefillPrefixes([request([2, 2, *window, 5])], kv)
    assert not computing.covers(request([1, 1, *window, 5]))


@pytest.mark.parametrize("seed", range(60))
def test_against_the_definition(seed: int) -> None:
    """Prompts cut from few runs, so that many share prefixes; requests are admitted between the questions."""
    rng = random.Random(seed)
    runs = [[rng.randrange(3) for _ in range(rng.choice([1, 10, 31, 32, 33, 50]))] for _ in range(4)]

    def prompt() -> list[int]:
        ids = [token for run in rng.choices(runs, k=rng.randint(1, 4)) for token in run]
        return [*ids[: rng.randint(1, len(ids))], rng.randrange(3)]

    kv = manager(prompt() if rng.random() < 0.7 else [])
    active = [request(prompt(), namespace=rng.choice(["", "", "n"])) for _ in range(rng.randint(0, 4))]
    for req in active:
        req.state = rng.choice([ReqState.PREFILL, ReqState.PREFILL, ReqState.RUNNING])
    computing = PrefillPrefixes(active, kv)
    for _ in range(30):
        req = request(prompt(), namespace=rng.choice(["", "", "n"]))
        expected = held_back(req, active, kv)
        assert computing.covers(req) is expected
        if not expected and rng.random() < 0.5:
            active.append(req)
            computing.add(req)
