"""Constraints with stop strings: the text in front of the stop string is always a whole text of the constraint."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from typing import Any

import pytest

from radixrt.constrained import stop_strings
from radixrt.constrained.compile.compiler import parse_constraint
from radixrt.constrained.productions import Productions
from radixrt.constrained.productions.ebnf import parse_ebnf
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.regex import matches, parse_regex
from radixrt.constrained.stop_strings import check_stops, regex_with_stops
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


@pytest.mark.parametrize("stop", [",", "abc", ")", "(a", "x),"])
def test_a_stop_string_that_a_grammar_can_produce_is_refused(stop: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError, match=re.escape(f"can hold {stop!r}")) as refused:
        parse_constraint(Constraint(kind="ebnf", source=GRAMMAR, stop=("\n", stop)), vocabulary)
    assert refused.value.param == "stop"


@pytest.mark.parametrize("stop", [",,", "a(", ")a", "()", ",)"])
def test_a_stop_string_that_a_grammar_only_begins_changes_nothing(stop: str, vocabulary: Vocabulary) -> None:
    made = parse_constraint(Constraint(kind="ebnf", source=GRAMMAR, stop=(stop,)), vocabulary).productions
    assert accepts(made, "a,(b,c)")
    assert not accepts(made, "a" + stop)


SMALL_GRAMMARS = [
    'root ::= ("a" | "b" root "b"){0,2}',
    'root ::= x{2,3} "b"?\nx ::= "ab" | "a" x "a"',
    'root ::= "a"* y "a"*\ny ::= "b" | "bab" y?',
    'root ::= [ab] "a" root? | "bb"',
    'root ::= ("ab" "a"?){3,}',
]


@pytest.mark.parametrize("source", SMALL_GRAMMARS)
def test_exactly_the_stop_strings_that_a_text_holds_are_refused(source: str) -> None:
    """Compared with all sentences of up to ten characters, which hold all substrings of three that any has."""
    productions = parse_ebnf(source).prune()
    texts = ["".join(text) for n in range(11) for text in itertools.product("ab", repeat=n)]
    sentences = [text for text in texts if accepts(productions, text)]
    for n in (1, 2, 3):
        for stop in map("".join, itertools.product("ab", repeat=n)):
            refused = False
            try:
                check_stops(productions, [stop])
            except RequestError:
                refused = True
            assert refused == any(stop in text for text in sentences), stop


def test_a_grammar_that_is_too_complex_to_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_strings, "MAX_STEPS", 3)
    with pytest.raises(RequestError, match="stop: the constraint is too complex to tell"):
        check_stops(parse_ebnf(GRAMMAR).prune(), ["xyz"])


def tag(*, begin: str = "<f>", end: str = "</f>", content: dict[str, Any] | None = None, **more: Any) -> str:
    content = content or {"type": "json_schema", "json_schema": {"type": "integer"}}
    tags = [{"type": "tag", "begin": begin, "content": content, "end": end}]
    return json.dumps({"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": tags, **more}})


FREE_CONTENT = {"type": "any_text"}


def text_or_number(kind: str) -> str:
    """Free text and JSON, of which the text does not show the border."""
    elements = [FREE_CONTENT, {"type": "json_schema", "json_schema": {"type": "integer"}}]
    return json.dumps({"format": {"type": kind, "elements": elements}})


@pytest.mark.parametrize(
    ("source", "stop", "fits"),
    [
        (tag(), "\n\n", True),
        (tag(), "END", True),
        (tag(), ">x", False),  # begins in the tag and ends behind it
        (tag(), "7", False),
        (tag(), "<f>", False),
        (tag(), "/f", False),
        (tag(content={"type": "json_schema", "json_schema": {"type": "string"}}), "END", False),
        (tag(content=FREE_CONTENT), "END", False),  # free text that must be closed
        (tag(end="!"), "\n", True),
        ('{"format": {"type": "any_text"}}', "a", True),
        ('{"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}, {"type": "any_text"}]}}',
         "a", False),
        (text_or_number("or"), "END", True),
        (text_or_number("or"), "1", False),
        (text_or_number("sequence"), "END", False),  # a number must follow
    ],
)  # fmt: skip
def test_a_stop_string_ends_the_free_text_of_a_structural_tag(
    source: str, stop: str, fits: bool, vocabulary: Vocabulary
) -> None:
    with contextlib.nullcontext() if fits else pytest.raises(RequestError, match="stop: a text of the constraint"):
        parse_constraint(Constraint(kind="structural_tag", source=source, stop=(stop,)), vocabulary)


@pytest.mark.parametrize(("kind", "source"), [("regex", "a+"), ("ebnf", 'root ::= "a"+')])
def test_stop_strings_are_part_of_what_is_compiled(kind: Kind, source: str) -> None:
    plain, stopped = (Constraint(kind=kind, source=source, stop=stop) for stop in ((), (";",)))
    assert plain.key != stopped.key
