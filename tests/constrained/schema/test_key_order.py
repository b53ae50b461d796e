"""`key_order` "any": declared keys in any order, each at most once."""

from __future__ import annotations

import json
import random
from itertools import permutations, product
from typing import Any

import jsonschema
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.productions import AnyOrder
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.schema import SchemaRefused, normalize
from radixrt.constraint import Constraint, StructuredOptions
from tests.constrained.engines import byte_ids, llguidance_matcher
from tests.constrained.schema.text_checker import written
from tests.constrained.vocabularies import allowed, small_vocabulary

ABC: dict[str, Any] = {"type": "object", "properties": {name: {"type": "null"} for name in "abc"}}
SCHEMAS: list[dict[str, Any]] = [
    {**ABC, "additionalProperties": False},
    {**ABC, "additionalProperties": False, "required": ["b"]},
    {**ABC, "additionalProperties": False, "required": ["a", "b", "c"]},
    {**ABC, "additionalProperties": False, "required": ["c"], "maxProperties": 2},
    {**ABC, "additionalProperties": False, "minProperties": 2},
    {**ABC, "additionalProperties": False, "minProperties": 2, "maxProperties": 2},
    {**ABC, "additionalProperties": {"type": "null"}},
    {**ABC, "additionalProperties": {"type": "null"}, "required": ["a", "c"], "maxProperties": 3},
    {**ABC, "additionalProperties": {"type": "null"}, "required": ["a"], "minProperties": 2},
    {**ABC, "patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
    {**ABC, "patternProperties": {"^x": {"type": "null"}, "^b": {"type": ["null", "boolean"]}}, "required": ["c"]},
    {**ABC, "dependentRequired": {"a": ["b"]}, "additionalProperties": False},
    {
        **ABC,
        "not": {"additionalProperties": {"type": "boolean"}},
        "additionalProperties": {"type": ["null", "boolean"]},
    },
    {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[60:])
@pytest.mark.parametrize("whitespace", [0, 1])
def test_every_order_of_every_set_of_keys(schema: dict[str, Any], whitespace: int) -> None:
    recognizer = Recognizer(normalize(schema, key_order="any").productions(whitespace).prune())
    validator = jsonschema.Draft202012Validator(schema)
    declared_last = "not" in schema
    for count in range(5):
        for names in permutations(["a", "b", "c", "x", "yy"], count):
            text = written(dict.fromkeys(names))
            state = recognizer.advance(recognizer.start(), text)
            valid = validator.is_valid(dict.fromkeys(names))
            is_declared = [name in "abc" for name in names]
            if declared_last and is_declared != sorted(is_declared, reverse=True):
                continue
            assert (state is not None and recognizer.is_complete(state)) is valid, text
    for name in schema["properties"]:
        twice = recognizer.advance(recognizer.start(), f'{{"{name}":null,"{name}"')
        assert twice is None


def test_the_default_is_the_order_of_the_schema() -> None:
    for schema in SCHEMAS:
        productions = normalize(schema).productions()
        assert productions == normalize(schema, key_order="schema").productions()
        assert not any(isinstance(expr, AnyOrder) for expr in productions.layout.order)
    assert normalize(ABC).productions() != normalize(ABC, key_order="any").productions()


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[60:])
def test_masks_along_random_texts(schema: dict[str, Any]) -> None:
    """The recognizer and llguidance allow the same characters, and every text is valid wherever it is closed."""
    productions = normalize(schema, key_order="any", bounded=True).productions().prune()
    recognizer, lark = Recognizer(productions), to_lark(productions, {})
    validator = jsonschema.Draft202012Validator(schema)
    alphabet = {char: byte_ids(char.encode())[0] for char in '{}[]:,"abcxyznultrefs \\'}
    for seed in range(12):
        rng = random.Random(seed)
        state, matcher, text = recognizer.start(), llguidance_matcher(lark), ""
        for _ in range(60):
            possible = [char for char in alphabet if recognizer.advance(state, char) is not None]
            assert [char for char, token in alphabet.items() if matcher.validate_tokens([token])] == possible, text
            closed = text + "".join(map(str, recognizer.closing(state).pieces))
            pairs: list[tuple[str, Any]] = json.loads(closed, object_pairs_hook=list)
            assert validator.is_valid(dict(pairs)), closed
            names = [name for name, _ in pairs if name in schema["properties"]]
            assert len(names) == len(set(names)), closed
            if not possible:
                break
            char = rng.choice([one for one in possible if one != "}"] or possible)
            after = recognizer.advance(state, char)
            assert after is not None
            state, text = after, text + char
            assert matcher.consume_token(alphabet[char])


def test_nested_objects_and_alternatives() -> None:
    schema = {
        "anyOf": [
            {"properties": {"kind": {"const": kind}, "o": {**ABC, "required": ["c"]}}, "required": ["kind", "o"]}
            for kind in ("x", "y")
        ],
        "type": "object",
        "additionalProperties": False,
        "properties": {"kind": {}, "o": {}},
    }
    recognizer = Recognizer(normalize(schema, key_order="any").productions().prune())
    for kind, outer, inner in product("xyz", permutations(["kind", "o"]), permutations("cab", 2)):
        members = {"kind": kind, "o": dict.fromkeys(inner)}
        text = written({name: members[name] for name in outer})
        state = recognizer.advance(recognizer.start(), text)
        valid = kind in "xy" and "c" in inner
        assert (state is not None and recognizer.is_complete(state)) is valid, text


def test_sixty_four_keys_can_be_followed() -> None:
    def schema(count: int) -> dict[str, Any]:
        members = {f"k{number}": {"type": "integer"} for number in range(count)}
        return {"type": "object", "properties": members, "additionalProperties": False, "required": ["k5", "k0"]}

    productions = normalize(schema(64), key_order="any").productions()
    assert productions.shortest["start"] == len('{"k5":0,"k0":0}')
    assert "set_bit(63)" in to_lark(productions, {})
    many = {**schema(65), "required": [f"k{number}" for number in range(65)]}
    with pytest.raises(
        SchemaRefused, match=r"'properties' at '/properties/o'.*up to 64 required properties.*structured.key_order"
    ):
        normalize({"properties": {"o": many}}, key_order="any")


@pytest.mark.parametrize("bounds", [{}, {"maxProperties": 5}, {"minProperties": 4}])
def test_more_keys_than_can_be_followed_do_not_repeat(bounds: dict[str, int]) -> None:
    """Optional members of a wide object have no bits of their own: a guard keeps them from repeating."""
    members = {f"k{number}": {"type": "boolean"} for number in range(90)}
    schema = {
        "type": "object",
        "properties": members,
        "required": ["k5", "k71"],
        "additionalProperties": False,
        **bounds,
    }
    normal = normalize(schema, key_order="any")
    recognizer = Recognizer(normal.productions().prune())
    for names in (["k71", "k5", "k0", "k89"], ["k88", "k5", "k0", "k71"]):
        state = recognizer.advance(recognizer.start(), written(dict.fromkeys(names, True)))
        assert state is not None
        assert recognizer.is_complete(state)
    state = recognizer.advance(recognizer.start(), '{"k88":true,"k5":true,"k1":true,"k2":true')
    assert state is not None
    assert recognizer.advance(state, "}") is None  # k71 is missing
    validator = jsonschema.Draft202012Validator(schema)
    backends = Backends(small_vocabulary("byte_level"))
    options = StructuredOptions(key_order="any")
    constraint = Constraint(kind="json_schema", source=json.dumps(schema), options=options)
    template = load(compile_constraint(constraint, backends), backends)
    vocabulary, rng = backends.vocabulary, random.Random(1)
    longest = 0
    for _ in range(12):
        grammar, tokens = template.new(), []
        for _ in range(rng.randrange(90)):
            possible = sorted(allowed(grammar, vocabulary.vocab_size) - set(vocabulary.eos_ids))
            if not possible:
                break
            tokens.append(rng.choice(possible))
            assert grammar.accept(tokens[-1])
        text = vocabulary.decode([*tokens, *grammar.closing()]).decode()
        pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
        assert validator.is_valid(dict(pairs)), text
        assert len(dict(pairs)) == len(pairs), text
        longest = max(longest, len(pairs))
    assert longest >= 5


def test_listed_values_keep_their_order() -> None:
    recognizer = Recognizer(normalize({"enum": [{"b": 1, "a": 2}]}, key_order="any").productions())
    assert recognizer.advance(recognizer.start(), '{"b":1') is not None
    assert recognizer.advance(recognizer.start(), '{"a":2') is None
