"""Best hit rate that a cache of a given size could have on a trace, if it knew the trace in advance.

All prompts and outputs of a trace form one tree of tokens. The requests are processed in the order in which they were
admitted, one after another; the cache is cut down to its size by dropping the tokens whose next use is farthest in the
future (Belady, IBM Systems Journal 5(2), 1966). A token is used next no earlier than those before it on its path, so
the ends of paths are dropped first and the rest remains a tree.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Tokens = Sequence[int]
NEVER = 1 << 60


@dataclass(frozen=True)
class Traced:
    """One request of a trace."""

    prompt: Tokens
    output: Tokens


class _Node:
    """A run of tokens that every request uses whole or not at all.

    Attributes:
        uses: numbers of the requests whose prompts hold it, ascending.
        kept: how many of its tokens are cached, from the first on.
    """

    __slots__ = ("children", "depth", "kept", "tokens", "uses")

    def __init__(self, tokens: tuple[int, ...], depth: int) -> None:
        self.tokens = tokens
        self.depth = depth
        self.children: dict[int, _Node] = {}
        self.uses: list[int] = []
        self.kept = 0


class _Tree:
    def __init__(self) -> None:
        self.root = _Node((), 0)

    def path(self, tokens: Tokens) -> list[_Node]:
        """Add a path, and return its nodes."""
        nodes: list[_Node] = []
        node, at = self.root, 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                child = node.children[tokens[at]] = _Node(tuple(tokens[at:]), at)
            same = 0
            while same < len(child.tokens) and at + same < len(tokens) and child.tokens[same] == tokens[at + same]:
                same += 1
            if same < len(child.tokens):
                self._split(child, same)
            nodes.append(child)
            node, at = child, at + same
        return nodes

    @staticmethod
    def _split(node: _Node, at: int) -> None:
        below = _Node(node.tokens[at:], node.depth + at)
        below.children = node.children
        node.tokens, node.children = node.tokens[:at], {below.tokens[0]: below}


def best_hit_rate(trace: Sequence[Traced], cache_tokens: int) -> tuple[float, int]:
    """Hit rate over all prompt tokens, and the number of distinct tokens of the trace.

    The last token of a prompt is computed in any case, and counts as missed.
    """
    tree = _Tree()
    for request in trace:
        tree.path(request.prompt)
        tree.path([*request.prompt, *request.output])
    for number, request in enumerate(trace):
        for node in tree.path(request.prompt):
            node.uses.append(number)
    hits = total = held = 0
    heap: list[tuple[int, int, int, _Node]] = []
    for number, request in enumerate(trace):
        total += len(request.prompt)
        matched = 0
        for node in tree.path(request.prompt):
            matched += node.kept
            if node.kept < len(node.tokens):
                break
        hits += min(matched, len(request.prompt) - 1)
        for node in tree.path([*request.prompt, *request.output]):
            held += len(node.tokens) - node.kept
            node.kept = len(node.tokens)
            heapq.heappush(heap, (-_next_use(node, number), -node.depth, id(node), node))
        held = _cut(heap, held, cache_tokens, number)
    size = sum(len(node.tokens) for node in _every(tree.root))
    return hits / max(1, total), size


def _next_use(node: _Node, now: int) -> int:
    place = bisect_right(node.uses, now)
    return node.uses[place] if place < len(node.uses) else NEVER


def _cut(heap: list[tuple[int, int, int, _Node]], held: int, limit: int, now: int) -> int:
    """Drop tokens until at most `limit` are held; how many then are."""
    while held > limit and heap:
        use, _, _, node = heapq.heappop(heap)
        if not node.kept or -use != _next_use(node, now):
            continue  # dropped, or used since: a later entry stands for it
        dropped = min(node.kept, held - limit)
        node.kept -= dropped
        held -= dropped
        if node.kept:
            heapq.heappush(heap, (use, -node.depth, id(node), node))
    return held


def _every(node: _Node) -> Iterator[_Node]:
    pending = [node]
    while pending:
        one = pending.pop()
        yield one
        pending.extend(one.children.values())
