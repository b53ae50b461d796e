"""Alternatives that are plainly part of another one, which need not be kept beside it.

Only what the shape of two expressions shows is found here; that is what keeps derivatives of counted groups small.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from radixrt.constrained.regex.base import Regex
from radixrt.constrained.regex.charset import NONE, CharSet
from radixrt.constrained.regex.nodes import Alternate, Chars, Concat, Repeat, Words

FEW: Final = 3
"""Up to so many alternatives are not compared with one another."""
_LONG_CHAIN: Final = 16
_Choices: TypeAlias = tuple[CharSet, frozenset[str], frozenset[Regex], bool]
_Counted: TypeAlias = tuple[_Choices, list[tuple[int, int | None]]]
_NOTHING: Final[_Choices] = (NONE, frozenset(), frozenset(), True)


def counted_as(node: Regex) -> tuple[Regex, int, int | None]:
    """The item of a node, and how often it comes at least and at most."""
    return (node.item, node.low, node.high) if isinstance(node, Repeat) else (node, 1, 1)


def absorb(options: list[Regex]) -> list[Regex]:
    """Leaves out what is plainly in another option, a repeated character class: abc | [a-z]{2,4} is [a-z]{2,4}."""
    wide = [option for option in options if isinstance(option, Repeat) and isinstance(option.item, Chars)]
    if not wide or len(options) == 1:
        return options
    kept = []
    for option in options:
        if not any(other is not option and within_repeat(option, other) for other in wide):
            kept.append(option)
    return kept


def drop_narrower(options: list[Regex]) -> list[Regex]:
    """Leaves out sequences that are plainly in another: with fewer first choices, and elsewhere in narrower counters.

    Derivatives of counted groups differ in just that: in what is left of the item at hand, and in how many may follow.
    """
    kept: list[Regex] = []
    shapes: dict[tuple[int, ...], list[_Counted]] = {}
    rows: list[tuple[Regex, tuple[int, ...], _Counted]] = []
    for option in options:
        parts = option.chain() if isinstance(option, Concat) else []
        if 0 < len(parts) <= _LONG_CHAIN:
            counted = [counted_as(part) for part in parts]
            shape = tuple([item.serial for item, _, _ in counted])
            bounds = [(low, high) for _, low, high in counted]
            rows.append((option, shape, (_choices(parts[0]), bounds)))
            shapes.setdefault(shape[1:], []).append(rows[-1][2])
        else:
            kept.append(option)
    for option, shape, mine in rows:
        wider = shapes.get(shape[1:], ())
        whole = (_NOTHING, [(0, 0), *mine[1]])
        if any(other is not mine and _narrower(mine, other) for other in wider):
            shapes[shape[1:]] = [other for other in wider if other is not mine]
        elif not any(_narrower(whole, other) for other in shapes.get(shape, ())):
            kept.append(option)
    return kept


def _choices(node: Regex) -> _Choices:
    """What a part may be: characters, words, other options, perhaps nothing."""
    nullable = isinstance(node, Repeat) and node.low == 0 and node.high == 1
    item = node.item if nullable and isinstance(node, Repeat) else node
    singles, words, others = NONE, frozenset[str](), frozenset[Regex]()
    for option in item.options if isinstance(item, Alternate) else (item,):
        if isinstance(option, Chars):
            singles = option.charset
        elif isinstance(option, Words):
            words = frozenset(option.words)
        else:
            others |= {option}
    return singles, words, others, nullable


def _narrower(inner: _Counted, outer: _Counted) -> bool:
    (singles, words, others, nullable), bounds = inner
    (outer_singles, outer_words, outer_others, outer_nullable), outer_bounds = outer
    return (
        nullable <= outer_nullable
        and words <= outer_words
        and others <= outer_others
        and singles.issubset(outer_singles)
        and all(
            low >= outer_low and (outer_high is None or (high is not None and high <= outer_high))
            for (low, high), (outer_low, outer_high) in zip(bounds[1:], outer_bounds[1:])
        )
    )


def within_repeat(node: Regex, wide: Repeat) -> bool:
    """Whether node is certainly a subset of a repeated character class; False where that is not plain to see."""
    if node.min_length < wide.low:
        return False
    if wide.high is not None and (node.max_length is None or node.max_length > wide.high):
        return False
    return isinstance(wide.item, Chars) and node.alphabet().issubset(wide.item.charset)
