"""Why prompts missed the cache, and the best hit rates that a cache could have had."""

from __future__ import annotations

import random

import msgspec
import pytest

from benchmarks.programs.optimal_cache import Traced, best_hit_rate
from radixrt.mem_cache.granules import HASH_BYTES, prompt_hashes
from radixrt.messages.cache_events import CacheEvents, WatchCacheReq
from radixrt.messages.parts import ProgramHint
from radixrt.messages.wire import pack_i32
from radixrt.parts.watch.scheduler import CacheStream
from radixrt.server.ui.misses import Miss, MissLog
from radixrt.server.ui.optimum import Window, belady
from radixrt.server.ui.samples import Samples
from tests.scheduler.fake_runner import Harness
from tests.server.fake_engine import FakeEngine, stats


class Log:
    """A scheduler without a model, and the log of its misses."""

    def __init__(self, **options: object) -> None:
        self.h = Harness(max_context=2048, **options)  # type: ignore[arg-type]
        self.stream = CacheStream(self.h.scheduler.core)
        self.misses = MissLog(now=lambda: self.h.now)
        self.stream.handle(WatchCacheReq(True, requests=True))

    def run(self, rid: str, prompt: list[int], **fields: object) -> Miss:
        """Run one request to its end; returns what became of its prompt."""
        self.add(rid, prompt, **fields)
        self.h.drain()
        self.read()
        return next(miss for miss in self.misses.ended if miss.rid == rid)

    def add(self, rid: str, prompt: list[int], **fields: object) -> None:
        self.h.add(rid, prompt, **{"max_tokens": 2, "ignore_eos": True, **fields})

    def read(self) -> None:
        self.h.now += 1.0
        for batch in self.stream.turn(self.h.now):
            if isinstance(batch, CacheEvents):
                assert self.misses.apply(batch)


def split(miss: Miss) -> tuple[int, int, int, int, int]:
    return miss.cached, miss.new, miss.evicted, miss.reset, miss.together


def test_requests_that_have_ended_keep_no_hashes() -> None:
    log = Log(num_slots=2000)
    log.add("a", [1] * 200)
    log.h.drain()
    log.read()
    (kept,) = log.misses.ended
    assert (kept.prompt, kept.granules, kept.output) == (200, [], [])
    assert log.misses.changed == {1: kept}


def test_new_tokens_and_where_they_part() -> None:
    log = Log(num_slots=2000)
    first = log.run("a", [1] * 100 + [2] * 100)
    assert split(first) == (0, 200, 0, 0, 0)
    assert first.beside == 0
    assert split(log.run("again", [1] * 100 + [2] * 100)) == (199, 0, 0, 0, 1)
    parting = log.run("b", [1] * 100 + [3] * 50, program=ProgramHint("p", "0/1"))
    assert split(parting) == (100, 50, 0, 0, 0)
    assert (parting.beside, parting.matched, parting.program, parting.branch) == (1, 100, "p", "0/1")
    assert (parting.ended, parting.out) == ("length", 2)
    assert parting.first_token_s is not None


def test_evicted_tokens_are_told_from_new_ones() -> None:
    log = Log(num_slots=600, max_running_requests=1)
    log.run("a", [1] * 128 + [2] * 128)
    log.run("other", [5] * 550)
    back = log.run("a again", [1] * 128 + [2] * 128 + [3] * 64)
    assert split(back)[2] == 256
    assert split(back)[1] == 64
    assert back.evicted_s > 0


def test_a_waiting_prompt_is_told_what_was_evicted_and_what_is_new() -> None:
    log = Log(num_slots=600, max_running_requests=1)
    log.run("a", [1] * 128 + [2] * 128)
    log.run("other", [5] * 550)
    hashes = prompt_hashes(pack_i32([1] * 128 + [2] * 128 + [3] * 70))
    log.h.now += 2.0
    found = log.misses.causes(hashes, 0, 326)
    assert (found.evicted, found.reset, found.new) == (256, 0, 70)
    assert found.evicted_s > 0
    assert log.misses.causes(hashes, 0, 326) == found, "looking forgets nothing"
    assert log.misses.causes(hashes[:16], 0, 326).new == 0, "what is not hashed is as what comes before it"
    assert log.misses.causes(hashes, 200, 300)[:2] == (56, 0)
    back = log.run("a again", [1] * 128 + [2] * 128 + [3] * 64)
    assert split(back) == (0, 64, 256, 0, 0)
    assert log.misses.causes(hashes, 0, 326).evicted == 0, "it is in the tree again"


