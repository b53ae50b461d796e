"""References to groups, resolved: a group that matches few texts is written once with each of them.

`(a|b)-\\1` becomes `a-a|b-b`. No regular language has the texts of a reference to a group that matches infinitely many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from radixrt.constrained.regex.algebra import literal, repeat
from radixrt.constrained.regex.assertions import (
    Behind,
    Choice,
    Group,
    Look,
    Loop,
    Reference,
    RegexError,
    Sequence,
    Tree,
    children,
    choice,
    sequence,
)
from radixrt.constrained.regex.nodes import Regex, RegexTooComplex
from radixrt.constrained.regex.search import enumerate_strings

MAX_TEXTS: Final = 1_000
"""Maximum number of texts of a group that is referred to."""
MAX_WRITTEN: Final = 2_000
"""Maximum number of times that parts of a pattern are written, of all groups together."""

Texts: TypeAlias = Mapping[int, str]
"""The texts of groups, by their numbers."""


def without_references(tree: Tree) -> Tree:
    """Return a pattern with the same texts, without groups and references.

    Raises:
        RegexError: a group matches too many texts, or may not have matched where it is referred to: then programs
            differ in what the reference matches.
    """
    return _Writer().written(tree)


class _Writer:
    def __init__(self) -> None:
        self._left = MAX_WRITTEN

    def written(self, tree: Tree) -> Tree:
        """Return a tree whose references are to groups within it."""
        return choice([one for _, one in self._variants(tree, frozenset())])

    def _variants(self, tree: Tree, wanted: frozenset[int]) -> list[tuple[Texts, Tree]]:
        """Return trees which together are the tree, each with the texts of the wanted groups in it."""
        if isinstance(tree, Reference):
            raise RegexError(f"the group {tree.number} may not have matched where it is referred to", tree.position)
        if isinstance(tree, Group):
            return list(self._texts(tree, wanted)) if tree.number in wanted else self._variants(tree.item, wanted)
        if isinstance(tree, Sequence):
            return self._sequences(list(tree.parts), wanted)
        if isinstance(tree, Loop):
            last = self._variants(tree.item, wanted & _matched(tree)) if wanted & _matched(tree) else []
            item = self.written(tree.item)
            most = None if tree.high is None else tree.high - bool(last)
            low = max(0, tree.low - bool(last))
            loop = repeat(item, low, most) if isinstance(item, Regex) else Loop(item, low, most, tree.position)
            # The group has the text of the last round.
            return [(texts, sequence([loop, one])) for texts, one in last] or [({}, loop)]
        if isinstance(tree, Choice):
            return [({}, choice([self.written(option) for option in tree.options]))]
        if isinstance(tree, Look | Behind):
            if isinstance(tree, Behind) and _referred(tree.item):
                raise RegexError("a lookbehind with a reference to a group in it is not supported", tree.position)
            return [({}, replace(tree, item=self.written(tree.item)))]
        return [({}, tree)]

    def _texts(self, group: Group, wanted: frozenset[int]) -> Iterator[tuple[Texts, Tree]]:
        for texts, one in self._variants(group.item, wanted):
            try:
                found = enumerate_strings(one, MAX_TEXTS) if isinstance(one, Regex) else None
            except RegexTooComplex:
                found = None
            if found is None:
                few = f"at most {MAX_TEXTS:,} texts, and have no anchors or lookarounds"
                reason = f"a group that is referred to must match {few}: no regular language has other references"
                raise RegexError(reason, group.position)
            for text in found:
                self._left -= 1
                if self._left < 0:
                    reason = f"the groups that are referred to stand for more than {MAX_WRITTEN:,} texts together"
                    raise RegexError(reason, group.position)
                yield {**texts, group.number: text}, literal(text)

    def _sequences(self, parts: list[Tree], wanted: frozenset[int]) -> list[tuple[Texts, Tree]]:
        if not parts:
            return [({}, sequence([]))]
        first, *rest = parts
        here = _matched(first) & (wanted | frozenset().union(*map(_referred, rest)))
        found: list[tuple[Texts, Tree]] = []
        for texts, one in self._variants(first, here):
            others = [_with_texts(part, texts) for part in rest] if texts else rest
            found += [({**texts, **more}, sequence([one, end])) for more, end in self._sequences(others, wanted)]
        return found


def _matched(tree: Tree) -> frozenset[int]:
    """Return the groups that have matched wherever the tree has."""
    if isinstance(tree, Group):
        return _matched(tree.item) | {tree.number}
    if isinstance(tree, Sequence):
        return frozenset().union(*map(_matched, tree.parts))
    # A round that matches nothing may leave a group without a text.
    if isinstance(tree, Loop) and tree.low and tree.high != 0 and _takes_something(tree.item):
        return _matched(tree.item)
    return frozenset()


def _takes_something(tree: Tree) -> bool:
    """Return False if the tree may match the empty text."""
    if isinstance(tree, Regex):
        return not tree.nullable
    if isinstance(tree, Loop) and not tree.low:
        return False
    parts = [_takes_something(part) for part in children(tree)]
    is_plain = isinstance(tree, Group | Sequence | Choice | Loop)
    return is_plain and (all(parts) if isinstance(tree, Choice) else any(parts))


def _referred(tree: Tree) -> frozenset[int]:
    """Return the groups that references in the tree refer to."""
    if isinstance(tree, Reference):
        return frozenset((tree.number,))
    return frozenset().union(*map(_referred, children(tree)))


def _with_texts(tree: Tree, texts: Texts) -> Tree:
    """Return the tree with texts in place of the references to their groups."""
    if not _referred(tree):
        return tree
    if isinstance(tree, Reference):
        return tree.spelled(texts[tree.number]) if tree.number in texts else tree
    parts = [_with_texts(part, texts) for part in children(tree)]
    if isinstance(tree, Sequence):
        return sequence(parts)
    if isinstance(tree, Choice):
        return choice(parts)
    (item,) = parts
    if isinstance(tree, Loop):
        return repeat(item, tree.low, tree.high) if isinstance(item, Regex) else replace(tree, item=item)
    assert isinstance(tree, Group | Look | Behind)
    return replace(tree, item=item)
