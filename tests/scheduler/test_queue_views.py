"""Prefixes that waiting requests would find in the cache, and why they are not admitted, for whoever watches."""

from __future__ import annotations

from radixrt.mem_cache.granules import prompt_hashes
from radixrt.messages.cache_events import OBSTACLES, QueueView, RequestView, RequestViews, WatchCacheReq
from radixrt.messages.parts import ProgramHint
from radixrt.messages.wire import pack_i32
from radixrt.parts.watch import queue_views
from radixrt.parts.watch import scheduler as cache_stream
from radixrt.parts.watch.scheduler import CacheStream
from tests.scheduler.fake_runner import Harness
from tests.scheduler.test_programs import DEAR


class Watched:
    """A harness and the views of its requests."""

    def __init__(self, **options: object) -> None:
        self.h = Harness(**options)  # type: ignore[arg-type]
        self.stream = CacheStream(self.h.scheduler.core)
        self.stream.handle(WatchCacheReq(True, requests=True))

    def add(self, rid: str, prompt: list[int], **fields: object) -> None:
        self.h.add(rid, prompt, **{"max_tokens": 4, "ignore_eos": True, **fields})

    def views(self) -> list[RequestView]:
        self.h.now += 0.3
        (found,) = [each for each in self.stream.turn(self.h.now) if isinstance(each, RequestViews)]
        return found.views

    def queued(self, rid: str) -> QueueView:
        (view,) = [view for view in self.views() if view.rid == rid]
        assert view.queue is not None
        assert view.queue.obstacle in OBSTACLES
        return view.queue


def test_what_a_waiting_request_would_find() -> None:
    w = Watched(num_slots=2000, max_context=512, max_running_requests=1)
    w.add("cached", [5] * 100 + [6] * 50)
    w.h.drain()
    w.add("runs", [1] * 10)
    w.h.turn()
    w.add("parts inside a node", [5] * 80 + [7] * 120)
    w.add("goes on", [5] * 100 + [6] * 50)
    w.add("whole", [5] * 100, prompt_logprobs=0)
    w.add("other", [9] * 70)
    before = w.h.cache.clock, [(node.hits, node.last_access) for node in w.h.cache.iter_nodes()]
    inside, again, whole, other = (
        w.queued(rid) for rid in ("parts inside a node", "goes on", "whole", "other")
    )  # fmt: skip
    assert (inside.matched_tokens, inside.reusable_tokens, inside.continuations) == (80, 199, 1)
    assert (again.matched_tokens, again.reusable_tokens) == (149, 149)
    assert (whole.matched_tokens, whole.reusable_tokens) == (0, 0)
    assert (other.matched_tokens, other.continuations) == (0, 0)
    assert {inside.obstacle, again.obstacle, whole.obstacle, other.obstacle} == {"requests"}
    after = w.h.cache.clock, [(node.hits, node.last_access) for node in w.h.cache.iter_nodes()]
    assert before == after, "looking uses nothing"
    w.h.drain()
    w.h.verify()


def test_hashes_are_sent_once_to_each_reader_and_not_all_at_once(monkeypatch: object) -> None:
    w = Watched(num_slots=2000, max_context=512, max_running_requests=1)
    w.add("runs", [1] * 10)
    w.h.turn()
    prompts = {f"w{n}": [n + 2] * 130 for n in range(3)}
    for rid, prompt in prompts.items():
        w.add(rid, prompt)

    def sent() -> dict[str, bytes]:
        return {view.rid: view.queue.hashes for view in w.views() if view.queue is not None and view.queue.hashes}

    first = sent()
    assert first == {rid: prompt_hashes(pack_i32(prompt)) for rid, prompt in prompts.items()}
    assert sent() == {}
    w.stream.handle(WatchCacheReq(True, requests=True))
    assert sent() == first
    monkeypatch.setattr(queue_views, "HASHED_TOKENS", 100)  # type: ignore[attr-defined]
    w.stream.handle(WatchCacheReq(True, requests=True))
    assert [list(sent()) for _ in range(4)] == [["w0"], ["w1"], ["w2"], []]


def test_a_long_queue_is_looked_at_from_its_front() -> None:
    w = Watched(num_slots=500, max_running_requests=1, max_queued_requests=20_000)
    w.add("runs", [1] * 10)
    w.h.turn()
    for number in range(10_000):
        w.add(f"w{number}", [number % 40 + 1] * 20)
    views = w.views()
    assert len(views) == cache_stream.MAX_VIEWS
    assert [view.queue is not None for view in views[1:]] == [n < cache_stream.MAX_MATCHED for n in range(511)]
    assert {view.cached_tokens for view in views[65:]} == {-1}


def test_a_request_waits_for_slots() -> None:
    w = Watched(num_slots=200, max_context=200, max_running_requests=4)
    w.add("runs", [1] * 100, max_tokens=60)
    w.h.turn()
    w.add("long", [2] * 150)
    w.h.turn()
    queued = w.queued("long")
    assert queued.obstacle == "slots"
    assert queued.needed_slots > 150 > queued.free_slots > 0


def test_a_request_waits_for_a_prefix_that_is_being_computed() -> None:
    for options in ({}, {"num_states": 12, "min_gap": 2}):
        w = Watched(num_slots=2000, max_context=512, chunked_prefill_size=32, **options)
        w.add("first", [5] * 200)
        w.h.turn()
        w.add("second", [5] * 200 + [6] * 10)
        w.h.submit()
        assert w.queued("second").obstacle == "prefix"
        w.h.drain()
        w.h.verify()


def test_a_request_waits_for_programs_that_began_before() -> None:
    w = Watched(num_slots=400, max_context=400, max_running_requests=8)
    w.h.scheduler.step_time._times = DEAR
    w.add("call", [5] * 200, program=ProgramHint("p", "0", will_continue=True))
    w.h.drain()  # the program's end is held, and its next call comes
    w.add("runs", [1] * 20, max_tokens=60)
    w.h.turn()
    w.add("big", [2] * 170)
    w.h.turn()
    queued = w.queued("big")
    assert queued.obstacle == "programs"
    assert queued.free_slots >= queued.needed_slots


def test_a_request_waits_for_the_runner() -> None:
    w = Watched(num_slots=400)
    w.add("a", [1] * 20)
    w.h.turn()
    w.h.kill()
    assert w.queued("a").obstacle == "restart"
    w.h.restart()
    w.h.drain()
    w.h.verify()
