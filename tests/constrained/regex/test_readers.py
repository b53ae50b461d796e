"""Patterns against the three programs that read answers: node's RegExp, Python's re and Rust's regex (in pydantic).

A text of the narrow language is accepted by each reader to which the pattern is no error; a text that any of them
accepts is in the wide language. node has to be installed: without it these tests fail.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from radixrt.constrained.regex import Regex, RegexError, derive, matches, parse_regex, shortest_string
from radixrt.constrained.regex.nodes import EMPTY

PATTERNS = [
    r"^\d+$",
    r"^\D{2}$",
    r"^\w+$",
    r"^\W{3}$",
    r"^\s+$",
    r"^\S+$",
    r"^[\s\S]*$",
    r"^[\w-]+$",
    r"^[^\w]+$",
    r"^[^\d\s]+$",
    r"^[\W\d]+$",
    r"^.+$",
    r"^.*$",
    r"x.y",
    r"a$",
    r"^a|b$",
    r"^(?!a$).*",
    r"^(?!.*\W).+$",
    r"(?!\d)\w",
    r"^[^a]*$",
    r"\bfoo\b",
    r"^\w+\b",
    r"\Bo\B",
    r"^\Ba",
    r"\B",
    r"\b",
    r"\bé",
    r"^(?:\b\w+\b ?){1,4}$",
    r"^(?!.*\bfoo\b).*$",
    r"(?<=a)b",
    r"(?<!a)b",
    r"(?<=^|,)x",
    r"(?<![\w.])\d+",
    r"a(?<=[ab])b",
    r"^a(?<!ba)c?$",
    r"\Aab\Z",
    r"\Aab\z",
    r"\Aa|b\Z",
    r"^\101$",
    r"^[\101-\103]\0$",
    r"^\012$",
    r"^\x41\u0042$",
    r"^[\u0430-\u044F]+$",
    r"^[\u0430-\u044f]+$",
    r"^\U00000041$",
    r"^\p{Lu}\p{Ll}*$",
    r"^\p{Script=Greek}+$",
    r"^\p{scx=Hira}+$",
    r"^\p{Emoji}+$",
    r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$",
    r"^\P{L}+$",
    r"^\p{White_Space}$",
    r"^\p{ASCII}+$",
    r"^[\p{L}\p{N}_]+$",
    r"^(?i:straße)$",
    r"^(?i:[a-z]+)$",
    r"^(?i:k|s|i)$",
    r"(?i)^kill$",
    r"^(?i:[^k])$",
    r"^(?i:\w)$",
    r"^(?i:\W)$",
    r"(?s)^.$",
    r"^[a[]$",
    r"^[^[]$",
    r"^[&-]$",
    r"^[a-z&]$",
    r"^\-\/\.$",
    r"^[\]\\]$",
    r"^a{2}|b{2,}$",
    r"^[^]$",
    r"^$",
    r"^[!-~]+$",
    r"^[a-zA-Z0-9.!#$%&'*+\/=?^_`{|}~-]+@[a-z]+$",
    r"^(?=.*\d)(?=.*[a-z]).{3,}$",
    r"^[^\s@]+@[^\s@]+$",
]
ALPHABET = (
    "abfo kKsSiIé-_1٣½²\n\r\t\x0b\x1c\x85\xa0\u2028\ufeff\u0301\u200d\u212a\u017f\u0130\u0131жЖαΩßẞ😀🇩.,@[]&\\/$A漢\0"
)
_NODE = """
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(([pattern, texts]) => {
  let regex;
  try { regex = new RegExp(pattern, "u"); } catch { return null; }
  return texts.map((text) => regex.test(text));
})));
"""
Verdicts = list[bool] | None
"""For each text, whether a reader finds the pattern; None if the pattern is an error."""


def node_verdicts(cases: list[tuple[str, list[str]]]) -> list[Verdicts]:
    try:
        run = subprocess.run(["node", "-e", _NODE], input=json.dumps(cases), capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.fail("node is not installed, and is one of the readers of patterns: apt-get install nodejs")
    found: list[Verdicts] = json.loads(run.stdout)
    return found


def python_verdicts(pattern: str, texts: list[str]) -> Verdicts:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern)
    except re.error:
        return None
    return [compiled.search(text) is not None for text in texts]


def rust_verdicts(pattern: str, texts: list[str]) -> Verdicts:
    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
    return [_is_valid(validator, text) for text in texts]


def _is_valid(validator: SchemaValidator, text: str) -> bool:
    try:
        validator.validate_python(text)
    except ValidationError:
        return False
    return True


def generated(regex: Regex, chosen: random.Random) -> Iterator[str]:
    """Random texts of a language: a walk over characters that leave a way to an end, then the shortest end."""
    for _ in range(30):
        state, text = regex, ""
        for _ in range(chosen.randrange(6)):
            options = [
                charset for charset in state.classes() if charset and derive(state, chr(charset.edges[0])) is not EMPTY
            ]
            if not options:
                break
            first, last = chosen.choice(chosen.choice(options).pairs())
            char = chr(chosen.choice((first, last, chosen.randint(first, last))))
            state, text = derive(state, char), text + char
        end = shortest_string(state)
        if end is not None:
            yield text + end


@pytest.fixture(scope="module")
def cases() -> list[tuple[str, list[str]]]:
    chosen = random.Random(1)
    made = []
    for pattern in PATTERNS:
        texts = ["", "foo", "a foo b", "ab", "ab\n", "a\n", "b\n", "foo\n", *ALPHABET]
        texts += ["".join(chosen.choices(ALPHABET, k=chosen.randrange(2, 6))) for _ in range(150)]
        for mode in ("narrow", "wide"):
            texts += generated(parse_regex(pattern, search=True, mode=mode), chosen)
        made.append((pattern, texts))
    return made


def test_every_reader_takes_the_narrow_language_and_no_more_than_the_wide(cases: list[tuple[str, list[str]]]) -> None:
    read: dict[str, int] = {"node": 0, "re": 0, "rust": 0}
    wrong: list[Any] = []
    for (pattern, texts), ecma in zip(cases, node_verdicts(cases)):
        narrow, wide = (parse_regex(pattern, search=True, mode=mode) for mode in ("narrow", "wide"))
        readers = {"node": ecma, "re": python_verdicts(pattern, texts), "rust": rust_verdicts(pattern, texts)}
        assert any(verdicts is not None for verdicts in readers.values()), pattern
        for reader, verdicts in readers.items():
            read[reader] += verdicts is not None
            for text, found in zip(texts, verdicts or ()):
                if not found and matches(narrow, text):
                    wrong.append((pattern, reader, "refuses", text))
                if found and not matches(wide, text):
                    wrong.append((pattern, reader, "takes", text))
    assert wrong == []
    assert min(read.values()) > len(PATTERNS) // 2


def test_where_all_readers_agree_nothing_is_lost(cases: list[tuple[str, list[str]]]) -> None:
    """Of the texts that all readers take, most are in the narrow language: it may be smaller only where a pattern
    combines classes that readers take differently."""
    kept = agreed = 0
    for (pattern, texts), ecma in zip(cases, node_verdicts(cases)):
        narrow = parse_regex(pattern, search=True)
        verdicts = [one for one in (ecma, python_verdicts(pattern, texts), rust_verdicts(pattern, texts)) if one]
        for place, text in enumerate(texts):
            if all(one[place] for one in verdicts):
                agreed += 1
                kept += matches(narrow, text)
    assert kept > 0.97 * agreed


@pytest.mark.parametrize(
    "pattern", ["[[:alpha:]]+", "[a-z&&[^aeiou]]", "[0-9--4]", "[a~~b]", "[]a]", r"\<a\>", "[a[bc]d]"]
)
def test_what_readers_divide_differently_is_refused(pattern: str) -> None:
    """Each of them is read by Rust or Python, and otherwise than by ECMA-262 without the flag u."""
    with pytest.raises(RegexError, match="Rust"):
        parse_regex(pattern, search=True)
    assert rust_verdicts(pattern, []) is not None or python_verdicts(pattern, []) is not None
