"""No array repeats an item where its schema says so, whatever is sampled, and wherever the text is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint
from radixrt.constrained.guards import search
from radixrt.constrained.guards.search import Completer
from radixrt.constrained.matcher import GrammarError
from radixrt.constrained.schema import normalize
from radixrt.constrained.schema.emit import arrays, plan
from radixrt.constrained.schema.normal_form import graph
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
from tests.constrained.guards.test_keys import answer
from tests.constrained.vocabularies import allowed, small_vocabulary, text_of


def distinct(items: Any, high: int = 3, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, "maxItems": high, **more}


AB: dict[str, Any] = {"type": "string", "pattern": "^[ab]{1,2}$"}
TINY: dict[str, Any] = {
    "strings": distinct(AB),
    "strings that begin others": distinct({"type": "string", "pattern": "^(|a|ab|abb|b)$"}, 4),
    "strings of several bytes and with escapes": distinct({"type": "string", "pattern": '^(é|è|"|\\\\|\\n|日本|,|)$'}),
    "all values are used up": distinct({"type": "string", "pattern": "^[ab]$"}, 4),
    "as many as there are values": distinct({"enum": ["a", "b", "ab"]}, 4, minItems=3),
    "at least two": distinct(AB, 3, minItems=2),
    "integers": distinct({"type": "integer", "minimum": 8, "maximum": 12}, 3),
    "negative and positive": distinct({"type": "integer", "minimum": -11, "maximum": 1}, 2),
    "numbers": distinct({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 2}, 3),
    "null, booleans and numbers": distinct({"enum": [None, True, False, 1, 0, 1.5, "1"]}, 3),
    "arrays": distinct({"type": "array", "items": {"enum": [1, 11]}, "maxItems": 2}, 3),
    "sets of sets": distinct(distinct({"enum": ["a", "b"]}, 2, minItems=1), 2),
    "sets of sets of at least two": distinct(distinct({"enum": ["a", "b"]}, 3, minItems=2), 3),
    "objects": distinct(
        {"type": "object", "properties": {"a": {"enum": [1, 11]}, "b": {"type": "boolean"}}, "required": ["a"],
         "additionalProperties": False}, 2),
    "objects with members in any order": distinct(
        {"type": "object", "patternProperties": {"^[ab]$": {"enum": [1, 12]}}, "additionalProperties": False,
         "maxProperties": 2}, 2),
    "within an object": {
        "type": "object", "additionalProperties": False, "required": ["a", "b"], "properties": {
            "a": distinct({"type": "string", "pattern": "^ab?$"}, 3),
            "b": {"type": "array", "items": {"type": "string", "pattern": "^ab?$"}, "maxItems": 3}}},
    "a tuple": {
        "type": "array", "prefixItems": [AB, {"type": "string", "pattern": "^[abc]{1,2}$"}, AB], "items": False,
        "uniqueItems": True, "minItems": 3},
    "counted items": distinct(
        {"enum": ["a", "b", "ab", "ba"]}, 3, contains={"enum": ["ab", "ba"]}, minContains=2),
    "beside scalars": {"anyOf": [{"enum": ["a", 1]}, distinct(AB, 2)]},
}  # fmt: skip
"""Schemas with few texts."""


@pytest.fixture(autouse=True)
def no_value_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few values and names are left to guards, as many would be."""
    monkeypatch.setattr(arrays, "MAX_LISTED_VALUES", 0)
    monkeypatch.setattr(plan, "MAX_LISTED_NAMES", 0)
    monkeypatch.setattr(graph, "MAX_LISTED_NAMES", 0)


@pytest.fixture(scope="module", params=["byte_level", "embedded"])
def some_backends(request: pytest.FixtureRequest, backends: Backends) -> Backends:
    return backends if request.param == "embedded" else Backends(small_vocabulary(request.param))


