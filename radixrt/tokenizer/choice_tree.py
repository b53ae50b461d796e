"""`ChoiceTree`: the tokens of several choices after one prefix as a tree, and the rows that score all of its edges.

Choices that begin with the same tokens share them. Only what other tokens follow has to be computed: a choice's last
token never, so that choices of one token each are one row with nothing behind the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.messages.scheduler import ScoreRow
from radixrt.messages.wire import pack_i32


class _Node:
    """The tokens of some choices up to here; `edge` numbers the edge that leads here, in the order of the rows."""

    __slots__ = ("children", "edge")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.edge = -1


class ChoiceTree:
    """See the module's docstring.

    Args:
        prefix_len: tokens before the choices, at least one.
        choices: token ids of each, at least one.
    """

    def __init__(self, prefix_len: int, choices: Sequence[Sequence[int]]) -> None:
        self._prefix_len = prefix_len
        self._root = _Node()
        self._paths: list[list[_Node]] = []
        for ids in choices:
            node, path = self._root, []
            for token in ids:
                node = node.children.setdefault(token, _Node())
                path.append(node)
            self._paths.append(path)
        self.num_edges = 0

    def rows(self, prefix: int) -> list[ScoreRow]:
        """One row for each token sequence that something follows and that no other such sequence goes on; each position
        is scored by the first row that reaches it. `prefix` is the index that the rows name.
        """
        rows = []
        pending: list[tuple[_Node, list[int]]] = [(self._root, [])]
        while pending:
            node, path = pending.pop()
            positions: list[int] = []
            targets: list[int] = []
            while True:
                for token, child in node.children.items():
                    child.edge = self.num_edges
                    self.num_edges += 1
                    positions.append(self._prefix_len - 1 + len(path))
                    targets.append(token)
                inner = [(token, child) for token, child in node.children.items() if child.children]
                if not inner:
                    break
                pending += [(child, [*path, token]) for token, child in inner[:0:-1]]
                token, node = inner[0]
                path.append(token)
            rows.append(ScoreRow(prefix, pack_i32(path), pack_i32(positions), pack_i32(targets)))
        return rows

    def edges(self) -> list[list[int]]:
        """For each choice, the edges of its tokens, as `rows` numbered them."""
        return [[node.edge for node in path] for path in self._paths]
