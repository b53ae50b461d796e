"""Two items of an array are equal where its schema says `not uniqueItems`, wherever the text is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint
from radixrt.constrained.schema import normalize
from radixrt.constraint import Constraint
from radixrt.errors import RequestError
from tests.constrained.guards.languages import (
    check_cut_anywhere,
    check_written,
    guarded,
    strict,
    texts,
    walk,
    without,
)
from tests.constrained.guards.test_items import AB, distinct, no_value_is_listed, some_backends
from tests.constrained.guards.test_keys import answer
from tests.constrained.vocabularies import allowed, small_vocabulary, text_of

__all__ = ["no_value_is_listed", "some_backends"]


def repeating(items: Any, high: int = 3, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "not": {"uniqueItems": True}, "maxItems": high, **more}


MEMBERS = {"patternProperties": {"^[ab]$": {"enum": [1, 12]}}, "additionalProperties": False}
TINY: dict[str, Any] = {
    "strings": repeating(AB),
    "two items": repeating(AB, 2),
    "one value": repeating({"const": "a"}, 4),
    "at least three": repeating({"type": "string", "pattern": "^[abc]$"}, 4, minItems=3),
    "strings that begin others": repeating({"type": "string", "pattern": "^(|a|ab|abb|b)$"}),
    "strings of several bytes and with escapes": repeating({"type": "string", "pattern": '^(é|è|"|\\\\|\\n|日本|,)$'}),
    "integers": repeating({"type": "integer", "minimum": 8, "maximum": 12}),
    "negative and positive": repeating({"type": "integer", "minimum": -11, "maximum": 1}, 2),
    "numbers": repeating({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 2}),
    "null, booleans and numbers": repeating({"enum": [None, True, False, 1, 0, 1.5, "1"]}),
    "arrays": repeating({"type": "array", "items": {"enum": [1, 11]}, "maxItems": 2}),
    "objects": repeating(
        {"type": "object", "properties": {"a": {"enum": [1, 11]}, "b": {"const": 1}}, "required": ["a"],
         "additionalProperties": False}),
    "objects with members in any order": repeating({"type": "object", **MEMBERS, "maxProperties": 2}, 2),
    "objects in any order, three": repeating(
        {"type": "object", "patternProperties": {"^[ab]$": {"const": 1}}, "additionalProperties": False,
         "maxProperties": 2}),
    "of sets": repeating(distinct({"enum": ["a", "b"]}, 2, minItems=1), 3),
    "in a set": distinct(repeating({"enum": ["a", "b"]}, 3), 2),
    "in a set that is used up": distinct(repeating({"enum": ["a", "b"]}, 2), 3, minItems=2),
    "numbers in a set": distinct(repeating({"type": "integer", "minimum": 9, "maximum": 11}, 2)),
    "in one another": repeating(repeating({"enum": [1, 12]}, 3), 2),
    "within an object": {
        "type": "object", "additionalProperties": False, "required": ["a", "b"], "properties": {
            "a": repeating({"type": "string", "pattern": "^ab?$"}),
            "b": {"type": "array", "items": {"type": "string", "pattern": "^ab?$"}, "maxItems": 2}}},
    "tuples": {
        "type": "array", "prefixItems": [AB, AB, AB], "items": False, "not": {"uniqueItems": True}},
    "beside scalars": {"anyOf": [{"enum": ["a", 1]}, repeating(AB, 2)]},
    "of scalars or objects": repeating(
        {"anyOf": [{"enum": ["a", 1]}, {"type": "object", **MEMBERS, "maxProperties": 1}]}, 2),
}  # fmt: skip
"""Schemas with few texts."""


def free(schema: Any) -> Any:
    """The schema without conditions on equal items."""
    if isinstance(schema, dict):
        return {name: free(value) for name, value in schema.items() if name != "not"}
    return [free(one) for one in schema] if isinstance(schema, list) else schema


def good_texts(schema: Any) -> set[str]:
    """The texts of the schema's values, by enumerating those of the schema without the conditions."""
    validator = jsonschema.Draft202012Validator(schema)
    found = set()
    for text in texts(normalize(without(free(schema))).productions().prune()):
        value = json.loads(text)
        if validator.is_valid(value) and json.dumps(value, ensure_ascii=False, separators=(",", ":")) == text:
            found.add(text)
    return found


