"""Picture of a tree for a terminal: numbers of the server, then a line for each of the heaviest nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter

from radixrt.live_tree.feed import LiveTree
from radixrt.mem_cache.replica import CacheReplica, ReplicaNode
from radixrt.mem_cache.tree_node import RETAIN_DONE, RETAIN_EXTENDED, RETAIN_LEASED, retention_kind

BAR = 28
KEPT = {RETAIN_DONE: "done", RETAIN_EXTENDED: "kept", RETAIN_LEASED: "fork"}
"""Words for retention levels that are not normal."""
COLUMNS = f"{'tokens':>8} {'below':>9} {'hits':>6} {'held':>5} {'used':>8}"


def picture(tree: LiveTree, width: int, height: int) -> list[str]:
    """Return at most `height` lines of at most `width` characters.

    Where a node's children do not all fit, the heaviest are shown, and one line stands for the others.
    """
    replica = tree.replica
    shape = _Shape(replica)
    lines = [*_head(tree, width), "", COLUMNS]
    total = max(replica.num_tokens, 1)
    for depth, node, hidden in shape.rows(max(height - len(lines), 1)):
        if node is None:
            lines.append(f"{'':>41}{'  ' * depth}… {hidden:,} more")
            continue
        below = shape.below[node.number]
        bar = "█" * max(round(BAR * below / total), 1 if below else 0)
        name = _root_name(node) if node.parent is None else KEPT.get(retention_kind(node.retention), "")
        end = " ".join(word for word in (bar, name) if word)
        lines.append(
            f"{node.tokens:>8,} {below:>9,} {node.hits:>6,} {node.locks or '':>5} {_ago(tree, node):>8}  "
            f"{'  ' * depth}{end}"
        )
    if not replica.num_tokens:
        is_on = replica.header is None or replica.header.enabled
        lines.append("Nothing is cached yet." if is_on else "The prefix cache is off.")
    return [line[:width].rstrip() for line in lines[:height]]


def _head(tree: LiveTree, width: int) -> Iterator[str]:
    hello, sample, bounds, replica = tree.hello, tree.sample, tree.bounds, tree.replica
    number = sum(node.parent is not None for node in replica.nodes.values())
    model = "".join(c if c.isprintable() else " " for c in str(hello.get("model", "")))
    if hello.get("replica") is not None:
        model += f", replica {hello['replica']}"
    parts = [model, f"{number:,} nodes, {replica.num_tokens:,} tokens cached"]
    if sample is not None:
        parts.append(f"{sample[1]} running, {sample[2]} waiting")
    if bounds.get("prompt"):
        share, best = (100 * bounds[name] / bounds["prompt"] for name in ("hits", "belady"))
        parts.append(f"{share:.1f} % reused, optimum {best:.1f} %")
    yield " · ".join(parts)
    if sample is not None:
        free, evictable, protected, private = sample[7:11]
        total = max(free + evictable + protected + private, 1)
        room = max(min(width - 50, 60), 10)
        held, cached = round(room * (protected + private) / total), round(room * evictable / total)
        bar = "█" * held + "▒" * cached + "·" * max(room - held - cached, 0)
        shares = 100 * (protected + private) / total, 100 * evictable / total
        yield f"{bar} {shares[0]:.0f} % held, {shares[1]:.0f} % cached, rest free"
    if tree.tiers:
        yield " · ".join(
            f"{tier}: {used:,} of {places:,} tokens, {fetched:,} fetched" for tier, used, places, fetched in tree.tiers
        )


class _Shape:
    """The tree from above.

    Attributes:
        children: children of nodes, by the node's number; the roots by None.
        below: tokens of a node and of its descendants, by the node's number.
    """

    def __init__(self, replica: CacheReplica) -> None:
        self.children: dict[int | None, list[ReplicaNode]] = defaultdict(list)
        self.below = {node.number: node.tokens for node in replica.nodes.values()}
        # Children end behind their parent, so that a node's sum is complete before it counts for the parent.
        for node in sorted(replica.nodes.values(), key=attrgetter("end"), reverse=True):
            above = None if node.parent is None else node.parent.number
            self.children[above].append(node)
            if above is not None:
                self.below[above] += self.below[node.number]

    def rows(self, room: int) -> list[tuple[int, ReplicaNode | None, int]]:
        """Return (depth, node, 0) for each node to show, parents before children, and (depth, None, number) for nodes
        that are left out.

        As many nodes as there is room for are shown: the heaviest among the children of those that are shown already.
        """
        tops = self.children[None]
        if len(tops) == 1 and not tops[0].hashes:
            tops = self.children[tops[0].number]  # the default namespace needs no line if it is the only one
        shown: set[ReplicaNode] = set()
        edge = sorted(tops, key=self._weight)
        while edge and len(shown) < max(room - 3, 1):
            node = edge.pop()
            shown.add(node)
            edge.extend(self.children[node.number])
            edge.sort(key=self._weight)
            del edge[: max(len(edge) - room, 0)]
        rows: list[tuple[int, ReplicaNode | None, int]] = []

        def add(nodes: list[ReplicaNode], depth: int) -> None:
            visible = sorted((node for node in nodes if node in shown), key=self._weight, reverse=True)
            for node in visible:
                rows.append((depth, node, 0))
                add(self.children[node.number], depth + 1)
            if visible and len(visible) < len(nodes):
                rows.append((depth, None, len(nodes) - len(visible)))

        add(tops, 0)
        return rows

    def _weight(self, node: ReplicaNode) -> tuple[int, int]:
        return self.below[node.number], node.last_access


def _root_name(root: ReplicaNode) -> str:
    return f"cache_salt {root.hashes.hex()}" if root.hashes else "default namespace"


def _ago(tree: LiveTree, node: ReplicaNode) -> str:
    if not node.tokens:
        return ""
    seconds = tree.seconds_since(node)
    if seconds is None:
        return "long"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
