"""JSON texts of string languages against `json`, which knows how a value is spelled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.constrained.backends.lark import to_rust
from radixrt.constrained.regex import (
    ANY,
    ANY_CHAR,
    EMPTY,
    CharSet,
    Regex,
    alternate,
    chars,
    complement,
    concat,
    intersect,
    is_empty,
    is_subset,
    json_string,
    literal,
    literals,
    matches,
    parse_regex,
    repeat,
    shortest_string,
)
from radixrt.constrained.regex.json_text import without_following

_CHARACTERS = st.sampled_from('ab"\\/\b\f\n\r\t\x00\x01\x0b\x1f\x7f\x80é\u2028\ud7ff\ue000\uffff😀\U0010ffff')
_texts = st.text(_CHARACTERS, max_size=5)
_leaves = st.one_of(
    _texts.map(literal),
    st.lists(_texts, max_size=4).map(literals),
    st.sets(_CHARACTERS, min_size=1).map(lambda found: chars(CharSet.of(found))),
    st.sets(_CHARACTERS, min_size=1).map(lambda found: chars(~CharSet.of(found))),
    st.sampled_from([ANY, ANY_CHAR, EMPTY]),
)


def _extended(inner: st.SearchStrategy[Regex]) -> st.SearchStrategy[Regex]:
    some = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        some.map(lambda parts: concat(*parts)),
        some.map(lambda parts: alternate(*parts)),
        some.map(lambda parts: intersect(*parts)),
        inner.map(complement),
        st.builds(repeat, inner, st.integers(0, 2), st.none() | st.integers(2, 3)),
    )


_values = st.recursive(_leaves, _extended, max_leaves=6)


def _spelled(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@settings(max_examples=500, deadline=None)
@given(_values, st.lists(_texts, min_size=1, max_size=20))
def test_a_text_is_in_the_image_iff_its_value_is_in_the_language(value: Regex, texts: list[str]) -> None:
    image = json_string(value)
    for text in texts:
        assert matches(image, _spelled(text)) == matches(value, text)


@settings(max_examples=300, deadline=None)
@given(_values)
def test_the_shortest_spelling_is_of_a_value(value: Regex) -> None:
    found = shortest_string(json_string(value))
    assert (found is None) == is_empty(value)
    if found is not None:
        text = json.loads(found)
        assert matches(value, text)
        assert _spelled(text) == found


@pytest.mark.parametrize(
    "text",
    ['"\\u0041"', '"\\/"', '"\\u000A"', '"\\u0008"', '"\\u001F"', '"\\u007f"', '"a', 'a"', '"\x1f"', '""a"', '"\\"'],
)
@pytest.mark.parametrize("value", [ANY, complement(literal("x")), repeat(ANY_CHAR, 0, 9)], ids=["any", "not", "short"])
def test_no_second_spelling(text: str, value: Regex) -> None:
    assert not matches(json_string(value), text)


def test_every_control_character_has_its_one_spelling() -> None:
    anything = json_string(ANY)
    for point in [*range(0x100), 0x2028, 0xD7FF, 0xE000, 0x10FFFF]:
        assert matches(anything, _spelled(chr(point)))


@pytest.mark.parametrize(
    "names",
    [
        ANY,
        literal("a"),
        literals(["a", "bc", 'q"']),
        complement(literals(["a", "b"])),
        intersect(parse_regex("^x-", search=True), complement(parse_regex("y$", search=True))),
        alternate(repeat(ANY_CHAR, 2, 3), literal("a:")),
    ],
)
def test_a_colon_behind_each_name_comes_off_again(names: Regex) -> None:
    with_colon = json_string(names, ":")
    without_colon = without_following(with_colon, ":")
    assert without_colon is not None
    assert is_subset(without_colon, json_string(names))
    assert is_subset(json_string(names), without_colon)
    assert is_subset(concat(without_colon, literal(":")), with_colon)
    assert is_subset(with_colon, concat(without_colon, literal(":")))
    assert without_following(json_string(names), ":") is None


def test_fast_forms() -> None:
    any_character = r"(?:[^\x00-\x1F\x22\x5C]|\x5C(?:[\x22\x5Cbfnrt]|u00(?:0[0-7bef]|1[0-9a-f])))"
    same = parse_regex(f'"{any_character.replace("(?:[^", "(?:[^", 1)}*"', search=False)
    assert is_subset(json_string(ANY), same)
    assert is_subset(same, json_string(ANY))
    assert to_rust(json_string(parse_regex("^[a-z]{2,5}$", search=True))) == '"[a-z]{2,5}"'
    assert to_rust(json_string(repeat(ANY_CHAR, 0, 9))).endswith('){0,9}"')
    assert not json_string(intersect(parse_regex("^[a-z]+$", search=True), repeat(ANY_CHAR, 2, 5))).has_boolean
