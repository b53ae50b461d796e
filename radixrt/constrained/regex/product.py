"""Division of strings into kinds: two strings are of one kind if the same ones of some languages have both.

The product of the languages' automata shows at once which kinds there are, and is the automaton of any union of them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from radixrt.constrained.regex.algebra import alternate
from radixrt.constrained.regex.boolean import complement, intersect, plain_expression, unexpanded_intersection
from radixrt.constrained.regex.charset import CharSet, partition
from radixrt.constrained.regex.derivatives import derive
from radixrt.constrained.regex.nodes import Regex, RegexTooComplex, first_sets
from radixrt.constrained.regex.search import is_disjoint, is_empty

Kind = frozenset[int]
"""The places of the languages that a string is in."""
NO_KIND: Final[Kind] = frozenset()
MAX_STATES: Final = 128
"""States of the largest product."""


class Division(Protocol):
    """The strings in the union of some languages, divided into kinds."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The nonempty kinds, ordered by the first language that has the strings of the kind."""

    def strings_of(self, *kinds: Kind) -> Regex:
        """Return the strings of these kinds. Raises RegexTooComplex."""

    def all_but(self, *kinds: Kind) -> Regex:
        """Return all strings that are not of these kinds. Raises RegexTooComplex."""


@lru_cache(maxsize=256)
def divide(languages: tuple[Regex, ...], max_kinds: int) -> Division:
    """Divide strings by the languages that they are in. Some of the kinds may be missing if there are over max_kinds.

    Raises:
        RegexTooComplex: a language is too complex.
    """
    product: Product | None = None
    if len(languages) > 1:
        with contextlib.suppress(RegexTooComplex):  # the pieces are not followed as far
            product = Product.of(languages)
    return product or Pieces.of(languages, max_kinds)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A `Division` by the automaton that follows a text through all languages.

    Attributes:
        languages: the languages.
        kinds: see `Division`.
        arrows: for each state, the character sets that lead on and where to; together they are all characters. State
            0 is the start.
        ends: for each state, the kind of a text that ends there.
    """

    languages: tuple[Regex, ...]
    kinds: tuple[Kind, ...]
    arrows: tuple[dict[int, CharSet], ...]
    ends: tuple[Kind, ...]

    @staticmethod
    def of(languages: tuple[Regex, ...]) -> Product | None:
        """Return None if the automaton has more than MAX_STATES states. Raises RegexTooComplex."""
        numbers = {languages: 0}
        order = [languages]
        arrows: list[dict[int, CharSet]] = []
        for state in order:
            leading: dict[int, CharSet] = {}
            for charset in partition(frozenset[CharSet]().union(*map(first_sets, state))):
                char = chr(charset.edges[0])
                target = tuple([derive(language, char) for language in state])
                number = numbers.setdefault(target, len(order))
                if number == len(order):
                    if number == MAX_STATES:
                        return None
                    order.append(target)
                leading[number] = leading[number] | charset if number in leading else charset
            arrows.append(leading)
        ends = [frozenset([at for at, language in enumerate(state) if language.nullable]) for state in order]
        places = range(len(languages))
        kinds = sorted(set(ends) - {NO_KIND}, key=lambda kind: [place not in kind for place in places])
        return Product(languages, tuple(kinds), tuple(arrows), tuple(ends))

    def strings_of(self, *kinds: Kind) -> Regex:
        return _strings_of(self, frozenset(kinds))

    def all_but(self, *kinds: Kind) -> Regex:
        excluded = frozenset(kinds)
        plain = self._plain_expression(frozenset(self.ends) - excluded)
        if plain is not None:
            return plain
        return unexpanded_intersection(*[complement(self.strings_of(kind)) for kind in self.kinds if kind in excluded])

    def _plain_expression(self, kinds: frozenset[Kind]) -> Regex | None:
        """Return the strings of some kinds without intersections and complements, if that is short and better.

        Finitely many strings are better excluded: see `boolean.intersect`.
        """
        for at, language in enumerate(self.languages):
            if language.max_length is not None and any(at not in kind for kind in kinds):
                return None
        return plain_expression(self.arrows, [end in kinds for end in self.ends])


@lru_cache(maxsize=1024)
def _strings_of(product: Product, kinds: frozenset[Kind]) -> Regex:
    plain = product._plain_expression(kinds)
    if plain is not None:
        return plain
    if len(kinds) > 1:
        return alternate(*[product.strings_of(kind) for kind in product.kinds if kind in kinds])
    (kind,) = kinds
    outside = [complement(language) for at, language in enumerate(product.languages) if at not in kind]
    return unexpanded_intersection(*[product.languages[at] for at in sorted(kind)], *outside)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A `Division` computed by intersections and complements, for each language in turn.

    Attributes:
        pieces: each kind with its strings.
    """

    pieces: tuple[tuple[Kind, Regex], ...]

    @staticmethod
    def of(languages: tuple[Regex, ...], max_kinds: int) -> Pieces:
        """Divide by one language after the other, until there are more kinds than max_kinds."""
        pieces: tuple[tuple[Kind, Regex], ...] = ()
        for place, language in enumerate(languages):
            pieces = _split(pieces, place, language)
            if len(pieces) > max_kinds:
                break
        return Pieces(pieces)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple([kind for kind, _ in self.pieces])

    def strings_of(self, *kinds: Kind) -> Regex:
        return alternate(*[strings for kind, strings in self.pieces if kind in kinds])

    def all_but(self, *kinds: Kind) -> Regex:
        return intersect(*[complement(strings) for kind, strings in self.pieces if kind in kinds])


def _split(pieces: tuple[tuple[Kind, Regex], ...], place: int, language: Regex) -> tuple[tuple[Kind, Regex], ...]:
    """Divide the pieces by one more language."""
    divided: list[tuple[Kind, Regex]] = []
    alone = language
    for kind, strings in pieces:
        if is_disjoint(strings, language):
            divided.append((kind, strings))
            continue
        divided.append((kind | {place}, intersect(strings, language)))
        outside = intersect(strings, complement(language))
        if not is_empty(outside):
            divided.append((kind, outside))
        alone = intersect(alone, complement(strings))
    if not is_empty(alone):
        divided.append((frozenset({place}), alone))
    return tuple(divided)
