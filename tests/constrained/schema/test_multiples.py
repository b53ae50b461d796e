"""`multipleOf`: languages, masks and completions against arithmetic.

Multiples of a large number are wider in the library's grammar, whose masks the recognizer narrows (`widening`).
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.backends.widening import widened
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.regex import decode, encode, matches, multiples_between, shortest_string, without_remainders
from radixrt.constrained.regex.multiples import is_widened
from radixrt.constrained.regex.nodes import RegexTooComplex
from radixrt.constrained.schema import SchemaRefused, normalize
from radixrt.constrained.schema.emit.free_parts import MAX_DIGITS
from radixrt.constraint import Constraint, StructuredOptions
from radixrt.explain.value_check import accepts
from tests.constrained.mask_oracle import Language, check
from tests.constrained.schema.text_checker import TextChecker
from tests.constrained.vocabularies import allowed, small_vocabulary

SAFE = 2**53 - 1
INTEGER = re.compile(r"0|-?[1-9][0-9]*")
SCHEMAS: list[dict[str, Any]] = [
    {"multipleOf": 7},
    {"multipleOf": 60, "minimum": 1},
    {"multipleOf": 399},
    {"multipleOf": 3600, "minimum": 0},
    {"multipleOf": 86400},
    {"multipleOf": 86400, "minimum": -SAFE, "maximum": SAFE},
    {"multipleOf": 12345, "minimum": -SAFE, "maximum": SAFE},
    {"multipleOf": 4096, "minimum": 0, "maximum": 10**7},
    {"multipleOf": 123457, "exclusiveMinimum": 123457, "maximum": 1_000_000_000},
    {"multipleOf": 9973, "maximum": -9973},
    {"multipleOf": 10**9 + 7, "minimum": 5 * (10**9 + 7), "maximum": 88 * (10**9 + 7) - 1},
    {"multipleOf": 10**60, "minimum": 1},
]


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(small_vocabulary("byte_level"))


def multiples(schema: dict[str, Any]) -> Language:
    """The multiples that a schema allows, as texts, by arithmetic alone."""
    step = schema["multipleOf"]
    least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1 if "exclusiveMinimum" in schema else None)
    most = schema.get("maximum")
    longest = max(MAX_DIGITS + 1, len(str(step)))

    def is_any(low: int, high: int) -> bool:
        """Return whether a multiple is within two bounds, and those of the schema."""
        low, high = low if least is None else max(low, least), high if most is None else min(high, most)
        return low <= high and -(-low // step) <= high // step

    def has(text: str) -> bool:
        digits = len(text.lstrip("-"))
        if not INTEGER.fullmatch(text) or (digits > longest and (least if text[0] == "-" else most) is None):
            return False
        return is_any(int(text), int(text))

    @cache
    def begins(text: str) -> bool:
        if text in ("", "-"):
            return is_any(-(10**longest) + 1, -1) or (not text and is_any(0, 10**longest - 1))
        if not INTEGER.fullmatch(text) or text == "0":
            return has(text)
        size, sign = abs(int(text)), -1 if text[0] == "-" else 1
        for more in range(longest - len(str(size)) + 1):
            first, last = size * 10**more, (size + 1) * 10**more - 1
            if is_any(*sorted((sign * first, sign * last))):
                return True
        return False

    return Language(begins, has)


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_masks_have_exactly_the_tokens_that_lead_to_a_multiple(backends: Backends, schema: dict[str, Any]) -> None:
    constraint = Constraint(kind="json_schema", source=json.dumps({"type": "integer", **schema}))
    assert check(constraint, multiples(schema), backends) > 40


@pytest.mark.parametrize("step", [29, 37, 64, 101, 128])
@pytest.mark.parametrize(("low", "high"), [(-700, 1234), (None, -5), (99, None), (1, 999), (100, 100), (40, 7000)])
def test_multiples_between_bounds_are_those_of_arithmetic(step: int, low: int | None, high: int | None) -> None:
    language = multiples_between(step, low, high)
    (same,) = decode(encode([language])[0])[-1:]
    assert same is language
    wide = without_remainders(language)
    least, most = -8000 if low is None else low, 8000 if high is None else high
    numbers = [number for number in range(-8000, 8001) if matches(language, str(number))]
    assert numbers == [number for number in range(-8000, 8001) if number % step == 0 and least <= number <= most]
    assert all(matches(wide, str(number)) for number in numbers)
    assert not any(matches(language, text) for text in ("-0", "00", f"0{step}", f"{step}.0", ""))
    shortest = shortest_string(language)
    assert (shortest is None) is (not numbers)
    if shortest is not None:
        assert matches(language, shortest)
        assert len(shortest) == min(len(str(number)) for number in numbers)


def test_tokens_that_hold_several_values() -> None:
    """A number may begin and end inside of a token, behind digits of a key too."""
    vocabulary = small_vocabulary("byte_level")
    words = [token for token, data in enumerate(vocabulary.table) if len(data) > 1 and data.isalpha()]
    mixed = [
        b"[1",
        b",12",
        b",-",
        b"12]",
        b"345]}",
        b":[",
        b"0,0",
        b"5,1",
        b"690",
        b"000",
        b"-1",
        b'1"',
        b'a1":[1',
        b"0]",
    ]
    for token, data in zip(words, mixed, strict=False):
        vocabulary.table[token] = data
    vocabulary.text_mask = vocabulary.mask_of(token for token, data in enumerate(vocabulary.table) if data)
    number = SCHEMAS[6]
    single, opening = multiples(number), '{"a1":['

    def begins(text: str) -> bool:
        if len(text) <= len(opening) or not text.startswith(opening):
            return opening.startswith(text)
        body, bracket, end = text[len(opening) :].partition("]")
        *done, last = body.split(",")
        if len(done) > 2 or (bracket and not "}".startswith(end)) or not all(map(single.has, done)):
            return False
        return (not body or single.has(last)) if bracket else single.begins(last)

    items = {"type": "array", "items": {"type": "integer", **number}, "maxItems": 3}
    schema = {"type": "object", "properties": {"a1": items}, "required": ["a1"], "additionalProperties": False}
    constraint = Constraint(kind="json_schema", source=json.dumps(schema))
    language = Language(begins, lambda text: begins(text) and text.endswith("}"))
    assert check(constraint, language, Backends(vocabulary)) > 40


def test_multiples_beside_other_values(backends: Backends) -> None:
    """In objects and arrays, as items that must differ, beside strings, and as constants that are no multiples."""
    number = {"type": "integer", "multipleOf": 12345, "minimum": -SAFE, "maximum": SAFE}
    schema = {
        "type": "object",
        "properties": {
            "a": {"anyOf": [number, {"type": "string", "maxLength": 5}, {"const": 7}]},
            "b": {"type": "array", "items": {**number, "multipleOf": 86400}, "minItems": 1, "uniqueItems": True},
            "c": {"type": "number", "multipleOf": 0.0012347},
        },
        "required": ["a", "b", "c"],
        "additionalProperties": False,
    }
    normal = normalize(schema)
    assert widened(normal.productions()) is not normal.productions()
    template = load(compile_constraint(Constraint(kind="json_schema", source=json.dumps(schema)), backends), backends)
    vocabulary, chosen = backends.vocabulary, random.Random(5)
    for _ in range(8):
        grammar, tokens = template.new(), []
        for _ in range(chosen.randrange(60)):
            options = sorted(allowed(grammar, vocabulary.vocab_size) - set(vocabulary.eos_ids))
            if not options:
                break
            tokens.append(chosen.choice(options))
            assert grammar.accept(tokens[-1])
        value = json.loads(vocabulary.decode([*tokens, *grammar.closing()]))
        assert accepts(normal, value), value
        assert len(set(value["b"])) == len(value["b"])


def test_xgrammar_has_the_same_masks() -> None:
    backends = Backends(small_vocabulary("byte_level"))
    schema = SCHEMAS[6]
    options = StructuredOptions(backend="xgrammar")
    constraint = Constraint(kind="json_schema", source=json.dumps({"type": "integer", **schema}), options=options)
    assert check(constraint, multiples(schema), backends) > 40


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"multipleOf": 3}},
        {"multipleOf": 100, "not": {"multipleOf": 400}, "maximum": 99_999},
        {"multipleOf": 12, "allOf": [{"not": {"multipleOf": n}} for n in (18, 36, 20, 997)], "minimum": -5000},
        {"minimum": 1, "maximum": 10**6, "allOf": [{"not": {"multipleOf": n}} for n in (2, 3, 5, 7, 11, 13, 6.5)]},
        {
            "multipleOf": 420,
            "minimum": 10_000,
            "not": {"anyOf": [{"multipleOf": 630}, {"enum": [10500, 10920, 11760]}]},
        },
        {"anyOf": [{"multipleOf": 33}, {"multipleOf": 77}], "not": {"multipleOf": 12}},
        {"type": "number", "minimum": 1, "not": {"multipleOf": 3}},
        {"type": "number", "multipleOf": 0.5, "not": {"multipleOf": 4}, "minimum": -90, "maximum": 90},
        {"type": "number", "not": {"anyOf": [{"multipleOf": 7}, {"multipleOf": 11}, {"minimum": 1000}]}},
    ],
    ids=str,
)
def test_multiples_that_are_no_other_multiples(backends: Backends, schema: dict[str, Any]) -> None:
    schema = {"type": "integer", **schema}
    normal = normalize(schema)
    checker, chosen = TextChecker(normal), random.Random(2)
    numbers = [*range(-900, 900), *(12 * n for n in range(-900, 900, 7)), *(chosen.randrange(10**7) for _ in range(50))]
    numbers += [10_500, 11_340, 12_600, 13_860, 10**6]
    for number in numbers:
        assert checker.accepts_text(str(number)) is accepts(normal, number), number
    if schema["type"] == "number":
        for tenths in range(-905, 905):
            assert checker.accepts_text(str(tenths / 10)) is accepts(normal, tenths / 10), tenths / 10
    template = load(compile_constraint(Constraint(kind="json_schema", source=json.dumps(schema)), backends), backends)
    for _ in range(20):
        grammar, tokens = template.new(), []
        for _ in range(chosen.randrange(9)):
            options = sorted(allowed(grammar, backends.vocabulary.vocab_size) - set(backends.vocabulary.eos_ids))
            if not options:
                break
            tokens.append(chosen.choice(options))
            assert grammar.accept(tokens[-1])
        assert accepts(normal, json.loads(backends.vocabulary.decode([*tokens, *grammar.closing()])))


def test_multiples_that_only_a_search_could_follow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SchemaRefused, match="more than 1200 states"):
        normalize({"type": "number", "multipleOf": 0.0012347, "maximum": 1000, "minimum": 0})
    monkeypatch.setattr("radixrt.constrained.regex.multiples.Dfa", None)  # those without bounds are counted
    with pytest.raises(SchemaRefused, match="more than 1200 states"):
        normalize({"type": "number", "not": {"anyOf": [{"multipleOf": 99.5}, {"multipleOf": 41.5}]}})


def test_excluded_numbers_are_bounded() -> None:
    """Each digit takes a division by each of them, in the scheduler's thread."""
    primes = [n for n in range(101, 400) if all(n % d for d in range(2, 20))]
    assert matches(multiples_between(1, None, None, tuple(primes[:32])), "5")
    with pytest.raises(RegexTooComplex, match="more than 32 numbers"):
        multiples_between(1, None, None, tuple(primes[:33]))
    with pytest.raises(RegexTooComplex, match="more than 100 digits"):
        multiples_between(1, None, None, (10**60 + 7, 10**60 + 9))


def test_small_automata_are_left_to_the_library() -> None:
    assert not is_widened(multiples_between(7, 0, 10**6))
    assert not is_widened(multiples_between(25, -SAFE, SAFE))
    assert is_widened(multiples_between(997, None, None))
    assert is_widened(multiples_between(1024, -SAFE, SAFE))
