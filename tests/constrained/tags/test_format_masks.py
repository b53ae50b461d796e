"""Masks of structural tags against languages that are told in other words, over a small vocabulary."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint
from radixrt.constraint import Constraint
from radixrt.errors import RequestError
from tests.constrained.mask_oracle import SIGNS, START, THINK, Language, among, check
from tests.constrained.vocabularies import small_vocabulary

Format = dict[str, Any]


def tag_of(form: Format) -> Constraint:
    return Constraint(kind="structural_tag", source=json.dumps({"type": "structural_tag", "format": form}))


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(small_vocabulary("byte_level"))


def up_to(mark: str, after: str = "") -> Language:
    """Free text without control tokens up to the first mark, and a text after the mark."""

    def begins(text: str) -> bool:
        free, found, rest = text.partition(mark)
        return not set(free) & set(SIGNS.values()) and (not found or after.startswith(rest))

    return Language(begins, lambda text: begins(text) and text.endswith(mark + after))


def with_calls(mark: str, body: str, *, loop: bool) -> Language:
    """Free text in which each mark is followed by the body; the end of the first body is the end without `loop`."""

    def begins(text: str) -> bool:
        _, *others = text.split(mark)
        if set(text) & (set(SIGNS.values()) - {mark}) or (not loop and len(others) > 1):
            return False
        if others and loop and not all(one.startswith(body) for one in others[:-1]):
            return False
        return not others or body.startswith(others[-1]) or (loop and others[-1].startswith(body))

    def has(text: str) -> bool:
        last = text.rpartition(mark)[2] if mark in text else body
        return begins(text) and last.startswith(body)

    return Language(begins, has)


def const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def seq(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


PAIR = {
    "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, 2]}, "c": {"const": "x"}},
    "required": ["a", "b"], "additionalProperties": False,
}  # fmt: skip
MEMBERS = [['"a":true', '"a":false'], ['"b":1', '"b":2'], ['"c":"x"']]
IN_ANY_ORDER = [
    "{" + ",".join(members) + "}"
    for chosen in (MEMBERS[:2], MEMBERS)
    for order in itertools.permutations(chosen)
    for members in itertools.product(*order)
]
WORDS = ["".join(word) for length in range(4) for word in itertools.product("abc", repeat=length)]
STRINGS = {"type": "json_schema", "json_schema": {"type": "string", "pattern": "^[abc]{0,3}$"}}


@pytest.mark.parametrize(
    ("form", "language"),
    [
        ({"type": "json_schema", "json_schema": PAIR, "any_order": True}, among(IN_ANY_ORDER)),
        ({**STRINGS, "excludes": ["ab", "cc"]},
         among(f'"{one}"' for one in WORDS if "ab" not in one and "cc" not in one)),
        ({"type": "json_schema", "excludes": ["ab"],
          "json_schema": {"enum": ["ab", "a", ["cab"], {"ab": 1}, {"b": "a"}]}}, among(['"a"', '{"b":"a"}'])),
        ({"type": "qwen_xml_parameter", "json_schema": {"type": "object", "properties": {"a": {"type": "boolean"}},
                                                        "required": ["a"], "additionalProperties": False}},
         among(f"<parameter=a>\n{value}\n</parameter>\n" for value in ("true", "false"))),
        (seq(const("a"), {"type": "token", "token": 1}, const("b")), among([f"a{SIGNS[START]}b"])),
        ({"type": "tag", "begin": {"type": "token", "token": 400}, "content": {"type": "regex", "pattern": "[ab]{1,2}"},
          "end": {"type": "token", "token": 1}},
         among(SIGNS[THINK] + one + SIGNS[START] for one in ("a", "b", "aa", "ab", "ba", "bb"))),
        (seq({"type": "any_tokens", "exclude_tokens": [1, THINK]}, const("END"), const("!")), up_to("END", "!")),
        ({"type": "token_dispatch", "rules": [[400, const("Z")]], "exclude_tokens": [1]},
         with_calls(SIGNS[THINK], "Z", loop=True)),
        ({"type": "token_dispatch", "rules": [[400, const("Z")]], "loop": False},
         with_calls(SIGNS[THINK], "Z", loop=False)),
        ({"type": "token_triggered_tags", "trigger_tokens": [400], "exclude_tokens": [START], "tags": [
            {"type": "tag", "begin": {"type": "token", "token": THINK}, "content": const("ok"), "end": "."}]},
         with_calls(SIGNS[THINK], "ok.", loop=True)),
        ({"type": "dispatch", "rules": [["<f", const("Z")]]}, with_calls("<f", "Z", loop=True)),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_masks_are_exactly_those_of_the_language(form: Format, language: Language, backends: Backends) -> None:
    assert check(tag_of(form), language, backends) > 2


def grammar(text: str) -> Format:
    return {"type": "grammar", "grammar": text}


FLAG = {**PAIR, "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TRUE_OR_FALSE = ('{"a":true}', '{"a":false}')
NO_BRACE = Language(
    lambda text: not set(text) & {"{", *SIGNS.values()} or any(one.startswith(text) for one in TRUE_OR_FALSE),
    lambda text: not set(text) & {"{", *SIGNS.values()} or text in TRUE_OR_FALSE,
)
"""Free text without `{`, or JSON."""


def ending_with(*texts: str) -> Language:
    """Free text and one of the texts."""

    def begins(text: str) -> bool:
        return not set(text) & set(SIGNS.values())

    return Language(begins, lambda text: begins(text) and text.endswith(texts))


@pytest.mark.parametrize(
    ("form", "language"),
    [
        (seq(grammar('root ::= "a" "b"?'), grammar('root ::= "b"? "c" | "bd"')),
         among(["ac", "abc", "abbc", "abd", "abbd"])),
        (seq(grammar('root ::= "(" root? ")" | "-"'), grammar('root ::= "-"? [xy]')),
         Language(lambda text: _nested(text) >= 0, lambda text: _nested(text) == 1)),
        ({"type": "or", "elements": [
            {"type": "any_text", "excludes": ["{"]}, {"type": "json_schema", "json_schema": FLAG}]}, NO_BRACE),
        (seq({"type": "any_text"}, {"type": "json_schema", "json_schema": FLAG}), ending_with(*TRUE_OR_FALSE)),
        (seq({"type": "any_tokens", "exclude_tokens": [1]}, {"type": "regex", "pattern": "[ab]|cd"}),
         ending_with("a", "b", "cd")),
        (seq({"type": "star", "content": {"type": "any_text"}}, grammar('root ::= "(" root? ")"')),
         Language(ending_with("").begins, lambda text: _ends_nested(text))),
        (seq({"type": "json_schema", "json_schema": {"enum": [1, 12, -1]}}, const("2")), among(["12", "122", "-12"])),
        ({"type": "repeat", "min": 2, "max": 2, "content": {"type": "json_schema", "json_schema": {"enum": [1, 11]}}},
         among(["11", "111", "1111"])),
        (seq({"type": "optional", "content": grammar('root ::= "a" "b"?')}, {"type": "token", "token": 1}),
         among([SIGNS[START], "a" + SIGNS[START], "ab" + SIGNS[START]])),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_masks_where_no_text_shows_the_border(form: Format, language: Language, backends: Backends) -> None:
    assert check(tag_of(form), language, backends) > 2


def _ends_nested(text: str) -> bool:
    """Return whether a text without control tokens ends with parentheses in parentheses, the inner ones empty."""
    closed = len(text) - len(text.rstrip(")"))
    return closed > 0 and text.endswith("(" * closed + ")" * closed) and ending_with("").begins(text)


def _nested(text: str) -> int:
    """Return 1 for a whole text of nested parentheses, a dash and a letter, 0 for the beginning of one, else -1."""
    opened = len(text) - len(text.lstrip("("))
    rest = text[opened:]
    for inner in ("", "-") if opened else ("-",):
        for dash in ("", "-"):
            for letter in "xy":
                whole = inner + ")" * opened + dash + letter
                if whole.startswith(rest):
                    return int(whole == rest)
    return -1


@pytest.mark.parametrize(
    ("form", "place", "nearest"),
    [
        ({"type": "token", "token": 5}, "/format/token", "const_string"),
        ({"type": "token", "token": "hello"}, "/format/token", "const_string"),
        ({"type": "token", "token": True}, "/format/token", "const_string"),
        ({"type": "any_tokens", "exclude_tokens": ["hello"]}, "/format/exclude_tokens/0", "any_text with excludes"),
        ({"type": "any_tokens", "exclude_tokens": [1, 5]}, "/format/exclude_tokens/1", "any_text with excludes"),
        ({"type": "any_tokens", "exclude_tokens": 1}, "/format/exclude_tokens", "array"),
        ({"type": "token_dispatch", "rules": [[5, const("Z")]]}, "/format/rules/0/0/token", "const_string"),
        ({"type": "token_triggered_tags", "trigger_tokens": [5], "tags": []}, "/format/trigger_tokens/0",
         "const_string"),
        ({"type": "json_schema", "json_schema": PAIR, "style": "qwen_xml", "any_order": True}, "/format/any_order",
         "leave any_order out"),
        ({"type": "json_schema", "json_schema": PAIR, "excludes": ["a"]}, "/format/json_schema", "excludes"),
        ({"type": "json_schema", "json_schema": PAIR, "style": "qwen_xml", "excludes": ["a"]}, "/format/excludes",
         "pattern"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_refusal_names_the_place_and_the_nearest_format(
    form: Format, place: str, nearest: str, backends: Backends
) -> None:
    with pytest.raises(RequestError) as caught:
        compile_constraint(tag_of(form), backends)
    assert caught.value.param == "structural_tag"
    assert f"at {place}:" in caught.value.message
    assert nearest in caught.value.message
