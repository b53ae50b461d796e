"""Expressions in the syntax of the regex crate: llguidance reads the same language, byte for byte."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from radixrt.constrained.backends.lark import to_rust
from radixrt.constrained.regex import (
    ANY,
    ANY_CHAR,
    EPSILON,
    FORMATS,
    CharSet,
    Regex,
    RegexTooComplex,
    alternate,
    chars,
    complement,
    concat,
    integer_range,
    json_string,
    literal,
    literals,
    matches,
    multiple_of,
    number_range,
    parse_regex,
    repeat,
    shortest_string,
)
from tests.constrained.engines import llguidance_language
from tests.constrained.regex.languages import LETTERS, LONGEST, Language, plain_languages


@cache
def _bytes() -> LLTokenizer:
    """A vocabulary of the 256 bytes."""
    return LLTokenizer("byte")


class Backend:
    """llguidance with one expression."""

    def __init__(self, regex: Regex) -> None:
        written = to_rust(regex)
        assert "\n" not in written
        assert "/" not in written
        self._matcher = LLMatcher(_bytes(), LLMatcher.grammar_from_lark(f"start: T\nT: /{written}/\n"))
        assert not self._matcher.is_error(), self._matcher.get_error()

    def accepts(self, text: str) -> bool:
        tokens = list(text.encode())
        self._matcher.reset()
        return bool(self._matcher.try_consume_tokens(tokens) == len(tokens) and self._matcher.is_accepting())


@settings(max_examples=150, deadline=None)
@given(plain_languages)
def test_random_expressions(language: Language) -> None:
    assume(language.regex.min_length > 0 and language.strings)
    lark = f"start: T\nT: /{to_rust(language.regex)}/\n"
    assert llguidance_language(lark, LETTERS, LONGEST) == language.strings


@settings(max_examples=100, deadline=None)
@given(st.text(min_size=1, max_size=8), st.text(max_size=8))
def test_any_literal(text: str, other: str) -> None:
    assume(all(not 0xD800 <= ord(char) < 0xE000 for char in text + other))
    backend = Backend(literal(text))
    assert backend.accepts(text)
    assert backend.accepts(other) == (other == text)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 300)), min_size=1, max_size=5), st.booleans())
def test_any_character_class(ranges: list[tuple[int, int]], negative: bool) -> None:
    charset = CharSet.ranges([(low, min(low + size, 0x10FFFF)) for low, size in ranges])
    charset = ~charset if negative else charset
    assume(charset)
    backend = Backend(chars(charset))
    for low, high in charset.pairs():
        for point in (low - 1, low, high, high + 1):
            if 0 <= point <= 0x10FFFF and not 0xD800 <= point < 0xE000:
                assert backend.accepts(chr(point)) == (point in charset)


_SYNTAX = r"""\^$.|?*+()[]{}-&~#/"'`<>=!@%,;: _aZ09""" + "\t\n\r\x00\x7f\u2028é😀"


def test_every_mark_of_the_syntax() -> None:
    for char in _SYNTAX:
        backend = Backend(literal(char))
        pair = Backend(literals([char + "x", "y" + char]))
        inside = Backend(chars(CharSet.of(char + "mk")))
        outside = Backend(chars(~CharSet.of(char + "mk")))
        for other in _SYNTAX:
            assert backend.accepts(other) == (char == other)
            assert pair.accepts(other + "x") == (char == other)
            assert inside.accepts(other) == (char == other)
            assert outside.accepts(other) == (char != other)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats(name: str) -> None:
    regex = json_string(FORMATS[name])
    if regex.has_boolean:
        pytest.skip("this format is written with an intersection")
    found = shortest_string(regex)
    assert found is not None
    backend = Backend(regex)
    assert backend.accepts(found)
    assert not backend.accepts(found[:-1])
    assert not backend.accepts(found[:-1] + "\n" + found[-1])


@pytest.mark.parametrize(
    "regex",
    [
        json_string(ANY),
        json_string(repeat(ANY_CHAR, 2, 5)),
        json_string(parse_regex(r"^a\"\\\n\x01[^b]", search=True)),
        json_string(literals(['"', "\\", "a/b", "\u2028"])),
    ],
)
def test_json_strings(regex: Regex) -> None:
    backend = Backend(regex)
    for value in ("", "ab", 'a"\\\n\x01c', 'a"\\\n\x01b', '"', "\\", "a/b", "\u2028", "\x7f\x00", "😀" * 6, "éa\t\b"):
        text = json.dumps(value, ensure_ascii=False)
        assert backend.accepts(text) == matches(regex, text)
        assert not backend.accepts(text[:-1])
    assert not backend.accepts('"\\u0041"')


@pytest.mark.parametrize(
    "regex", [integer_range(-120, 4321), number_range(0, Decimal("0.75")), number_range(None, None), multiple_of(25)]
)
def test_numbers(regex: Regex) -> None:
    backend = Backend(regex)
    for text in (
        "0",
        "-0",
        "7",
        "-120",
        "-121",
        "4321",
        "4322",
        "0.75",
        "0.750",
        "0.751",
        "1e5",
        "-1.5E+3",
        "50",
        "01",
    ):
        assert backend.accepts(text) == matches(regex, text)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="intersection"):
        to_rust(complement(literal("x")))
    with pytest.raises(RegexTooComplex):
        to_rust(repeat(alternate(literal("ab"), literal("c")), 10**10, None))


def test_unicode_categories() -> None:
    backend = Backend(concat(parse_regex(r"\p{Lu}\p{L}*\P{L}", search=False)))
    for text in ("Äpfel.", "Ωx1", "äpfel.", "Äpfel", "漢字。", "Ж字。"):
        assert backend.accepts(text) == matches(parse_regex(r"\p{Lu}\p{L}*\P{L}", search=False), text)
    assert to_rust(EPSILON) == "(?:)"
