"""References to groups, against Python's re on every short text."""

from __future__ import annotations

import re

import pytest

from radixrt.constrained.regex import RegexError, matches, parse_regex, references
from tests.constrained.grammars import texts

TAKEN = [
    r"^(a|b)-\1$",
    r"(a|b)-\1",
    r"^([ab]).*\1$",
    r"^([ab]{2})-?\1$",
    r"^(a|ab)(b?)\1$",
    r"^(a|b)(a|b)\2\1$",
    r"^((a|b)-)\2\1$",
    r"^((a|b)\2)-\1$",
    r"^(?<x>a|b)(?P<y>-|)\1\2$",
    r"^(?P<x>a|b)-(?P=x)+$",
    r"^(?:(a|b)\1)+-$",
    r"^(a|b)+\1$",
    r"^(a|b){2,3}-\1$",
    r"^(?:(a|b)-?)+\1$",
    r"^(a|b)\1*(?:-\1)?$",
    r"^(a|b)(?!\1)[ab]-$",
    r"^(a|b)(?=-\1).*$",
    r"^(a|b)(?:-\1|\1-)$",
    r"^(a||b)-\1$",
    r"^(?:(?:(a)|-)b)*$",
    r"(a|b)(?i:\1)$",
    r"^(?i:(a)B)\1$",
    r"^(a)(?:b|\1)+$",
    r"(?:^|-)(a|b)\1(?:-|$)",
]


@pytest.mark.parametrize("pattern", TAKEN)
def test_a_reference_has_the_text_of_its_group(pattern: str) -> None:
    found, taken = parse_regex(pattern.replace("?P<", "?<"), search=True), re.compile(pattern.replace("?<x", "?P<x"))
    for text in texts("ab-B", 5):
        assert matches(found, text) == (taken.search(text) is not None), text


def test_names_of_ecma() -> None:
    assert parse_regex(r"^(?<one>a|b)-\k<one>$", search=True) is parse_regex(r"^(a|b)-\1$", search=True)


def test_quotes() -> None:
    found = parse_regex(r"""^(["']).*\1$""", search=True)
    assert all(matches(found, text) for text in ('"a"', "'a\"'", "''"))
    assert not any(matches(found, text) for text in ("\"a'", "'", "a"))


def test_a_group_of_many_texts() -> None:
    found = parse_regex(r"^([0-9a-f]{2})(:\1){2}$", search=True)
    assert matches(found, "a0:a0:a0")
    assert not matches(found, "a0:a0:a1")


def test_a_forbidden_reference_is_that_of_every_reader() -> None:
    found = parse_regex(r"^(?i:(k))\1$", search=True, mode="wide")
    assert matches(found, "\u212a\u212a")
    assert not matches(parse_regex(r"^(?i:(k))\1$", search=True), "kK")


@pytest.mark.parametrize(
    ("pattern", "message", "position"),
    [
        (r"(.+)\1", "at most 1,000 texts", 0),
        (r"x([a-z]*)\1", "at most 1,000 texts", 1),
        (r"(a|$)\1", "no anchors or lookarounds", 0),
        (r"^(\w)(\w)\1\2$", "more than 2,000 texts together", 5),
        (r"(?:(a)|b)\1", "the group 1 may not have matched", 9),
        (r"(a)?\1", "the group 1 may not have matched", 4),
        (r"(a|)+\1", "the group 1 may not have matched", 5),
        (r"(a)*\1", "the group 1 may not have matched", 4),
        (r"(?=(a))\1", "the group 1 may not have matched", 7),
        (r"\1(a)", "no group 1 before", 0),
        (r"(a\1)", "the group 1 has not ended", 2),
        (r"(a)\2", "no group 2 before", 3),
        (r"(a)\k<b>", "no group b before", 3),
        (r"(?P=b)", "no group b before", 0),
        (r"(?<a>x)(?<a>y)\k<a>", "two groups of the name 'a'", 10),
        (r"(?<=(a)\1)b", "lookbehind with a reference", 0),
        (r"(a)\k", "a reference to a group is no character", 3),
        (r"[a\k]", "a reference to a group is no character", 2),
    ],
)
def test_references_that_are_refused(pattern: str, message: str, position: int) -> None:
    with pytest.raises(RegexError, match=message) as raised:
        parse_regex(pattern, search=True)
    assert raised.value.position == position


def test_two_groups_may_have_one_name_where_nothing_refers_to_them() -> None:
    assert parse_regex("^(?:(?<a>x)|(?<a>y))$", search=True) is parse_regex("^[xy]$", search=True)


def test_octal_characters_are_no_references() -> None:
    assert matches(parse_regex(r"^(a)\101[\1]$", search=True), "aA\x01")


def test_few_texts_of_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "MAX_WRITTEN", 6)
    parse_regex.cache_clear()
    assert matches(parse_regex(r"^(a|b)(c|d)\1\2$", search=True), "acac")
    with pytest.raises(RegexError, match="more than 6 texts"):
        parse_regex(r"^(a|b|c)(c|d)\1\2$", search=True)
    parse_regex.cache_clear()
