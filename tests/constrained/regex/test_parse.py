"""Patterns against Python's `re` where the two agree, and against expected values where ECMA-262 differs."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.constrained.backends.lark import to_rust
from radixrt.constrained.regex import (
    ANY,
    EMPTY,
    Regex,
    RegexError,
    alternate,
    derive,
    is_empty,
    literal,
    matches,
    nodes,
    parse_regex,
    shortest_length,
)

_TEXTS = ["".join(letters) for size in range(5) for letters in product("ab\n", repeat=size)]
_atoms = st.sampled_from(["a", "b", "ab", "[ab]", "[^a]", ".", "\\n", "\\w", "\\W", "\\s", "(?:)", "a?", "b*"])
_anchors = st.sampled_from(["^", "$"])


def _extended(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    some = st.lists(inner, min_size=1, max_size=3)
    marks = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?", "??", "{1,2}?"])
    return st.one_of(
        some.map("".join),
        some.map(lambda options: f"(?:{'|'.join(options)})"),
        some.map(lambda options: f"({'|'.join(options)})"),
        st.builds(lambda item, mark: f"(?:{item}){mark}", inner, marks),
    )


_plain_patterns = st.recursive(_atoms, _extended, max_leaves=8)
_anchored_patterns = st.recursive(st.one_of(_atoms, _anchors), _extended, max_leaves=8)


def _with_lookaheads(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        _extended(inner),
        st.builds(lambda item, rest: f"(?={item}){rest}", inner, inner),
        st.builds(lambda item, rest: f"(?!{item}){rest}", inner, inner),
    )


_looking_patterns = st.recursive(st.one_of(_atoms, _anchors), _with_lookaheads, max_leaves=6)


def _is_quick_in_python(pattern: str) -> bool:
    """False for repetitions in repetitions in repetitions: `re` tries every way of dividing a text among them, which
    takes minutes for `(?:(?:(?:b*){2,}){2,}){2,}` and four characters."""
    return len(re.findall(r"\)(?:[*+]|\{2,\})", pattern)) < 3


def _agrees(pattern: str) -> None:
    python = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    searched = parse_regex(pattern, search=True, mode="ecma")
    whole = parse_regex(pattern, search=False, mode="ecma")
    for text in _TEXTS:
        assert matches(searched, text) == (python.search(text) is not None), text
        assert matches(whole, text) == (python.fullmatch(text) is not None), text


@settings(max_examples=300, deadline=None)
@given(_plain_patterns.filter(_is_quick_in_python))
def test_agrees_with_re(pattern: str) -> None:
    _agrees(pattern)


@settings(max_examples=600, deadline=None)
@given(_anchored_patterns.filter(_is_quick_in_python))
def test_anchors_anywhere_agree_with_re(pattern: str) -> None:
    _agrees(pattern)


@settings(max_examples=400, deadline=None)
@given(_looking_patterns.filter(_is_quick_in_python))
def test_lookaheads_agree_with_re(pattern: str) -> None:
    if _is_refused(pattern):
        return
    _agrees(pattern)


def _is_refused(pattern: str) -> bool:
    try:
        parse_regex(pattern, search=True)
    except RegexError as error:
        return "inside a repetition" in error.message
    return False


def _found(pattern: str, *texts: str) -> list[bool]:
    regex = parse_regex(pattern, search=True)
    return [matches(regex, text) for text in texts]


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"^\d$", "07", "٣a"),
        (r"^\w$", "aZ_9", "é\u017f\u212a-"),
        (r"^\W$", "é-٣", "a_"),
        (
            r"^\s$",
            " \t\n\v\f\r\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
            "\x1c\x1d\x85\u200b\u180ea",
        ),
        (r"^\S$", "a\x85\u200b", " \u00a0\ufeff"),
        (r"^.$", "a\x85\x0b\0😀", "\n\r\u2028\u2029"),
        (r"^[^]$", "a\n😀", ""),
        (r"^[]$", "", "a\n"),
        (r"^[\b]$", "\b", "b"),
        (r"^[\w-]$", "a-", "+"),
        (r"^[a\-z]$", "a-z", "b"),
        (r"^[+--]$", "+,-", ".*"),
        (r"^[[:a]$", "[:a", "]"),
        (r"^[\]\\^]$", "]\\^", "["),
        (r"^\x41|\u0042|\u{43}|\u{1F600}|\uD83D\uDE01$", "ABC😀😁", "D"),
        (r"^[\uD83D\uDE00-\u{1F64F}]$", "😀🙏", "\U0001f650"),
        (r"^\cJ|\cj|\0|\t\n\v\f\r$", "\n\0", "j"),
        (r"^\.\*\/\-\@\ \"$", "", "x"),
        (r"^\p{Lu}$", "AÄΩ", "aä1"),
        (r"^\p{Letter}$", "aä漢", "1_"),
        (r"^[\p{Nd}\P{L}]$", "٣1_", "a"),
        (r"^\p{gc=Lowercase_Letter}$", "aß", "A"),
        (r"^\p{ASCII}|\p{Any}$", "aé", ""),
        (r"(?i)^[k-s]é$", "", "k"),
        (r"^(?i:k)$", "kK\u212a", "s"),
        (r"(?i)^\w$", "kS\u212a\u017f", "é"),
        (r"(?i)^\W$", "é", "kS\u212a\u017f"),
        (r"(?i)^[^k]$", "s", "kK\u212a"),
        (r"(?i)^ß$", "ßẞ", "s"),
        (r"(?s)^.$", "a\n", ""),
        (r"(?i)^(?-i:a)$", "a", "A"),
        (r"^{|}|]$", "{}]", "x"),
    ],
)
def test_characters(pattern: str, inside: str, outside: str) -> None:
    regex = parse_regex(pattern, search=True, mode="ecma")
    assert [char for char in inside if not matches(regex, char)] == []
    assert [char for char in outside if matches(regex, char)] == []


def test_ends_are_the_ends() -> None:
    assert _found("^abc$", "abc", "abc\n", "xabc") == [True, False, False]
    assert _found("^🐲*$", "", "🐲", "🐲🐲", "🐉") == [True, True, True, False]
    assert _found("a|^b$|c", "xay", "b", "xb", "xcx", "d") == [True, True, False, True, False]
    assert _found("a^b", "ab", "a^b") == [False, False]
    assert _found("(^a|b)c(d$|e)", "ac", "acd", "xbcex", "xacd", "acdx") == [False, True, True, False, False]
    assert _found("", "", "anything") == [True, True]
    assert _found("^$", "", "x") == [True, False]
    assert _found("x*$^", "", "x") == [True, False]


def test_braces_that_count_nothing_are_characters() -> None:
    assert _found("^a{x}$", "a{x}") == [True]
    assert _found("^a{1$", "a{1") == [True]
    assert _found("^{}$", "{}") == [True]
    assert _found("^a{2}{$", "aa{") == [True]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^(?!foo)bar", ["bar", "barfoo"], ["foobar", "xbar"]),
        ("^(?!foo)", ["", "fo", "xfoo"], ["foo", "foobar"]),
        ("^(?=.*[A-Z])(?=.*[0-9]).{8,}$", ["Abcdefg1", "1bcdefgH"], ["abcdefg1", "Abcdefgh", "Abcde1"]),
        ("^(?!.*--)[a-z-]+$", ["a-b-c"], ["a--b", ""]),
        ("^((?!foo).)*$", ["", "fo", "barfo", "o"], ["foo", "xfoo", "xfoox"]),
        ("^(?:(?!ab|c)[a-z]){2,}$", ["xy", "ba"], ["x", "xab", "xyc"]),
        ("^(?:a(?=b)|b(?!b)){1,3}$", ["ab", "b", "bab"], ["a", "bb", "aa"]),
        ("foo(?!bar)", ["foo", "foobaz", "foobarfoo"], ["foobar", "fo"]),
        ("^[a-z]+(?=$)", ["abc"], ["abc1"]),
        ("(?=a)b", [], ["ab", "b"]),
        ("^(?!^a)b|(?!$)c", ["b", "xc"], ["ab", "a"]),
    ],
)
def test_lookaheads(pattern: str, yes: list[str], no: list[str]) -> None:
    assert _found(pattern, *yes) == [True] * len(yes)
    assert _found(pattern, *no) == [False] * len(no)


@pytest.mark.parametrize(
    ("pattern", "position", "says"),
    [
        ("a(b", 1, "never closed"),
        ("ab)", 2, "no group to close"),
        ("[ab", 0, "never closed"),
        ("a[z-a]", 2, "out of order"),
        ("*a", 0, "nothing to repeat"),
        ("a|+", 2, "nothing to repeat"),
        ("^*", 1, "nothing to repeat"),
        ("a**", 2, "in a row"),
        ("a{2}{3}", 6, "in a row"),
        ("a{3,2}", 1, "out of order"),
        ("a{,3}", 1, "{0,3}"),
        ("a{1000000001}", 1, "more than"),
        ("(?=a)*", 0, "cannot be repeated"),
        ("x\\", 1, "single backslash"),
        (r"a\b*", 1, "cannot be repeated"),
        (r"(?:\ba\b)*", 0, "inside a repetition"),
        (r"(?<=a{30})b", 0, "too long"),
        (r"(?<=a(?=b))b", 0, "inside of a lookbehind"),
        (r"[[:alpha:]]", 1, "A-Za-z"),
        (r"[a-z&&[^aeiou]]", 4, "Rust"),
        (r"[a-z--b]", 4, "Rust"),
        (r"[a~~b]", 2, "Rust"),
        (r"[a[b]c]", 2, r"\["),
        (r"[]a]", 0, r"\]"),
        (r"[^]a]", 0, r"\]"),
        (r"\<a\>", 0, "word boundary"),
        (r"\uD83D\uDE00", 0, r"\u{1F600}"),
        (r"\8", 0, "no group 8"),
        (r"(a+)\1", 0, "at most 1,000 texts"),
        (r"(?<n>a+)\k<n>", 0, "at most 1,000 texts"),
        (r"\a", 0, "not an escape"),
        (r"\u12", 0, "hexadecimal"),
        (r"\u{110000}", 0, "hexadecimal"),
        (r"\xg1", 0, "hexadecimal"),
        (r"\p{Script=Klingon}", 0, "no such"),
        (r"\p{Stable}", 0, "no such"),
        (r"\pL", 0, "braces"),
        (r"(?>a)", 0, "not supported"),
        (r"(?#note)", 0, "not supported"),
        (r"a(?i)b", 1, "not supported"),
        (r"(?m)^a", 0, "not supported"),
        (r"(?:(?!a)b|c)*", 0, "inside a repetition"),
        ("(?<1>a)", 3, "group name"),
    ],
)
def test_what_cannot_be_read_says_where(pattern: str, position: int, says: str) -> None:
    with pytest.raises(RegexError) as caught:
        parse_regex(pattern, search=True)
    assert says in caught.value.message
    assert caught.value.position == position
    assert f"character {position} " in str(caught.value)


def test_limits() -> None:
    with pytest.raises(RegexError, match="10000"):
        parse_regex("a" * 10_001, search=True)
    with pytest.raises(RegexError, match="200 deep"):
        parse_regex("(" * 300 + "a" + ")" * 300, search=True)
    assert parse_regex("(" * 200 + "a" + ")" * 200, search=False) is literal("a")


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{1,50}){1,50}){1,50}",
        "(.*a.{25})",
        "(.*a.{1000})",
        "(a|a)*b",
        "(a*)*b",
        "(a|aa)+$",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "a{0,100000}",
        "(a{0,100000}b?){0,100000}",
        "((ab?){1,50}c?){1,50}",
        "(((a?){50}){50}b?){50}",
        "(a?b?)" * 1000,
        "a?" * 3000 + "a" * 3000,
        "(?:" * 70 + "a" + "*b)" * 70,
        "(" * 45 + "a" + "*b|c)" * 45,
        "|".join(f"a{{{number}}}b" for number in range(1, 800)),
        "((a|b)*c?){3,500}(ab){7,9}",
        "(x+x+)+y",
        "a{1000000000}",
        "(((a{1000}){1000}){1000}){1000}",
        "(" * 100 + "^a$" + "b?)c?" * 100,
        "(?:" * 30 + "^a$" + "|b)*" * 30,
        "(?:(?=a)b?|(?!c)d?)" * 40,
        "(?:" * 12 + "(?=a)b" + "|c)?" * 12,
    ],
)
@pytest.mark.parametrize("search", [True, False])
def test_bombs_make_few_nodes(pattern: str, search: bool) -> None:
    before = next(nodes._serials)
    regex = parse_regex(pattern, search=search)
    assert shortest_length(regex) is not None
    assert not is_empty(regex)
    state: Regex = regex
    for _ in range(200):
        state = derive(state, "a")
    regex.classes()
    assert next(nodes._serials) - before < 20_000


def test_without_assertions_nothing_boolean_is_left() -> None:
    for pattern in ("a", "^a", "a$", "^a$", "(^a|b$)c?", "^x|y$", "(a|^)b(c|$)"):
        assert not parse_regex(pattern, search=True).has_boolean
    assert to_rust(parse_regex("^x-", search=True)) == r"x\x2D[\x00-\x{D7FF}\x{E000}-\x{10FFFF}]*"
    assert parse_regex("^(?:a|b)+$", search=True) is parse_regex("[ab]+?", search=False)
    assert parse_regex("^.*$|^(.|\\n)*$|^[^]*$", search=True) is ANY
    assert parse_regex("[]", search=True) is EMPTY
    assert alternate(parse_regex("^a", search=True), EMPTY) is parse_regex("^a", search=True)
