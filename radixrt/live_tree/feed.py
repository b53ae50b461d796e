"""`LiveTree`: copy of a server's radix tree and numbers, kept by the lines of /ui/events (radixrt.server.ui.lines)."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from radixrt.mem_cache.replica import CacheReplica, ReplicaNode
from radixrt.messages.cache_events import CacheEvent, CacheEvents, SnapshotHeader


class LiveTree:
    """See the module's docstring.

    Attributes:
        hello, bounds, sample: latest line of each kind; `sample` is a row of `radixrt.server.ui.samples.COLUMNS`.
        tiers: name, tokens kept, places and fetched prompt tokens of each tier.
        replica: copy of the tree.
        replica_state: state of the server's replica whose tree is shown; "" without replicas.
    """

    def __init__(self) -> None:
        self.hello: dict[str, Any] = {}
        self.bounds: dict[str, Any] = {}
        self.sample: list[Any] | None = None
        self.tiers: list[tuple[str, int, int, int]] = []
        self.replica = CacheReplica()
        self.replica_state = ""
        self._lines = 0
        self._ticks: deque[tuple[int, float]] = deque(maxlen=3600)

    def take(self, line: dict[str, Any]) -> None:
        """Apply one line of the feed; lines of other kinds change nothing."""
        match line["t"]:
            case "hello":
                self.hello = line
            case "bounds":
                self.bounds = line
            case "samples" if line["rows"]:
                self.sample = line["rows"][-1]
            case "tiers":
                self.tiers = [(tier, used, places, fetched) for tier, used, places, fetched in line["rows"]]
            case "fleet":
                states = {row["replica"]: row["state"] for row in line["rows"]}
                self.replica_state = states.get(self.hello["replica"], "")
            case "snapshot":
                self._ticks = deque(((tick, at) for tick, at in line["ticks"]), maxlen=3600)
                self._apply(line, SnapshotHeader(**line["header"]))
            case "events":
                self._apply(line, None)
                if not self._ticks or line["at"] - self._ticks[-1][1] >= 1.0:
                    self._ticks.append((line["clock"], line["at"]))

    def seconds_since(self, node: ReplicaNode) -> float | None:
        """Seconds from the node's last use to the last event; None if it was used before the feed began."""
        if not self._ticks or node.last_access < self._ticks[0][0]:
            return None
        at = next((at for tick, at in self._ticks if tick >= node.last_access), self._ticks[-1][1])
        return max(self._ticks[-1][1] - at, 0.0)

    def _apply(self, line: dict[str, Any], header: SnapshotHeader | None) -> None:
        self._lines += 1
        events = msgspec.convert(line["events"], list[CacheEvent])
        self.replica.apply(CacheEvents(self._lines, line["clock"], True, events, header))
