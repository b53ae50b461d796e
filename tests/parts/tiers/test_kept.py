"""What readers of cache events learn of prefixes that are in the tiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixrt.messages.cache_events import (
    CacheEvents,
    NodeInserted,
    NodeTokens,
    NodeTokensReq,
    RequestAdmitted,
    RequestViews,
    WatchCacheReq,
)
from radixrt.parts.tiers.scheduler import Tiers
from radixrt.parts.tiers.tier import Tier, root_name
from radixrt.parts.watch.scheduler import CacheStream
from tests.scheduler.fake_runner import Harness

PROMPT = [1 + i * i % 37 for i in range(100)]


def put(tier: Tier, tokens: list[int], namespace: str = "") -> None:
    """Put the whole pages of tokens into a tier, as a finished move does."""
    whole, root = tier.whole(np.array(tokens, np.int32)), root_name(namespace)
    arrival = tier.copies.begin(whole, root)
    assert arrival is not None
    tier.copies.end(arrival, copied=True)


class Reader:
    """A scheduler with tiers, and a reader of its events."""

    def __init__(self) -> None:
        self.h = Harness(num_slots=256, max_context=256, parts={"programs", "watch", "tiers"}, max_running_requests=1)
        self.tiers = self.h.scheduler.part(Tiers)
        self.stream = CacheStream(self.h.scheduler.core)
        self.stream.handle(WatchCacheReq(True, requests=True))

    def read(self) -> list[Any]:
        self.h.now += 1.0
        messages = self.stream.turn(self.h.now)
        return [*(m for m in messages if isinstance(m, RequestViews)),
                *(event for m in messages if isinstance(m, CacheEvents) for event in m.events)]  # fmt: skip


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_a_node_says_how_much_of_its_path_the_tiers_have(reader: Reader) -> None:
    reader.h.add("a", PROMPT, max_tokens=1)
    reader.h.drain()
    put(reader.tiers.host, PROMPT)
    (inserted,) = (event for event in reader.read() if isinstance(event, NodeInserted))
    clock = reader.tiers.host.cache.clock
    (answer,) = reader.stream.handle(NodeTokensReq("1", inserted.node, 0))
    assert answer == NodeTokens("1", b"", {"host": 64})
    assert reader.tiers.host.cache.clock == clock, "looking is no use of the prefix"
    assert list(reader.stream.handle(NodeTokensReq("2", 10**6, 4))) == [NodeTokens("2", None)]


def test_a_namespace_is_looked_up_as_itself(reader: Reader) -> None:
    put(reader.tiers.host, PROMPT, "alice")
    kept = reader.h.scheduler.parts.kept_outside
    assert kept(np.array(PROMPT, np.int32), "alice") == {"host": 64}
    assert kept(np.array(PROMPT, np.int32), "") == {"host": 0}
    assert Harness().scheduler.parts.kept_outside(np.array(PROMPT, np.int32), "") == {}


def test_requests_say_what_tiers_have_of_their_prompts(reader: Reader) -> None:
    put(reader.tiers.host, PROMPT)
    reader.h.add("runs", [9, 8, 7], max_tokens=50)
    reader.h.submit()
    reader.h.add("waits", PROMPT, max_tokens=1)
    (views,) = (found for found in reader.read() if isinstance(found, RequestViews))
    (waiting,) = (view for view in views.views if view.rid == "waits")
    assert waiting.queue is not None
    assert waiting.queue.kept == {"host": 64}


def test_an_admission_says_what_was_fetched(reader: Reader) -> None:
    reader.h.add("a", PROMPT, max_tokens=1)
    reader.h.drain()
    reader.h.add("b", PROMPT, max_tokens=1)
    reader.h.scheduler.core.requests.by_rid["b"].stats.note_fetched("host", 0, 64)
    reader.h.drain()
    admitted = [event for event in reader.read() if isinstance(event, RequestAdmitted)]
    assert [(event.rid, event.cached_tokens, event.fetched_tokens) for event in admitted] == [
        ("a", 0, {}), ("b", 99, {"host": 64})
    ]  # fmt: skip