@pytest.mark.parametrize("name", TINY)
def test_the_mask_has_exactly_the_tokens_with_a_completion(name: str, some_backends: Backends) -> None:
    vocabulary = some_backends.vocabulary
    walks = 25 if vocabulary.vocab_size < 10_000 else 3
    reached, banned = walk(guarded(TINY[name], some_backends), vocabulary, good_texts(TINY[name]), name, walks)
    assert reached
    assert banned or name == "one value" or vocabulary.vocab_size > 10_000, "the guard had nothing to do"


@pytest.mark.parametrize("name", TINY)
def test_every_text_with_equal_items_can_be_written(name: str, backends: Backends) -> None:
    check_written(TINY[name], backends, good_texts(TINY[name]))


@pytest.mark.parametrize("name", TINY)
def test_a_text_that_is_cut_anywhere_is_completed_with_equal_items(name: str, backends: Backends) -> None:
    check_cut_anywhere(TINY[name], backends, good_texts(TINY[name]))


TWICE: dict[str, Any] = {"type": "array", "not": {"uniqueItems": True}}
BIG: list[Any] = [
    {**TWICE, "items": {"type": "string"}},
    {**TWICE, "items": {"type": "integer"}, "maxItems": 6},
    {**TWICE, "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
    {**TWICE, "items": {"type": "string", "format": "date"}, "maxItems": 3},
    {**TWICE, "items": {"enum": [f"{a}{b}" for a in "abcdefghij" for b in "0123456789"]}, "maxItems": 5},
    TWICE,
    {**TWICE, "maxItems": 2, "items": {
        "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "uniqueItems": True}},
        "required": ["b"]}},
    {"type": "array", "uniqueItems": True, "items": {**TWICE, "items": {"type": "integer"}, "maxItems": 4}},
    {"type": "object", "additionalProperties": {**TWICE, "items": {"type": "string"}, "maxItems": 3}},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BIG)))
@pytest.mark.parametrize("options", [{}, {"whitespace": 2, "key_order": "any"}])
def test_random_answers_of_every_length_repeat_an_item(number: int, options: Any, backends: Backends) -> None:
    vocabulary, template = backends.vocabulary, guarded(BIG[number], backends, **options)
    texts = ('"', "a", "b", '":', ",", '{"', '","', "{", "}", "1", "0", "[", "]", '["', "true")
    likely = [id for text in texts if (id := vocabulary.by_bytes[0].get(text.encode()))]
    validator = jsonschema.Draft202012Validator(BIG[number])
    banned = 0
    for seed in range(12):
        generator = random.Random(seed)
        tokens, bans = answer(template.new(), vocabulary, generator, likely, generator.randrange(100))
        text = text_of(vocabulary, tokens)
        strict(text)
        assert validator.is_valid(json.loads(text)), text
        banned += bans
    assert banned, "the guard had nothing to do"


def test_the_last_item_may_only_repeat_an_earlier_one() -> None:
    backends = Backends(small_vocabulary("byte_level"))
    vocabulary = backends.vocabulary
    template = guarded({**TWICE, "items": {"type": "string"}, "maxItems": 3}, backends)
    grammar = template.new()
    assert all(map(grammar.accept, vocabulary.encode_greedily(b'["ab","c","a')))
    texts = {vocabulary.table[token] for token in allowed(grammar, vocabulary.vocab_size)}
    assert b"b" in texts
    assert all(b'b"]'.startswith(text) for text in texts)
    assert text_of(vocabulary, grammar.closing()) == 'b"]'


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({**TWICE, "prefixItems": [{"type": "string"}]}, "'uniqueItems' at '/not'.*items at different places differ"),
        ({**TWICE, "items": {"type": "string"}, "contains": {"const": "a"}}, "'/not'.*items are counted"),
        (
            {"anyOf": [{**TWICE, "items": {"type": "string"}}, {"type": "array", "items": {"type": "integer"}}]},
            "'/anyOf/0/not'.*another alternative",
        ),
        (
            {"anyOf": [{"properties": {"a": TWICE}, "required": ["b"]}, {"required": ["c"]}], "type": "object"},
            "another alternative",
        ),
        ({"anyOf": [{**TWICE, "items": {"type": "string"}}, {"const": ["a"]}]}, "another alternative"),
    ],
)
def test_arrays_that_guards_cannot_follow_are_refused(schema: Any, message: str, backends: Backends) -> None:
    with pytest.raises(RequestError, match=message):
        compile_constraint(Constraint(kind="json_schema", source=json.dumps(schema)), backends)
