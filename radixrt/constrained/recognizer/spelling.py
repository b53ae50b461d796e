"""Shortest texts: what a rule, an item or a regular language comes to at its shortest, spelled once and kept."""

from __future__ import annotations

from radixrt.constrained.productions.expressions import Special, checked
from radixrt.constrained.recognizer.pushdown import CALL, COUNT, END, FORK, REGULAR, SPECIAL, TEXT, Node
from radixrt.constrained.regex import Regex
from radixrt.errors import InvariantError

Pieces = tuple[str | Special, ...]


class Spelling:
    """The shortest texts of one program."""

    def __init__(self) -> None:
        self._shortest: dict[Regex, str] = {}
        self._texts: dict[Node, Pieces] = {}

    def forget(self) -> None:
        """Drop the texts of languages, which are as many as there were states."""
        self._shortest.clear()

    def shortest_text(self, regex: Regex) -> str:
        """A shortest text of a language that is not empty."""
        text = self._shortest.get(regex)
        if text is None:
            found = checked(regex.shortest)
            if found is None:
                raise InvariantError("an empty language among the configurations")
            text = self._shortest[regex] = found
        return text

    def text_of(self, body: Node) -> Pieces:
        """The shortest text of a rule or item, given its first node."""
        unfinished = [body]
        while unfinished:
            missing = [] if unfinished[-1] in self._texts else self._called(unfinished[-1])
            if missing:
                unfinished.extend(missing)
                continue
            node = unfinished.pop()
            if node not in self._texts:
                pieces: list[str | Special] = []
                self.spell(node, pieces)
                self._texts[node] = joined(pieces)
        return self._texts[body]

    def _called(self, node: Node) -> list[Node]:
        """Rules and items on the shortest way from the node whose own texts are not known yet."""
        missing = []
        while node.kind != END:
            if node.kind == CALL and node.next.kind == END:
                node = node.body
                continue
            if node.kind in (CALL, COUNT) and node.distance > node.next.distance and node.body not in self._texts:
                missing.append(node.body)
            node = node.best if node.kind == FORK else node.next
        return missing

    def spell(self, node: Node, pieces: list[str | Special]) -> None:
        """Append the shortest text from the node to the end of its rule."""
        while node.kind != END:
            if node.kind == CALL and node.next.kind == END:
                if node.skips:
                    return
                node = node.body
                continue
            if node.kind == TEXT:
                pieces.append(node.text)
            elif node.kind == REGULAR:
                pieces.append(self.shortest_text(node.regex))
            elif node.kind == SPECIAL:
                pieces.append(Special(node.text))
            elif node.kind == CALL:
                if not node.skips:
                    pieces.extend(self._texts.get(node.body) or self.text_of(node.body))
            elif node.kind == COUNT and node.low:
                pieces.extend((self._texts.get(node.body) or self.text_of(node.body)) * node.low)
            node = node.best if node.kind == FORK else node.next


def joined(pieces: list[str | Special]) -> Pieces:
    """The pieces with neighboring texts joined and empty ones left out."""
    found: list[str | Special] = []
    run: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            run.append(piece)
            continue
        if any(run):
            found.append("".join(run))
        run = []
        found.append(piece)
    if any(run):
        found.append("".join(run))
    return tuple(found)
