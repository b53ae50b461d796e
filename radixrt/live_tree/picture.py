"""The picture of a tree for a terminal: a head of numbers, then a line for each of the heaviest nodes."""

from __future__ import annotations

from collections.abc import Iterator

from radixrt.live_tree.feed import FeedNode, FeedTree
from radixrt.mem_cache.tree_node import RETAIN_DONE, RETAIN_EXTENDED, RETAIN_LEASED, retention_kind

BAR = 28
KEPT = {RETAIN_DONE: "done", RETAIN_EXTENDED: "kept", RETAIN_LEASED: "fork"}
"""Words for retention levels that are not normal."""
COLUMNS = f"{'tokens':>8} {'below':>9} {'hits':>6} {'held':>5} {'used':>8}"


def picture(tree: FeedTree, width: int, height: int) -> list[str]:
    """Lines of at most `width` characters, at most `height` of them.

    Below a node that does not fit with all its children, the heaviest are shown, and the others are one line.
    """
    lines = [*_head(tree, width), "", COLUMNS]
    room = max(height - len(lines), 1)
    total = max(tree.num_tokens, 1)
    rows = _rows(tree, room)
    for depth, node, many in rows:
        if node is None:
            lines.append(f"{'':>41}{'  ' * depth}… {many:,} more")
            continue
        bar = "█" * max(round(BAR * node.below / total), 1 if node.below else 0)
        name = f"cache_salt {node.name}" if node.name else "" if node.tokens else "default namespace"
        kept = KEPT.get(retention_kind(node.retention), "")
        end = " ".join(word for word in (bar, name, kept) if word)
        lines.append(
            f"{node.tokens:>8,} {node.below:>9,} {node.hits:>6,} {node.locks or '':>5} {_ago(tree, node):>8}  "
            f"{'  ' * depth}{end}"
        )
    if not tree.nodes.keys() - tree.roots.keys():
        lines.append("Nothing is cached yet." if tree.header.get("enabled", True) else "The prefix cache is off.")
    return [line[:width].rstrip() for line in lines[:height]]


def _head(tree: FeedTree, width: int) -> Iterator[str]:
    hello, sample, bounds = tree.hello, tree.sample, tree.bounds
    number = len(tree.nodes) - len(tree.roots)
    model = "".join(c if c.isprintable() else " " for c in str(hello.get("model", "")))
    if hello.get("replica") is not None:
        model += f", replica {hello['replica']}"
    parts = [model, f"{number:,} nodes, {tree.num_tokens:,} tokens cached"]
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


def _rows(tree: FeedTree, room: int) -> list[tuple[int, FeedNode | None, int]]:
    """(depth, node, 0) for the nodes to show, parents before children, and (depth, None, number) for what is left out.

    Nodes are chosen by their tokens: the heaviest whose parents are shown, as many as there is room for.
    """
    tops = list(tree.roots.values())
    if len(tops) == 1 and not tops[0].name:
        tops = list(tops[0].children)  # the only namespace needs no line
    shown: set[FeedNode] = set()
    edge = sorted(tops, key=_weight)
    while edge and len(shown) < max(room - 3, 1):
        node = edge.pop()
        shown.add(node)
        edge.extend(node.children)
        edge.sort(key=_weight)
        del edge[: max(len(edge) - room, 0)]
    rows: list[tuple[int, FeedNode | None, int]] = []

    def add(nodes: list[FeedNode], depth: int) -> None:
        for node in sorted((node for node in nodes if node in shown), key=_weight, reverse=True):
            rows.append((depth, node, 0))
            add(list(node.children), depth + 1)
        hidden = sum(node not in shown for node in nodes)
        if hidden and any(node in shown for node in nodes):
            rows.append((depth, None, hidden))

    add(tops, 0)
    return rows


def _weight(node: FeedNode) -> tuple[int, int]:
    return node.below, node.last


def _ago(tree: FeedTree, node: FeedNode) -> str:
    if not node.tokens:
        return ""
    seconds = tree.seconds_since(node)
    if seconds is None:
        return "long"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
