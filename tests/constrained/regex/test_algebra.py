"""Constructors, derivatives and questions against languages that are spelled out string by string."""

from __future__ import annotations

import gc
import itertools
import json
import threading

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from radixrt.constrained import regex as rx
from radixrt.constrained.backends.lark import to_rust
from radixrt.constrained.regex import (
    derivatives,
    derive,
    enumerate_strings,
    interning,
    is_disjoint,
    is_empty,
    is_subset,
    matches,
    shortest_length,
    shortest_string,
)
from radixrt.constrained.regex.automaton import Dfa, has_more_states
from radixrt.constrained.regex.derivatives import both, without
from tests.constrained.regex.languages import ALL, LETTERS, Language, languages, plain_languages

_ALPHABET = rx.CharSet.of(LETTERS)
_LETTERS_ONLY = rx.repeat(rx.chars(_ALPHABET))


@settings(max_examples=250, deadline=None)
@given(languages)
def test_matches_and_derivatives(language: Language) -> None:
    regex = language.regex
    assert {text for text in ALL if matches(regex, text)} == language.strings
    for char in LETTERS:
        after = {text[1:] for text in language.strings if text.startswith(char)}
        assert {text for text in ALL if len(text) < 5 and matches(derive(regex, char), text)} == after


@settings(max_examples=200, deadline=None)
@given(languages)
def test_classes_partition_the_code_points_by_derivative(language: Language) -> None:
    classes = language.regex.classes()
    assert sum(map(len, classes)) == 0x110000 - 0x800
    for charset in classes:
        first, last = chr(charset.edges[0]), chr(charset.edges[-1] - 1)
        assert derive(language.regex, first) is derive(language.regex, last)


@settings(max_examples=200, deadline=None)
@given(languages)
def test_emptiness_and_shortest(language: Language) -> None:
    regex = rx.intersect(language.regex, _LETTERS_ONLY)
    shortest = shortest_string(regex)
    assert is_empty(regex) == (shortest is None)
    assert shortest_length(regex) == (None if shortest is None else len(shortest))
    if shortest is not None:
        assert matches(regex, shortest)
        assert regex.min_length <= len(shortest)
    if language.strings:
        assert shortest is not None
        assert len(shortest) == min(map(len, language.strings))
    elif shortest is not None:
        assert len(shortest) > 5


@settings(max_examples=200, deadline=None)
@given(plain_languages)
def test_bounds_of_plain_expressions_are_exact(language: Language) -> None:
    regex = language.regex
    assert not regex.has_boolean
    assert is_empty(regex) == (regex is rx.EMPTY)
    if language.strings:
        assert regex.min_length == min(map(len, language.strings))
    if regex.max_length is not None and regex.max_length <= 5 and language.strings:
        assert regex.max_length == max(map(len, language.strings))
    alphabet = regex.alphabet()
    assert all(char in alphabet for text in language.strings for char in text)


@settings(max_examples=200, deadline=None)
@given(languages, st.integers(0, 30))
def test_enumerate(language: Language, limit: int) -> None:
    regex = rx.intersect(language.regex, _LETTERS_ONLY)
    found = enumerate_strings(regex, limit)
    if found is None:
        longer = rx.intersect(regex, rx.repeat(rx.ANY_CHAR, 6))
        assert len(language.strings) > limit or not is_empty(longer)
    else:
        assert len(found) == len(set(found)) <= limit
        assert {text for text in found if len(text) <= 5} == language.strings
        assert all(matches(regex, text) for text in found)
        assert found == sorted(found, key=lambda text: (len(text), text))


@settings(max_examples=200, deadline=None)
@given(languages, languages)
def test_disjoint_and_subset(left: Language, right: Language) -> None:
    both = rx.intersect(left.regex, right.regex)
    try:
        disjoint, subset = is_disjoint(left.regex, right.regex), is_subset(left.regex, right.regex)
        assert disjoint == is_empty(both)
        assert is_subset(both, left.regex)
        assert is_subset(left.regex, rx.alternate(left.regex, right.regex))
    except rx.RegexTooComplex:
        reject()
    assert not (disjoint and left.strings & right.strings)
    assert not (subset and left.strings - right.strings)