def good_texts(schema: Any) -> set[str]:
    """The texts of the schema's values, by enumerating those of the schema without the keyword."""
    validator = jsonschema.Draft202012Validator(schema)
    found = set()
    for text in texts(normalize(without(schema)).productions().prune()):
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
    assert banned or vocabulary.vocab_size > 10_000, "the guard had nothing to do"


@pytest.mark.parametrize("name", TINY)
def test_every_text_with_different_items_can_be_written(name: str, backends: Backends) -> None:
    check_written(TINY[name], backends, good_texts(TINY[name]))


@pytest.mark.parametrize("name", TINY)
def test_a_text_that_is_cut_anywhere_is_completed_with_different_items(name: str, backends: Backends) -> None:
    check_cut_anywhere(TINY[name], backends, good_texts(TINY[name]))


BIG: list[Any] = [
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "items": {"type": "number"}, "uniqueItems": True},
    {"type": "array", "items": {"type": "string", "pattern": "^[01]{2}-[01]{2}$"}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"enum": [f"{a}{b}" for a in "abcdefghij" for b in "0123456789"]}, "uniqueItems": True},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "uniqueItems": True, "items": {
        "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "uniqueItems": True}},
        "required": ["b"]}},
    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BIG)))
@pytest.mark.parametrize("options", [{}, {"whitespace": 2, "key_order": "any"}])
def test_random_answers_of_every_length_repeat_no_item(number: int, options: Any, backends: Backends) -> None:
    vocabulary, template = backends.vocabulary, guarded(BIG[number], backends, **options)
    # Tokens of which few items are made, so that items would often repeat.
    texts = ('"', "a", "b", '":', ",", '{"', '","', "{", "}", "1", "0", "[", "]", '["', "true")
    likely = [id for text in texts if (id := vocabulary.by_bytes[0].get(text.encode()))]
    validator = jsonschema.Draft202012Validator(BIG[number])
    repeated = 0
    for seed in range(12):
        generator = random.Random(seed)
        tokens, bans = answer(template.new(), vocabulary, generator, likely, generator.randrange(100))
        text = text_of(vocabulary, tokens)
        strict(text)
        assert validator.is_valid(json.loads(text)), text
        repeated += bans
    assert repeated, "no item would have been repeated"


ONES: dict[str, Any] = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 9}
"""Arrays of which there is one of each length."""


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"items": {"type": "boolean"}, "minItems": 3},
            "3 different items must exist.*lower minItems",
        ),
        ({"items": {"type": "integer", "minimum": 1, "maximum": 70}, "minItems": 71}, "only 70 values .uniqueItems"),
        ({"prefixItems": [{"type": "string"}, {"const": "a"}], "minItems": 2}, "uniqueItems.*Allow more values"),
        ({"items": ONES, "minItems": 9}, "only 8 values .uniqueItems"),
    ],
)
def test_too_few_different_values_are_refused(schema: Any, message: str, backends: Backends) -> None:
    source = json.dumps({"type": "array", "uniqueItems": True, **schema})
    with pytest.raises(RequestError, match=message):
        compile_constraint(Constraint(kind="json_schema", source=source), backends)


def test_as_many_items_as_there_are_values_can_be_written(backends: Backends) -> None:
    closing = guarded(distinct(ONES, 8, minItems=8), backends).new().closing()
    found = json.loads(text_of(backends.vocabulary, closing))
    assert sorted(map(len, found)) == list(range(2, 10))


def test_the_values_of_a_very_long_array_are_counted_at_once(backends: Backends) -> None:
    items = {**ONES, "minItems": 10**9, "maxItems": 10**9}
    source = json.dumps({"type": "array", "items": items, "uniqueItems": True})
    with pytest.raises(RequestError):
        compile_constraint(Constraint(kind="json_schema", source=source), backends)


MEMBERS: dict[str, Any] = {f"k{number}": {"const": number} for number in range(9)}
ANY_ORDER: dict[str, Any] = {
    "type": "object", "properties": MEMBERS, "required": [*MEMBERS], "additionalProperties": False,
}  # fmt: skip
"""One value, with a text for each of the 362,880 orders."""


