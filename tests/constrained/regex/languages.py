"""Random expressions, each with its language spelled out: every string of up to `LONGEST` letters in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from random import Random

from hypothesis import strategies as st

from radixrt.constrained import regex as rx
from radixrt.constrained.regex import derive, shortest_string

LETTERS = "abc"
LONGEST = 5
ALL = frozenset("".join(letters) for size in range(LONGEST + 1) for letters in product(LETTERS, repeat=size))


@dataclass(frozen=True)
class Language:
    """An expression, and the strings of `ALL` that are in it by definition."""

    regex: rx.Regex
    strings: frozenset[str] = field(repr=False)


def _joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    by_size: dict[int, list[str]] = {}
    for tail in right:
        by_size.setdefault(len(tail), []).append(tail)
    return frozenset(
        head + tail for head in left for size, tails in by_size.items() if len(head) + size <= LONGEST for tail in tails
    )


def concat(parts: list[Language]) -> Language:
    strings = frozenset([""])
    for part in parts:
        strings = _joined(strings, part.strings)
    return Language(rx.concat(*[part.regex for part in parts]), strings)


def alternate(parts: list[Language]) -> Language:
    return Language(rx.alternate(*[part.regex for part in parts]), frozenset().union(*[part.strings for part in parts]))


def repeat(item: Language, low: int, more: int | None) -> Language:
    high = None if more is None else low + more
    strings: frozenset[str] = frozenset()
    power = frozenset([""])
    for times in range(max(low, 0) + LONGEST + 2):
        if times >= low and (high is None or times <= high):
            strings |= power
        power = _joined(power, item.strings)
    return Language(rx.repeat(item.regex, low, high), strings)


def intersect(parts: list[Language]) -> Language:
    return Language(rx.intersect(*[part.regex for part in parts]), ALL.intersection(*[part.strings for part in parts]))


def complement(item: Language) -> Language:
    return Language(rx.complement(item.regex), ALL - item.strings)


_texts = st.text(LETTERS, max_size=4)
_leaves = st.one_of(
    st.builds(lambda text: Language(rx.literal(text), ALL & {text}), _texts),
    st.builds(lambda texts: Language(rx.literals(texts), ALL & set(texts)), st.lists(_texts, max_size=5)),
    st.builds(
        lambda text: Language(rx.chars(rx.CharSet.of(text)), frozenset(text)), st.text(LETTERS, min_size=1, max_size=3)
    ),
    st.just(Language(rx.EMPTY, frozenset())),
    st.just(Language(rx.ANY, ALL)),
    st.just(Language(rx.ANY_CHAR, frozenset(LETTERS))),
    st.builds(
        lambda low, more: repeat(Language(rx.ANY_CHAR, frozenset(LETTERS)), low, more),
        st.integers(0, 3),
        st.none() | st.integers(0, 4),
    ),
)


def _counted(inner: st.SearchStrategy[Language]) -> st.SearchStrategy[Language]:
    return st.builds(repeat, inner, st.integers(0, 3), st.none() | st.integers(0, 3))


def _regular(inner: st.SearchStrategy[Language]) -> st.SearchStrategy[Language]:
    some = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(st.builds(concat, some), st.builds(alternate, some), _counted(inner))


def _boolean(inner: st.SearchStrategy[Language]) -> st.SearchStrategy[Language]:
    some = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(_regular(inner), _regular(inner), st.builds(intersect, some), st.builds(complement, inner))


plain_languages = st.recursive(_leaves, _regular, max_leaves=10)
languages = st.recursive(_leaves, _boolean, max_leaves=10)


def walk(regex: rx.Regex, random: Random, stop: float = 0.1) -> str | None:
    """A random string of the language: any way through its derivatives, which turns home after a while.

    None if the way led to nothing, which it only does where there are intersections or complements.
    """
    text = ""
    while not (regex.nullable and random.random() < stop) and len(text) < 40:
        choices = [
            (charset, following)
            for charset in regex.classes()
            if (following := derive(regex, chr(charset.edges[0]))) is not rx.EMPTY
        ]
        if not choices:
            break
        charset, regex = random.choice(choices)
        low, high = random.choice(charset.pairs())
        text += chr(random.randint(low, high))
    ending = shortest_string(regex)
    return None if ending is None else text + ending