def test_tokens_of_an_emptied_cache_are_told_too() -> None:
    log = Log(num_slots=2000)
    log.run("a", [1] * 200)
    log.h.scheduler.runner_lost([], "it died", log.h.now)
    log.h.restart()
    assert split(log.run("b", [1] * 200)) == (0, 0, 0, 200, 0)


def test_a_prompt_that_is_computed_as_a_whole_says_so() -> None:
    log = Log(num_slots=2000)
    log.run("a", [1] * 200)
    whole = log.run("b", [1] * 200, prompt_logprobs=0)
    assert (whole.reusable, whole.cached) == (0, 0)
    assert whole.together == 200  # it was there already


def test_the_states_of_hybrid_models_are_told_apart() -> None:
    log = Log(num_slots=2000, num_states=12, min_gap=2)
    log.run("a", [1] * 100 + [2] * 100)
    other = log.run("b", [1] * 100 + [3] * 20)
    assert (other.matched, other.cached) == (100, 0)


# --- the optimum ---


def cold(prompts: list[list[int]]) -> list[Miss]:
    """Requests of a cache that had nothing: `seen` is what a cache without eviction would have had."""
    found, known = [], set()
    for at, prompt in enumerate(prompts):
        hashes = prompt_hashes(pack_i32(prompt))
        granules = [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]
        seen = 64 * next((i for i, granule in enumerate(granules) if granule not in known), len(granules))
        known.update(granules)
        found.append(Miss(str(at), at, float(at), len(prompt), 0, 0, 0, 0, evicted=seen, granules=granules))
    return found


def test_the_optimum_by_hand() -> None:
    a, b, c = ([number] * 128 for number in (1, 2, 3))
    trace = cold([a, b, c, a, b, a])
    assert belady(trace, 100) == 3 * 127  # all that comes back, but the last token of each
    assert belady(trace, 4) == 3 * 127  # c, which does not, is not kept
    assert belady(trace, 2) == 2 * 127  # a alone is kept
    assert belady(trace, 0) == 0


@pytest.mark.parametrize("capacity", [2, 5, 9, 30])
def test_the_optimum_is_that_of_the_whole_trace(capacity: int) -> None:
    """The same as `benchmarks.programs.optimal_cache` finds token by token, for prompts of whole granules."""
    rng = random.Random(capacity)
    prompts = []
    for _ in range(60):
        length = rng.randrange(1, 5)
        prompts.append([token for at in range(length) for token in [100 * at + rng.randrange(2)] * 64])
    rate, _ = best_hit_rate([Traced(prompt, []) for prompt in prompts], 64 * capacity)
    total = sum(map(len, prompts))
    assert belady(cold(prompts), capacity) == pytest.approx(rate * total)


def test_the_window_forgets_and_keeps_the_bounds_in_order() -> None:
    window = Window()
    assert window.bounds(1000, now=0.0) is None
    for miss in cold([[1] * 200, [1] * 200, [2] * 100]):
        window.add(miss)
    bounds = window.bounds(64 * 100, now=10.0)
    assert bounds is not None
    assert (bounds.requests, bounds.prompt, bounds.infinite) == (3, 500, 192)
    assert bounds.hits <= bounds.belady <= bounds.infinite <= bounds.prompt
    assert window.bounds(1000, now=601.5).requests == 1  # type: ignore[union-attr]
    assert window.bounds(1000, now=10_000.0) is None


def test_samples_tell_when_the_clock_of_the_cache_stood_where() -> None:
    """Ages of nodes reach back to before a page was opened; a scheduler that starts anew begins the clock anew."""
    engine = FakeEngine()
    now = [100.0]
    samples = Samples(engine.client, clock=lambda: now[0])
    samples.tick()
    assert not samples.rows
    for clock in (5, 5, 9, 2, 7):
        engine.client.stats = msgspec.structs.replace(stats(), cache_clock=clock)
        samples.tick()
        samples.tick()  # within the same second
        now[0] += 1.0
    engine.close()
    assert samples.count == 5
    assert samples.ticks() == [(2, 103.0), (7, 104.0)]
    assert [row[0] for row in samples.since(3)] == [103.0, 104.0]
    assert samples.since(5) == []
    assert samples.rows[0][7:11] == [50, 30, 15, 5]