@settings(max_examples=800, deadline=None)
@given(plain_languages, st.text(LETTERS, min_size=1), st.integers(0, 5), st.none() | st.integers(0, 4))
def test_intersection_with_a_repeated_class(language: Language, letters: str, low: int, more: int | None) -> None:
    high = None if more is None else low + more
    wide = rx.repeat(rx.chars(rx.CharSet.of(letters)), low, high)
    both = rx.intersect(language.regex, wide)
    inside = {text for text in language.strings if len(text) >= low and (high is None or len(text) <= high)}
    assert {text for text in ALL if matches(both, text)} == {text for text in inside if set(text) <= set(letters)}


@settings(max_examples=200, deadline=None)
@given(languages)
def test_wire_form_gives_the_same_object_back(language: Language) -> None:
    assert sent([language.regex]) == [language.regex]


def test_wire_form_shares_the_parts_of_several_expressions() -> None:
    name = rx.json_string(rx.ANY, ":")
    names = [rx.intersect(name, rx.complement(rx.literals([f'"a{i}":', '"b":']))) for i in range(50)]
    assert sent([name, *names]) == [name, *names]
    assert len(rx.encode([name, *names])[0]) < len(rx.encode([name])[0]) + 4 * len(names)


def sent(regexes: list[rx.Regex]) -> list[rx.Regex]:
    """The expressions after a journey through JSON."""
    table, places = rx.encode(regexes)
    made = rx.decode(json.loads(json.dumps(table)))
    return [made[places[regex]] for regex in regexes]


@pytest.mark.parametrize("listed", [["b", "ab"], ["a"], ["", "a", "b"], ["a", "b", "aa", "ab"]])
def test_a_shortest_string_that_is_not_excluded(listed: list[str]) -> None:
    regex = rx.intersect(rx.parse_regex("[ab]{1,9}x?", search=False), rx.complement(rx.literals(listed)))
    found = rx.shortest_string(regex)
    assert found is not None
    assert matches(regex, found)
    assert len(found) == rx.shortest_length(regex)
    shorter = [text for text in ALL if len(text) < len(found)]
    assert not any(matches(regex, text) for text in shorter)


@settings(max_examples=200, deadline=None)
@given(languages)
def test_equal_constructions_are_one_object(language: Language) -> None:
    regex = language.regex
    assert rx.concat(regex) is regex
    assert rx.alternate(regex, regex, rx.EMPTY) is regex
    assert rx.intersect(regex, regex, rx.ANY) is regex
    assert is_subset(rx.complement(rx.complement(regex)), regex)
    assert rx.repeat(regex, 1, 1) is regex


def test_nothing_is_not_offered_twice() -> None:
    for regex in (rx.complement(rx.literal("a")), rx.repeat(rx.literal("ab"), 0, 3), rx.EPSILON):
        assert regex.nullable
        assert rx.optional(regex) is regex


def test_what_nothing_uses_is_forgotten() -> None:
    derivatives.known_derivatives.clear()
    gc.collect()
    before = len(interning._nodes)
    kept = rx.literal("kept for this test")
    for number in range(200):
        derive(rx.parse_regex.__wrapped__(f"(x{number}[a-z]*){{2,5}}y", search=False), "x")
    derivatives.known_derivatives.clear()
    gc.collect()
    assert len(interning._nodes) - before < 50
    assert rx.literal("kept for this test") is kept


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derivatives, "MAX_KEPT", 1000)
    derivatives.known_derivatives.clear()
    regex = rx.repeat(rx.alternate(rx.literal("ab"), rx.ANY_CHAR), 5000, 5000)
    text = "ab" * 2500
    assert matches(regex, text)
    assert not matches(regex, text[2:])
    assert len(derivatives.known_derivatives) == 1000  # one goes for each that comes, never many at once
    assert derive(regex, "a") is derive(regex, "a")