def test_another_order_of_members_is_no_other_item() -> None:
    backends = Backends(small_vocabulary("byte_level"))
    grammar = guarded(distinct(ANY_ORDER), backends, key_order="any").new()
    item = json.dumps({name: one["const"] for name, one in MEMBERS.items()}, separators=(",", ":"))
    assert all(map(grammar.accept, backends.vocabulary.encode_greedily(f"[{item}".encode())))
    tokens = allowed(grammar, backends.vocabulary.vocab_size)
    assert {backends.vocabulary.table[token] for token in tokens} == {b"]"}


@pytest.mark.parametrize(
    ("items", "most"),
    [
        ({"type": "integer"}, 4),
        ({"type": "integer", "minimum": 1, "maximum": 1000}, 4),
        ({"type": "string"}, 4),
        ({"type": "string", "format": "date"}, 13),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, 10),
    ],
)
def test_long_arrays_of_different_items_have_short_completions(items: Any, most: int) -> None:
    """A search of each item by length would visit the items before it, and take too many steps."""
    backends, number = Backends(small_vocabulary("byte_level")), 250
    template = guarded({"type": "array", "items": items, "uniqueItems": True, "minItems": number}, backends)
    text = text_of(backends.vocabulary, template.shortest)
    assert len({json.dumps(one) for one in json.loads(text)}) == number
    assert len(text) <= number * (most + 1) + 1


def test_a_completion_takes_a_bounded_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = Backends(small_vocabulary("byte_level"))
    template = guarded({"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 40}, backends)
    assert template.new().closing()
    # Each of the items is found within ten steps, but not all of them within 100.
    monkeypatch.setattr(search, "MAX_STEPS", 100)
    with pytest.raises(GrammarError, match="too many steps"):
        Completer(template.completions.recognizer, backends.vocabulary, template.guard.scanner).complete(
            template.completions.start, template.guard.start, bytearray()
        )


def test_a_mask_takes_a_bounded_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = Backends(small_vocabulary("byte_level"))
    grammar = guarded(distinct({"type": "string", "pattern": "^[ab]{6}$"}, 70), backends).new()
    used = ",".join([json.dumps(f"{number:06b}".translate({48: "a", 49: "b"})) for number in range(64)])
    text = f"[{used}".encode()
    assert all(map(grammar.accept, backends.vocabulary.encode_greedily(text)))
    tokens = allowed(grammar.copy(), backends.vocabulary.vocab_size)
    assert {backends.vocabulary.table[token] for token in tokens} == {b"]"}
    monkeypatch.setattr(search, "MAX_STEPS", 40)
    with pytest.raises(GrammarError, match="too many steps"):
        grammar.copy().mask()


def test_searches_that_skip_known_choices_find_the_same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = Backends(small_vocabulary("byte_level"))
    members = {"type": "object", "patternProperties": {"^[ab]?$": {"const": 1}}, "additionalProperties": False}
    template = guarded(distinct(distinct(members, 2), 2), backends)
    skipped = 0
    for seed in range(4):
        generator, grammar = random.Random(seed), template.new()
        while not grammar.is_terminated():
            here = grammar._positions[-1], grammar._place, grammar._text, grammar._inner.mask()
            bans = template.guard.bans(*here)
            with monkeypatch.context() as patch:
                patch.setattr(search, "_key", lambda *args: (object(),))
                assert bans == template.guard.bans(*here)
            skipped += bool(bans)
            tokens = allowed(grammar, backends.vocabulary.vocab_size)
            texts = {token: backends.vocabulary.table[token] for token in tokens}
            likely = [token for token, text in texts.items() if not text.endswith(b"]")]
            assert grammar.accept(generator.choice(sorted(likely or tokens)))
    assert skipped
