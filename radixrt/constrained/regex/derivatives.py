"""Brzozowski derivatives: the language that is left after one character, computed on the tree and kept for a while.

Counters are never unrolled, so a derivative costs what the tree at hand costs and not what its bounds say.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from itertools import islice
from typing import Final

from radixrt.constrained.regex.algebra import alternate, literals, prepend, repeat
from radixrt.constrained.regex.base import EMPTY, Regex, RegexTooComplex, derivatives_found
from radixrt.constrained.regex.boolean import both, without
from radixrt.constrained.regex.charset import DIGITS, EVERY, NONE, CharSet, partition
from radixrt.constrained.regex.multiples import remainder
from radixrt.constrained.regex.nodes import (
    EPSILON,
    Alternate,
    Chars,
    Complement,
    Concat,
    Intersect,
    Remainder,
    Repeat,
    Words,
    subterms,
)

MAX_OPTIONS: Final = 20_000
MAX_KEPT: Final = 100_000
_SHALLOW: Final = 50


def derive(node: Regex, char: str) -> Regex:
    """`node.derive(char)`, computed anew.

    Raises:
        RegexTooComplex: the derivative has more than MAX_OPTIONS alternatives.
    """
    if "\ud800" <= char <= "\udfff":
        return EMPTY
    if node.depth > _SHALLOW:
        _derive_parts(node, char)
    found = _derive(node, char)
    if len(derivatives_found) >= MAX_KEPT:
        for oldest in list(islice(derivatives_found, MAX_KEPT // 2)):
            derivatives_found.pop(oldest, None)
    derivatives_found[node, char] = found
    return found


def _derive_parts(node: Regex, char: str) -> None:
    """Derives what the derivative of a deep node needs, innermost first, so that nothing calls itself deeply."""
    pending = [node]
    needed: set[Regex] = set()
    while pending:
        whole = pending.pop()
        for part in _needed(whole):
            if part not in needed and part.depth > 0 and (part, char) not in derivatives_found:
                needed.add(part)
                pending.append(part)
    for part in sorted(needed, key=lambda part: part.serial):
        derivatives_found[part, char] = _derive(part, char)


def _needed(node: Regex) -> tuple[Regex, ...]:
    """The parts whose derivatives the derivative of the node is made of."""
    if not isinstance(node, Concat):
        return node.parts()
    return (node.head, node.tail) if node.head.nullable else (node.head,)


def _derive(node: Regex, char: str) -> Regex:
    if isinstance(node, Chars):
        return EPSILON if char in node.charset else EMPTY
    if isinstance(node, Words):
        return _after_first(node, char)
    if isinstance(node, Concat):
        return _derive_concat(node, char)
    if isinstance(node, Repeat):
        first = node.item.derive(char)
        if first is EMPTY:
            return EMPTY
        high = None if node.high is None else node.high - 1
        return prepend(first, repeat(node.item, max(node.low - 1, 0), high))
    if isinstance(node, Alternate):
        options = [option.derive(char) for option in node.options]
        if len(options) > MAX_OPTIONS:
            raise RegexTooComplex("an expression has too many alternatives that start alike")
        return alternate(*options)
    if isinstance(node, Intersect):
        return both(*[item.derive(char) for item in node.items])
    if isinstance(node, Complement):
        return without(node.item.derive(char))
    if isinstance(node, Remainder):
        return _derive_remainder(node, char)
    return EMPTY


def _after_first(node: Words, char: str) -> Regex:
    if node.text is not None:
        return literals([node.text[1:]]) if node.text[0] == char else EMPTY
    suffixes = node.suffixes().get(char)
    return literals(suffixes) if suffixes else EMPTY


def _derive_concat(node: Concat, char: str) -> Regex:
    """Goes along the chain in a loop: as many parts count as are nullable from the start.

    Once a part's derivative is nullable, all that its tail takes is in; so is then what a later counted class leaves,
    which its own derivative only counts down.
    """
    options: list[Regex] = []
    rest: Regex = node
    covered = False
    while isinstance(rest, Concat):
        head = rest.head
        if not (covered and isinstance(head, Repeat) and head.low == 0 and isinstance(head.item, Chars)):
            first = head.derive(char)
            if first is not EMPTY:
                options.append(prepend(first, rest.tail))
                covered = covered or first.nullable
        if not head.nullable:
            break
        rest = rest.tail
    else:
        options.append(rest.derive(char))
    return alternate(*options) if options else EMPTY


def _derive_remainder(node: Remainder, char: str) -> Regex:
    if char in DIGITS:
        digit = ord(char) - 48
        if not node.point:
            return remainder(node.divisor, node.carry * 10 + digit, node.scale)
        if node.scale:
            return remainder(node.divisor, node.carry * 10 + digit, node.scale - 1, point=True)
        return remainder(node.divisor, node.carry, 0, point=True) if digit == 0 else EMPTY
    if char == "." and not node.point and node.scale is not None:
        return remainder(node.divisor, node.carry, node.scale, point=True, pending=True)
    return EMPTY


def alphabet(node: Regex) -> CharSet:
    """`node.alphabet()`, kept in the node."""
    if node._alphabet is None:
        for part in subterms(node):
            if part._alphabet is None:
                part._alphabet = _alphabet(part)
        assert node._alphabet is not None
    return node._alphabet


def _alphabet(node: Regex) -> CharSet:
    """The alphabet of a node whose parts have theirs already."""
    if isinstance(node, Chars):
        return node.charset
    if isinstance(node, Words):
        return CharSet.of(set().union(*node.words))
    if isinstance(node, Complement):
        return EVERY
    if isinstance(node, Remainder):
        return DIGITS | CharSet.of(".")
    if isinstance(node, Intersect):
        shared = EVERY
        for item in node.items:
            shared = shared & alphabet(item)
        return shared
    joined = NONE
    for part in node.parts():
        joined = joined | alphabet(part)
    return joined


def classes(node: Regex) -> list[CharSet]:
    """`node.classes()`, kept in the node."""
    if node._classes is None:
        node._classes = partition(_first_sets(node))
    return node._classes


def _first_sets(node: Regex) -> dict[CharSet, None]:
    """The sets that decide, for the first character, which derivative it is."""
    sets: dict[CharSet, None] = {}
    seen = {node}
    pending = [node]
    while pending:
        whole = pending.pop()
        if isinstance(whole, Chars):
            sets[whole.charset] = None
        elif isinstance(whole, Words):
            sets.update((CharSet.of(char), None) for char in whole.suffixes())
        elif isinstance(whole, Remainder):
            sets.update((CharSet.of(char), None) for char in "0123456789.")
        for part in _needed(whole):
            if part not in seen:
                seen.add(part)
                pending.append(part)
    return sets


@lru_cache(maxsize=4096)
def first(node: Regex) -> CharSet:
    """Characters with which a string of the language can begin; possibly more where has_boolean."""
    found: dict[Regex, CharSet] = {}
    for part in subterms(node):
        if isinstance(part, Complement):
            found[part] = EVERY
        elif isinstance(part, Intersect):
            found[part] = reduce(CharSet.intersection, [found[item] for item in part.items])
        elif part.parts():
            found[part] = reduce(CharSet.union, [found[inner] for inner in _needed(part)])
        else:
            found[part] = reduce(CharSet.union, _first_sets(part), NONE)
    return found[node]
