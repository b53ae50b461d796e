"""Lines of JSON that the page and `radixrt tree` read.

The tree comes as `CacheEvents` do: a line "snapshot" has events that build the whole tree, and each line "events" has
the events since the line before, with their fields as arrays. Events are without hashes, the seed of a root is cut to
its first digits, and events of requests are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from radixrt.mem_cache.granules import seed_of
from radixrt.mem_cache.replica import CacheReplica
from radixrt.messages.cache_events import (
    CacheEvent,
    NodeInserted,
    RequestAdmitted,
    RequestEnded,
    RequestPublished,
    RequestViews,
    RootOpened,
)
from radixrt.messages.fleet import RouterQueue
from radixrt.messages.scheduler_stats import TierStats
from radixrt.server.ui.misses import Causes

_encode = msgspec.json.Encoder().encode
DEFAULT_SEED = seed_of("")
NAME_BYTES = 3


def line(kind: str, **members: Any) -> bytes:
    """One line of the feed: an object with the member "t", its kind."""
    return _encode({"t": kind, **members}) + b"\n"


def shown_seed(seed: bytes) -> bytes:
    """Return the bytes that name a namespace on the page: none for the default one, else the first of the seed."""
    return b"" if seed == DEFAULT_SEED else seed[:NAME_BYTES]


def shown_event(event: CacheEvent) -> CacheEvent | None:
    """Return the event as the module's docstring says; None for an event of a request."""
    match event:
        case NodeInserted():
            return replace(event, hashes=b"")
        case RootOpened():
            return replace(event, seed=shown_seed(event.seed))
        case RequestAdmitted() | RequestPublished() | RequestEnded():
            return None
    return event


def snapshot_line(replica: CacheReplica, ticks: Sequence[tuple[int, float]]) -> bytes:
    """Return the line with the whole tree.

    Args:
        ticks: (tick of the cache's clock, time in seconds since 1970) at some times, ascending.
    """
    events: list[CacheEvent] = []
    for node in sorted(replica.nodes.values(), key=attrgetter("end")):  # parents end before their children
        if node.parent is None:
            events.append(RootOpened(node.number, shown_seed(node.hashes), node.locks))
            continue
        events.append(
            NodeInserted(
                node.number, node.parent.number, node.tokens, b"", node.created, node.last_access, node.hits,
                node.priority, node.retention, node.locks, node.has_state,
            )
        )  # fmt: skip
    header = {} if replica.header is None else asdict(replica.header)
    return line("snapshot", clock=replica.clock, header=header, ticks=ticks, events=events)


def requests_line(message: RequestViews, causes: Mapping[str, Causes]) -> bytes:
    """Return the line with the requests: an object for each, with the fields of `RequestView` and its namespace's name
    instead of the seed. `queue` of a waiting request has the fields of `QueueView` without the hashes, and the fields
    of `Causes` where these are known.

    Args:
        causes: why tokens of waiting requests are not in the cache, by id.
    """
    rows = []
    for view in message.views:
        row = asdict(view)
        row["namespace"] = shown_seed(row.pop("seed")).hex()
        if view.queue is not None:
            row["queue"] = asdict(view.queue)
            del row["queue"]["hashes"]
            if view.rid in causes:
                row["queue"] |= causes[view.rid]._asdict()
        rows.append(row)
    holds = [[hold.node, hold.program, hold.retention] for hold in message.holds]
    return line("requests", running=message.running, waiting=message.waiting, rows=rows, holds=holds)


def router_line(message: RouterQueue) -> bytes:
    """Return the line with the requests that the router holds: an object for each, with the fields of `HeldRequest`."""
    return line("router", waiting=message.waiting, rows=[asdict(each) for each in message.requests])


def tiers_line(tiers: TierStats) -> bytes:
    """Return the line of the tiers: for each its name, tokens that it keeps, places, and prompt tokens fetched from it
    so far. "peer" stands for other replicas, and has no places."""
    rows = [
        [tier, tiers.tokens_used.get(tier, 0), total, tiers.fetched_tokens.get(tier, 0)]
        for tier, total in tiers.tokens_total.items()
    ]
    if peer := tiers.fetched_tokens.get("peer"):
        rows.append(["peer", 0, 0, peer])
    return line("tiers", rows=rows)
