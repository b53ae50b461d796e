"""`FeedTree`: copy of a server's radix tree and numbers, kept by the lines of /ui/events (radixrt.server.ui.lines)."""

from __future__ import annotations

from collections import deque
from typing import Any


class FeedNode:
    """Node of the tree.

    Attributes:
        tokens, below: tokens of its run, and of the nodes below it as well.
        last: tick of the cache's clock at its last use.
        retention: level by which programs keep it; see `radixrt.mem_cache.tree_node`.
        name: of a root: the namespace, "" for the default one.
    """

    __slots__ = ("below", "children", "hits", "last", "locks", "name", "parent", "retention", "tokens")

    def __init__(self, parent: FeedNode | None, tokens: int = 0, name: str = "") -> None:
        self.parent = parent
        self.tokens = self.below = tokens
        self.children: set[FeedNode] = set()
        self.last = self.hits = self.locks = 0
        self.retention = 1
        self.name = name


class FeedTree:
    """See the module's docstring.

    Attributes:
        hello, bounds, sample: the latest such lines; `sample` is a row of `radixrt.server.ui.samples.COLUMNS`.
        nodes: by number, roots too.
        roots: roots by number.
        complete: a snapshot has come.
        replica_state: state of the replica whose tree it is; "" without replicas.
    """

    def __init__(self) -> None:
        self.hello: dict[str, Any] = {}
        self.bounds: dict[str, Any] = {}
        self.sample: list[Any] | None = None
        self.header: dict[str, Any] = {}
        self.nodes: dict[int, FeedNode] = {}
        self.roots: dict[int, FeedNode] = {}
        self.complete = False
        self.replica_state = ""
        self._clock = 0
        self._ticks: deque[tuple[int, float]] = deque(maxlen=3600)

    def take(self, line: dict[str, Any]) -> None:
        """Apply one line of the feed; lines of other kinds change nothing."""
        kind = line["t"]
        if kind == "hello":
            self.hello = line
        elif kind == "bounds":
            self.bounds = line
        elif kind == "samples" and line["rows"]:
            self.sample = line["rows"][-1]
        elif kind == "fleet":
            states = {row["replica"]: row["state"] for row in line["rows"]}
            self.replica_state = states.get(self.hello["replica"], "")
        elif kind == "snapshot":
            self._load(line)
        elif kind == "events":
            for event in line["events"]:
                self._event(*event)
            self._tick(line["clock"], line["at"])

    @property
    def num_tokens(self) -> int:
        return sum(root.below for root in self.roots.values())

    def seconds_since(self, node: FeedNode) -> float | None:
        """Seconds from the node's last use to the last event; None if it was used before the feed began."""
        if not self._ticks or node.last < self._ticks[0][0]:
            return None
        at = next((at for tick, at in self._ticks if tick >= node.last), self._ticks[-1][1])
        return max(self._ticks[-1][1] - at, 0.0)

    def _tick(self, clock: int, at: float) -> None:
        self._clock = clock
        if not self._ticks or at - self._ticks[-1][1] >= 1.0:
            self._ticks.append((clock, at))

    def _load(self, line: dict[str, Any]) -> None:
        self._clear()
        self.header, self.complete = line["header"], True
        self._ticks = deque(((tick, at) for tick, at in line["ticks"]), maxlen=3600)
        self._clock = line["clock"]
        for root in line["roots"]:
            self._event("r", *root)
        columns = line["nodes"]
        for at in range(0, len(columns), 10):
            self._event("i", *columns[at : at + 10])

    def _clear(self) -> None:
        self.nodes.clear()
        self.roots.clear()

    def _event(self, kind: str, *values: Any) -> None:
        if kind == "c":
            self._clear()
        elif kind == "r":
            root = self.nodes[values[0]] = self.roots[values[0]] = FeedNode(None, name=values[1])
            root.locks = values[2]
        elif kind == "i":
            self._insert(*values)
        elif kind == "s":
            self._split(*values)
        elif kind == "e":
            self._evict(values[0])
        elif kind == "t":
            self.nodes[values[0]].retention = values[1]
        elif kind in "ul":
            node: FeedNode | None = self.nodes[values[0]]
            while node is not None:
                if kind == "l":
                    node.locks += values[1]
                elif node.parent is not None:
                    node.last = values[1]
                    node.hits += values[2]
                    node.retention = max(node.retention, 1)  # what a program was done with is used again
                node = node.parent

    def _insert(
        self, number: int, parent: int, tokens: int, created: int, last: int, hits: int, priority: int, retention: int,
        locks: int, has_state: int,
    ) -> None:  # fmt: skip
        above = self.nodes[parent]
        node = self.nodes[number] = FeedNode(above, tokens)
        node.last, node.hits, node.retention, node.locks = last, hits, retention, locks
        above.children.add(node)
        _add(above, tokens)

    def _split(self, number: int, prefix_number: int, tokens: int) -> None:
        node = self.nodes[number]
        above = node.parent
        assert above is not None  # a root is never split
        prefix = self.nodes[prefix_number] = FeedNode(above, tokens)
        prefix.below, prefix.last, prefix.hits, prefix.locks = node.below, node.last, node.hits, node.locks
        above.children.remove(node)
        above.children.add(prefix)
        prefix.children.add(node)
        node.parent = prefix
        node.tokens -= tokens
        node.below -= tokens

    def _evict(self, number: int) -> None:
        node = self.nodes.pop(number)
        self.roots.pop(number, None)
        if node.parent is not None:
            node.parent.children.remove(node)
            _add(node.parent, -node.tokens)


def _add(node: FeedNode | None, tokens: int) -> None:
    """Count tokens for a node and all above it."""
    while node is not None:
        node.below += tokens
        node = node.parent
