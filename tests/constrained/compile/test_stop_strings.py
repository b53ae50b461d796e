"""Constraints with stop strings: the text in front of the stop string is always a whole text of the constraint."""

from __future__ import annotations

import contextlib
import itertools
import re

import pytest

from radixrt.constrained.compile.compiler import parse_constraint, regex_with_stops
from radixrt.constrained.productions import Productions
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.regex import matches, parse_regex
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint, Kind
from radixrt.errors import RequestError
from radixrt.tokenizer.stop_strings import StopMatcher

PATTERNS = ["[ab]*", "a+", "(ab)*", "a{1,3}b?", "[ab;]+", "a;?b", "(a|ba)*", "[^b]+"]
STOPS = [
    (";",),
    ("b",),
    ("ab",),
    ("aa",),
    ("b", "ab"),
    ("ab", "b;"),
    ("a;a",),
    (";", "a;b", "b;"),
    ("bb", "abb", "b;a"),
]


def delivered(text: str, stops: tuple[str, ...]) -> str | None:
    """The part of a complete text that the reader gets; None if a stop string would have cut it sooner."""
    matcher = StopMatcher(stops)
    out = ""
    for i, char in enumerate(text, 1):
        out += matcher.push(char)
        if matcher.matched is not None:
            return out if i == len(text) else None
    return out + matcher.flush()


@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_exactly_what_is_delivered_whole_may_be_written(pattern: str, stops: tuple[str, ...]) -> None:
    whole = re.compile(pattern)
    made = None
    with contextlib.suppress(RequestError):
        made = regex_with_stops(parse_regex(pattern, search=False), stops)
    for length in range(7):
        for text in map("".join, itertools.product("ab;", repeat=length)):
            answer = delivered(text, stops)
            expected = answer is not None and whole.fullmatch(answer) is not None
            assert (made is not None and matches(made, text)) == expected, text


def test_a_regex_that_always_holds_a_stop_string_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError, match="stop string comes behind the text") as refused:
        parse_constraint(Constraint(kind="regex", source="[0-9]{1,4}\n", stop=("\n",)), vocabulary)
    assert refused.value.param == "stop"


GRAMMAR = 'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")"'


def accepts(productions: Productions, text: str) -> bool:
    recognizer = Recognizer(productions, {})
    state = recognizer.advance(recognizer.start(), text)
    return state is not None and state.complete


def test_a_grammar_may_be_followed_by_a_stop_string(vocabulary: Vocabulary) -> None:
    made = parse_constraint(Constraint(kind="ebnf", source=GRAMMAR, stop=("\n\n", ";", "\n.")), vocabulary).productions
    for text in ("a,b", "a,(b,c);", "a\n\n", "a\n."):
        assert accepts(made, text), text
    for text in ("a\n", "a;;", "a;b", ";", "a\n\n;"):
        assert not accepts(made, text), text


@pytest.mark.parametrize("stop", [",", "abc", ")"])
def test_a_stop_string_that_could_begin_inside_a_grammar_is_refused(stop: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError, match="stop: what the grammar describes") as refused:
        parse_constraint(Constraint(kind="ebnf", source=GRAMMAR, stop=(stop,)), vocabulary)
    assert refused.value.param == "stop"


@pytest.mark.parametrize(("kind", "source"), [("regex", "a+"), ("ebnf", 'root ::= "a"+')])
def test_stop_strings_are_part_of_what_is_compiled(kind: Kind, source: str) -> None:
    plain, stopped = (Constraint(kind=kind, source=source, stop=stop) for stop in ((), (";",)))
    assert plain.key != stopped.key