def test_threads_get_the_same_objects() -> None:
    made: list[list[rx.Regex]] = []

    def make() -> None:
        made.append([rx.concat(rx.literal(f"t{number}"), rx.repeat(rx.ANY_CHAR, number)) for number in range(500)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one is other for regexes in made for one, other in zip(made[0], regexes))


def test_a_million_repetitions_cost_nothing() -> None:
    regex = rx.repeat(rx.literal("ab"), 10**9, 10**9)
    assert shortest_length(regex) == 2 * 10**9
    assert shortest_length(derive(derive(regex, "a"), "b")) == 2 * 10**9 - 2
    with pytest.raises(rx.RegexTooComplex):
        shortest_string(regex)
    with pytest.raises(rx.RegexTooComplex):
        enumerate_strings(regex, 5)
    assert enumerate_strings(rx.repeat(rx.ANY_CHAR, 10**9), 5) is None


def test_many_words() -> None:
    words = [f"word{number:05d}" for number in range(50_000)]
    regex = rx.literals(words)
    assert matches(regex, "word04242")
    assert not matches(regex, "word5")
    assert enumerate_strings(regex, 50_000) == words
    assert enumerate_strings(rx.intersect(regex, rx.parse_regex("0007.$", search=True)), 20) == words[70:80]


def test_simple_intersections_leave_no_boolean_behind() -> None:
    def pattern(text: str) -> rx.Regex:
        return rx.parse_regex(text, search=True)

    def length(low: int, high: int | None) -> rx.Regex:
        return rx.repeat(rx.ANY_CHAR, low, high)

    assert rx.intersect(pattern("^[a-z]+$"), length(2, 5)) is pattern("^[a-z]{2,5}$")
    assert rx.intersect(pattern("^[a-z]*$"), pattern("^[x-z0-9]{3,}$")) is pattern("^[x-z]{3,}$")
    assert rx.intersect(pattern("^x-[a-z]*$"), length(0, 10)) is pattern("^x-[a-z]{0,8}$")
    assert rx.intersect(pattern("^[a-z]+@x$"), length(0, 10)) is pattern("^[a-z]{1,8}@x$")
    assert rx.intersect(pattern("^b*a?$"), length(2, None)) is pattern("^(?:b{2,}|b+a)$")
    assert rx.intersect(pattern("^(abc)*$"), length(2, 10)) is pattern("^(abc){1,3}$")
    assert rx.intersect(pattern("^(abc|[0-9]{4,})$"), length(2, 10)) is pattern("^(abc|[0-9]{4,10})$")
    assert rx.intersect(pattern("^[a-z]+$"), pattern("^[0-9]+$")) is rx.EMPTY
    assert rx.intersect(pattern("^[a-z]+-[a-z]+$"), pattern("^[a-m-]*$")) is pattern("^[a-m]+-[a-m]+$")
    assert enumerate_strings(rx.intersect(pattern("^[ab]{4}$"), pattern("aba")), 9) == ["aaba", "abaa", "abab", "baba"]
    assert not rx.intersect(pattern("^[ab]{4}$"), pattern("aba")).has_boolean
    assert rx.intersect(rx.multiple_of(7), rx.integer_range(-10, 20)) is rx.literals(["-7", "0", "7", "14"])
    assert rx.intersect(pattern("^[a-z]{2}$"), rx.complement(rx.literal("ab"))).has_boolean
    assert not rx.complement(pattern("^[a-z]{2,5}$")).has_boolean
    assert not rx.complement(pattern("^x-")).has_boolean
    assert not rx.intersect(pattern("^foo"), pattern("bar$")).has_boolean


def test_a_surrogate_is_in_no_language() -> None:
    lone = "\ud800"
    assert rx.literal(f"a{lone}") is rx.EMPTY
    assert rx.literals([lone, "a"]) is rx.literal("a")
    assert rx.CharSet.of(lone).is_empty()
    for regex in (rx.ANY, rx.ANY_CHAR, rx.complement(rx.literal("ab")), rx.parse_regex("[^a]", search=True)):
        assert not matches(regex, lone)
        assert not matches(regex, f"xy{lone}")


def _nested(depth: int) -> rx.Regex:
    nested = rx.literal("a")
    for _ in range(depth):
        nested = rx.repeat(rx.concat(nested, rx.literal("b")), 2, None)
    return nested


def test_depth_is_a_limit_and_not_a_crash() -> None:
    pattern = "a"
    for at in range(45):
        pattern = f"(?:{pattern}|b{at})*c"
    state = rx.parse_regex(pattern, search=True)
    assert enumerate_strings(state, 3) is None
    assert len(state.alphabet()) > 10
    for char in "abcabb0c59caac" * 5:
        state = derive(state, char)
    assert shortest_string(rx.json_string(state)) is not None
    assert sent([state]) == [state]
    assert not is_disjoint(state, rx.ANY)
    with pytest.raises(rx.RegexTooComplex):
        _nested(1000)
    with pytest.raises(rx.RegexError):
        rx.parse_regex("(?:" * 199 + "a" + "b|c)*" * 199, search=False)


def test_a_search_for_any_string_is_not_taken_for_a_shortest_one() -> None:
    for text in ("ab", "abba", "ba" * 3):
        regex = rx.intersect(rx.parse_regex(f"^(?:{text}|[ab]{{9,}}c)+$", search=True), rx.complement(rx.literal(text)))
        assert not is_empty(regex)
        expected = min(10, 2 * len(text))
        assert shortest_length(regex) == len(shortest_string(regex) or "") == expected
        for char in (shortest_string(regex) or "")[:-1]:
            regex = derive(regex, char)
            expected -= 1
            assert not is_empty(regex)
            assert shortest_length(regex) == expected


def test_more_states_than_a_limit_are_found_as_the_automaton_finds_them() -> None:
    patterns = ["a.{3}b", "^(ab|ba)*$", "^.{2,9}$", "aba|bb", "^[a-c]{4}", "x"]
    for one, other in itertools.combinations(patterns, 2):
        pair = rx.parse_regex(one, search=True), rx.parse_regex(other, search=True)
        regex = both(pair[0], without(pair[1]))
        for limit in (1, 3, 8, 16, 40):
            fits = Dfa.of(regex, limit) is not None
            assert fits is not (has_more_states(regex, limit) or is_empty(regex)), (one, other, limit)


def test_options_that_cannot_be_shorter_are_not_searched() -> None:
    def without(word: str, text: str) -> rx.Regex:
        return rx.intersect(rx.parse_regex(text, search=False), rx.complement(rx.parse_regex(word, search=True)))

    hard = without("a.{13}b.{7}a", "([ab]{20}){20}")
    either = rx.alternate(hard, without("xx", "[x-z]{9}[xy]+"), without("zz", "z[w-z]{8}v+"))
    assert shortest_length(either) == 10
    assert len(shortest_string(either) or "") == 10
    assert matches(either, shortest_string(either) or "")
    assert hard.ending is None


def test_what_is_shared_many_times_is_not_written_out_without_end() -> None:
    regex = rx.literal("a")
    for number in range(60):
        regex = rx.alternate(rx.concat(rx.literal(f"b{number}"), regex, rx.literal("x")), rx.concat(regex, rx.ANY_CHAR))
    assert len(repr(regex)) < 100
    with pytest.raises(rx.RegexTooComplex):
        to_rust(rx.json_string(regex))
    assert regex.classes()
    assert shortest_string(regex) == "a" + "aaaaaaaaaa" * 6
    assert len(rx.encode([regex])[0]) < 1000


def test_a_language_without_a_longest_string_is_seen_by_its_states() -> None:
    """It has few strings of each length, so there are millions of characters before there are many strings."""
    only_b = rx.intersect(rx.parse_regex("[ab]+", search=False), rx.complement(rx.parse_regex("a", search=True)))
    assert enumerate_strings(only_b, 4_000) is None
    assert enumerate_strings(rx.intersect(only_b, rx.repeat(rx.ANY_CHAR, 0, 9)), 9) == ["b" * n for n in range(1, 10)]
