"""A pattern that was read: a tree in which only assertions are still to be resolved.

What has no assertion in it is a `Regex` already; the shapes around an assertion (`^`, `$`, a lookahead) are kept as
they stand until `assertions` resolves them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from radixrt.constrained.regex.algebra import alternate, concat
from radixrt.constrained.regex.base import Regex


class RegexError(ValueError):
    """The pattern cannot be read, or asks for what is no regular language here.

    Attributes:
        message: what is wrong and what to do.
        position: index of the character in the pattern where it is wrong.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position} of the pattern)")
        self.message = message
        self.position = position


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """`^`: the beginning of the text."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """`$`: the end of the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A lookahead: what follows begins (or, negative, does not begin) with the item."""

    item: Tree
    negative: bool
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    item: Tree
    low: int
    high: int | None
    position: int


Tree: TypeAlias = "Regex | Start | End | Look | Sequence | Choice | Loop"


def sequence(parts: list[Tree]) -> Tree:
    """The parts one after the other; neighbours without assertions become one Regex."""
    joined: list[Tree] = []
    plain: list[Regex] = []
    for part in parts:
        if isinstance(part, Regex):
            plain.append(part)
            continue
        if plain:
            joined.append(concat(*plain))
            plain = []
        joined.append(part)
    if plain or not joined:
        joined.append(concat(*plain))
    return joined[0] if len(joined) == 1 else Sequence(tuple(joined))


def choice(options: list[Tree]) -> Tree:
    """Any of the options; those without assertions become one Regex."""
    plain = [option for option in options if isinstance(option, Regex)]
    others: list[Tree] = [option for option in options if not isinstance(option, Regex)]
    if not others:
        return alternate(*plain)
    if plain:
        others.append(alternate(*plain))
    return others[0] if len(others) == 1 else Choice(tuple(others))


def children(tree: Tree) -> tuple[Tree, ...]:
    """The parts of a tree."""
    if isinstance(tree, Sequence):
        return tree.parts
    if isinstance(tree, Choice):
        return tree.options
    return (tree.item,) if isinstance(tree, Loop | Look) else ()


def inside_out(tree: Tree) -> list[Tree]:
    """The tree and all trees inside it that are not a Regex, parts before wholes."""
    found: list[Tree] = []
    pending = [tree]
    while pending:
        part = pending.pop()
        if not isinstance(part, Regex):
            found.append(part)
            pending.extend(children(part))
    return found[::-1]
