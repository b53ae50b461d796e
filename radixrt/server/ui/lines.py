"""Lines of JSON that the page reads: the replica as columns, and events as short arrays, both without hashes.

["r", node, name, locks]                    a root; the name stands for its namespace
["i", node, parent, *NODE]                  a node; NODE are the columns of `snapshot_line`
["s", node, prefix, tokens]                 a split
["e", node]                                 an eviction
["u", node, clock, hits, priority or null]  a use
["l", node, change]                         a lock
["t", node, retention]                      a retention level
["h", node, has_state]                      a state of recurrent layers
["c"]                                       everything is gone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from radixrt.mem_cache.cache_replica import CacheReplica
from radixrt.mem_cache.granules import seed_of
from radixrt.messages.cache_events import (
    CacheCleared,
    CacheEvent,
    NodeEvicted,
    NodeInserted,
    NodeSplit,
    PathLocked,
    PathUsed,
    RequestViews,
    RetentionSet,
    RootOpened,
    StateSet,
)
from radixrt.messages.fleet import RouterQueue
from radixrt.server.ui.misses import Causes

_encode = msgspec.json.Encoder().encode
DEFAULT_SEED = seed_of("")


def line(kind: str, **members: Any) -> bytes:
    """One line of the feed: an object with the member "t", its kind."""
    return _encode({"t": kind, **members}) + b"\n"


def root_name(seed: bytes) -> str:
    """Name of a namespace: "" for the default one, else the first digits of its seed; the salt is not disclosed."""
    return "" if seed == DEFAULT_SEED else seed.hex()[:6]


def short_event(event: CacheEvent) -> Sequence[Any] | None:
    """The event as in the module's docstring; None for one of a request."""
    match event:
        case PathUsed():
            return ("u", event.node, event.clock, event.hits, event.priority)
        case PathLocked():
            return ("l", event.node, event.change)
        case NodeInserted():
            return (
                "i", event.node, event.parent, event.tokens, event.created, event.last_access, event.hits,
                event.priority, event.retention, event.locks, int(event.has_state),
            )  # fmt: skip
        case NodeSplit():
            return ("s", event.node, event.prefix, event.tokens)
        case NodeEvicted():
            return ("e", event.node)
        case RetentionSet():
            return ("t", event.node, event.retention)
        case StateSet():
            return ("h", event.node, int(event.has_state))
        case RootOpened():
            return ("r", event.node, root_name(event.seed), event.locks)
        case CacheCleared():
            return ("c",)
    return None


def snapshot_line(replica: CacheReplica, ticks: Sequence[tuple[int, float]]) -> bytes:
    """The whole tree: `nodes` has ten numbers for each node, parents before children: node, parent, tokens, created,
    last_access, hits, priority, retention, locks, has_state.

    Args:
        ticks: (tick of the cache's clock, time in seconds since 1970) at some times, ascending.
    """
    nodes: list[int] = []
    stack = [child for root in replica.roots.values() for child in root.children.values()]
    while stack:
        node = stack.pop()
        assert node.parent is not None  # it is no root
        nodes += (
            node.number, node.parent.number, node.tokens, node.created, node.last_access, node.hits, node.priority,
            node.retention, node.locks, int(node.has_state),
        )  # fmt: skip
        stack.extend(node.children.values())
    roots = [[root.number, root_name(root.seed), root.locks] for root in replica.roots.values()]
    return line(
        "snapshot", clock=replica.clock, header=msgspec.to_builtins(_header(replica)), ticks=list(ticks), roots=roots,
        nodes=nodes,
    )  # fmt: skip


def _header(replica: CacheReplica) -> dict[str, Any]:
    header = replica.header
    if header is None:
        return {}
    return {name: getattr(header, name) for name in header.__struct_fields__}


def requests_line(message: RequestViews, causes: Mapping[str, Causes]) -> bytes:
    """The requests: an object for each, with the fields of `RequestView`, its namespace by name. `queue` of a waiting
    one has the fields of `QueueView`, but for the hashes, and of `Causes`, once these are known.

    Args:
        causes: why tokens of waiting requests are not in the cache, by id.
    """
    rows = []
    for view in message.views:
        row = {name: getattr(view, name) for name in view.__struct_fields__ if name not in ("seed", "queue")}
        row["namespace"] = root_name(view.seed)
        if view.queue is not None:
            queue = {name: getattr(view.queue, name) for name in view.queue.__struct_fields__ if name != "hashes"}
            found = causes.get(view.rid)
            row["queue"] = queue if found is None else queue | found._asdict()
        rows.append(row)
    holds = [[hold.node, hold.program, hold.retention] for hold in message.holds]
    return line("requests", running=message.running, waiting=message.waiting, rows=rows, holds=holds)


def router_line(message: RouterQueue) -> bytes:
    """The requests that the router holds: an object for each, with the fields of `HeldRequest`."""
    rows = [{name: getattr(each, name) for name in each.__struct_fields__} for each in message.requests]
    return line("router", waiting=message.waiting, rows=rows)
