"""Lark grammars as productions, against llguidance, which reads the same grammars itself."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.backends.llguidance_backend import LlguidanceBackend
from radixrt.constrained.grammar import bitmask_words
from radixrt.constrained.lark_input.syntax import COMMON, NotTranslated
from radixrt.constrained.lark_input.translate import is_lark, translate
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.vocabulary import Vocabulary
from tests.constrained.engines import llguidance_language

ARITHMETIC = """
?start: sum
?sum: product | sum "+" product -> add | sum "-" product
?product: atom | product "*" atom   // left-recursive
?atom: NUMBER | "-" atom | "(" sum ")"
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
"""
JSON = r"""
start: value
?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: ESCAPED_STRING ":" value
%import common (ESCAPED_STRING, SIGNED_NUMBER)
"""
SQL = """
start: "select" _WS columns _WS "from" _WS NAME
columns: NAME ("," NAME)*
     | "*"
NAME: LETTER (LETTER | DIGIT){0,5}
LETTER: "a".."z"
DIGIT: /[0-9]/
_WS: " "
"""
CONTROLLED = 'start: <|im_start|> "a"~2..3 <|im_end|>'
GRAMMARS = {
    "arithmetic": ARITHMETIC,
    "json": JSON,
    "sql": SQL,
    "counts": 'start: "x"{2,3} ("yz"~2)? ["w"] "!"',
    "regexes": r'start: /[a-z]+\d{2,}/ "." /[^\s"]{1,3}/ /\w./',
    "flags": r'start: "AbC"i /a.b/s "\n"',
    "and, not": r'start: WORD ";"' + "\n" + r'WORD: /[a-z]{1,6}/ & ~/(?s:.*)aa(?s:.*)/'.replace("(?s:.*)", "[a-z]*"),
    "comments": '# one\nstart: a // two\na: "#" "//" b\n  | "c"\n\nb: "::"',
    "specials": CONTROLLED,
    "words": 'start: ("red" | "green" | "blue" | "grey") (", " ("red" | "green"))*',
}  # fmt: skip


@pytest.fixture(scope="module")
def backend(vocabulary: Vocabulary) -> LlguidanceBackend:
    return LlguidanceBackend(vocabulary)


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_are_llguidances_own(name: str, vocabulary: Vocabulary, backend: LlguidanceBackend) -> None:
    source = GRAMMARS[name]
    theirs, ours = backend.load(source), backend.load(to_lark(translate(source), vocabulary.control_tokens))
    rows = np.zeros((2, bitmask_words(vocabulary.vocab_size)), np.uint32)
    compared = 0
    for seed in range(6):
        generator = random.Random(seed)
        matchers = [theirs.fork(), ours.fork()]
        for _ in range(25):
            for matcher, row in zip(matchers, rows, strict=True):
                matcher.fill(row)
            assert np.array_equal(*rows)
            assert matchers[0].may_end() == matchers[1].may_end()
            compared += 1
            tokens = [token for token in np.flatnonzero(np.unpackbits(rows[0].view(np.uint8), bitorder="little"))
                      if token not in vocabulary.eos_ids]  # fmt: skip
            if not tokens:
                break
            token = int(generator.choice(tokens))
            assert all(matcher.accept(token) for matcher in matchers)
    assert compared > 15
    assert not name.startswith("spec") or any(row.any() for row in rows)


@pytest.mark.parametrize("name", sorted(COMMON))
def test_common_terminals_are_llguidances(name: str) -> None:
    source = f"%import common.{name}\nstart: {name}"
    alphabet = '19a_.-e"\\n \n\r#/*F'
    found = Recognizer(translate(source))
    theirs = llguidance_language(source, alphabet, 4)

    def accepts(text: str) -> bool:
        state = found.advance(found.start(), text)
        return state is not None and state.complete

    ours = {text for text in _near(theirs, alphabet) if accepts(text)}
    assert ours == theirs


def _near(texts: set[str], alphabet: str) -> set[str]:
    """The texts, and those that differ from one by a character, of at most four characters."""
    found = {"", *alphabet, *texts}
    for text in texts:
        for at in range(len(text) + 1):
            found |= {text[:at] + char + text[at:] for char in alphabet if len(text) < 4}
            found |= {text[:at] + char + text[at + 1 :] for char in alphabet if at < len(text)}
            found.add(text[:at] + text[at + 1 :])
    return found


def test_ambiguous_terminals_are_read_as_lark_defines_them() -> None:
    """llguidance reads the longest NAME, which leaves no text for "if" to follow it."""
    source = 'start: NAME "if" | "if" NAME\nNAME: /[a-z]+/'
    found = Recognizer(translate(source))
    for text, is_sentence in (("ifa", True), ("aif", True), ("abc", False), ("if", False)):
        state = found.advance(found.start(), text)
        assert (state is not None and state.complete) is is_sentence, text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("root: \"a\"", "no rule named 'start'"),
        ("start: missing", "'missing' is not defined"),
        ("start: A\nA: A", "refers to itself"),
        ('start: "a', "line 1: '\"' has no meaning"),
        ('start: ("a"', "never closed"),
        ('start: "a"\nstart: "b"', "line 2: 'start' is defined twice"),
        ('start: %json {"type": "object"}', "no meaning here"),
        ('start[lazy]: /a/', "expected a definition"),
        ('start: <[5]>', "has no meaning"),
        ("%declare A\nstart: A", "%declare is not translated"),
        ("%import other.X\nstart: X", "only common"),
        ("%import common.NOTHING\nstart: NOTHING", "common.NOTHING is not known"),
        ("start: /(?i)a/", "is not translated"),
        ("start: /a$/", "is not translated"),
        ("start: /(/", "/(/"),
        ('start: "a"{3,2}', "wrong order"),
        ('start: "b".."a"', "a range goes"),
        ("A: start\nstart: A", "a terminal consists of"),
        ("start: " + "(" * 60 + '"a"' + ")" * 60, "nest more than"),
        ('start: A "a"\nA: /([a-z]{2})+/ & /([a-z]{3})+/ & ~/.*abc.*/', "ambiguous together"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_told(source: str, reason: str) -> None:
    with pytest.raises(NotTranslated, match=re.escape(reason)):
        translate(source)


def test_modifiers_priorities_and_aliases_change_no_text() -> None:
    plain = translate('start: a "!"\na: /b+/ | "c"')
    made = translate('?start: a "!" -> x\n!a.2: /b+/ -> y\n  | "c"')
    assert made.encode() == plain.encode()


def test_the_notation_is_told_apart_as_vllm_does() -> None:
    assert is_lark('start: "a" // ::=')
    assert is_lark("start: a\n# b ::= c")
    assert not is_lark('root ::= "a"')
