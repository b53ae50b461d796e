"""From constraints to grammars: what each kind means, who is chosen, and what is refused with which words."""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import Any

import msgspec
import pytest

from radixrt.constrained.backends.choice import Backends, is_plain
from radixrt.constrained.compile.compiled import CompiledConstraint
from radixrt.constrained.compile.compiler import compile_constraint, load, refusal
from radixrt.constrained.matcher import GrammarError
from radixrt.constrained.productions import Lit, Productions, Ref, Rep, Term, alt
from radixrt.constrained.regex import complement, intersect, parse_regex
from radixrt.constraint import Constraint, StructuredOptions
from radixrt.errors import InvariantError, RequestError
from tests.constrained.vocabularies import small_vocabulary, text_of

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


BOMB_S = 200.0
"""Processor time that ends a test of something endless; each takes well under one second."""


def compiled(kind: Any, source: str, backends: Backends, **options: Any) -> CompiledConstraint:
    return compile_constraint(Constraint(kind=kind, source=source, options=StructuredOptions(**options)), backends)


@pytest.mark.parametrize(
    ("kind", "source", "shortest"),
    [
        ("json_schema", PERSON, '{"name":"","age":0}'),
        ("regex", "(ab){3,5}c?", "ababab"),
        ("ebnf", 'root ::= "(" root ")" | "x"', "x"),
        ("ebnf", 'root ::= item+ "!"\nitem ::= [a-z]+ ","', "a,!"),
        ("choices", '["longer", "long", "long"]', "long"),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "llguidance", "xgrammar"])
def test_the_least_output_of_each_kind(
    kind: str, source: str, shortest: str, backend: str, backends: Backends
) -> None:  # fmt: skip
    made = compiled(kind, source, backends, backend=backend)
    assert made.backend == ("llguidance" if backend == "auto" else backend)
    assert text_of(backends.vocabulary, made.shortest) == shortest
    assert made.min_tokens == len(made.shortest)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=CompiledConstraint)
    assert again == made
    grammar = load(again, backends).new()
    for token in made.shortest:
        assert grammar.accept(token)
    assert grammar.closing() == []


def test_whitespace_is_an_option(backends: Backends) -> None:
    text = '{"name": "A",\n"age": 3}'
    for whitespace, accepted in ((0, False), (1, True)):
        grammar = load(compiled("json_schema", PERSON, backends, whitespace=whitespace), backends).new()
        assert all(map(grammar.accept, backends.vocabulary.encode(text))) == accepted


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("json_schema", "{", "JSON"),
        ("json_schema", "[" * 100_000, ""),
        ("json_schema", '{"type": "nothing"}', "nothing"),
        ("json_schema", '{"enum": []}', ""),
        ("json_schema", '{"$ref": "#"}', ""),
        ("json_schema", '{"type": "array", "items": {"enum": [1]}, "minItems": 2, "uniqueItems": true}', "value"),
        ("json_schema", '{"$ref": "https://example.com/schema"}', "example.com"),
        ("regex", "(a", "closed"),
        ("regex", r"(a+)\1", ""),
        ("regex", r"[[:alpha:]]", "Python"),
        ("ebnf", 'root ::= "a', ""),
        ("ebnf", 'start ::= "a"', "root"),
        ("ebnf", "root ::= root", ""),
        ("ebnf", 'root ::= x', "x"),
        ("structural_tag", "{}", ""),
        ("structural_tag", "nonsense", "JSON"),
        ("structural_tag", '{"type":"structural_tag","format":{"type":"token","token":"<none>"}}', "<none>"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(kind: str, source: str, words: str, backends: Backends) -> None:
    with pytest.raises(RequestError) as caught:
        compiled(kind, source, backends)
    assert words in caught.value.message
    assert caught.value.status == 400
    assert caught.value.param in (kind, None)


def test_a_library_that_cannot_do_it_exactly_says_so(backends: Backends) -> None:
    with pytest.raises(RequestError, match="xgrammar cannot express it"):
        compiled("regex", "([a-z]{1,500} ?){1,500}", backends, backend="xgrammar")


def test_grammars_with_slow_masks_are_refused(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.constrained.backends.choice.MAX_MASK_S", 1e-9)
    with pytest.raises(RequestError, match="one mask takes"):
        compiled("regex", "([a-z]+ ){3}", backends)


def lists(key: str, count: int = 700) -> dict[str, Any]:
    """A schema of lists that begin with an object that has one of so many keys."""
    one = [
        {"type": "object", "properties": {f"{key}{i}": {"type": "null"}}, "required": [f"{key}{i}"]}
        for i in range(count)
    ]
    return {
        "type": "array",
        "prefixItems": [{"anyOf": [{**each, "additionalProperties": False} for each in one]}],
        "items": False,
    }


def test_choices_that_only_together_are_too_many_are_refused(backends: Backends) -> None:
    """llguidance has a limit for the alternatives that are open at one place of a text, here behind its first "["."""
    compiled("json_schema", json.dumps(lists("a")), backends)
    with pytest.raises(RequestError) as refused:
        compiled("json_schema", json.dumps({"anyOf": [lists(key) for key in "abc"]}), backends)
    assert (refused.value.status, refused.value.param, refused.value.code) == (
        400,
        "json_schema",
        "grammar_too_complex",
    )
    assert "alternatives open at one place" in refused.value.message
    assert "offer fewer options" in refused.value.message


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (GrammarError("too many states"), 400, "cannot be enforced: too many states"),
        (MemoryError(), 400, "memory"),
        (RecursionError(), 400, "nested too deeply"),
        (InvariantError("a symbol is missing"), 500, "defect of radixrt (InvariantError)"),
        (KeyError("x"), 500, "defect of radixrt (KeyError)"),
    ],
)
def test_only_a_defect_of_ours_is_not_the_clients_error(error: Exception, status: int, words: str) -> None:
    refused, keyword = refusal(error, Constraint(kind="ebnf", source="x", options=StructuredOptions()))
    assert (refused.status, refused.param, keyword) == (status, "ebnf", "ebnf")
    assert words in refused.message


def test_plain_grammars_are_not_probed() -> None:
    for plain in ("[a-z]+", '"[^"]{0,200}"', "(yes|no)( [a-z]{1,9}){0,3}"):
        assert is_plain(Productions({"start": Term(parse_regex(plain, search=False))})), plain
    for other in ("([a-z]+ ){3}", "((a{1,100}){1,100}){1,100}", "(.*a){30}"):
        assert not is_plain(Productions({"start": Term(parse_regex(other, search=False))})), other
    assert not is_plain(Productions({"start": Rep(Lit("ab"), 0, 10_000)}))
    words, excluded = parse_regex("[a-z]+", search=False), parse_regex("one|two", search=False)
    assert is_plain(Productions({"start": Term(intersect(words, complement(excluded)))}))
    for pair, is_small in (((".*ab1.*", ".*cd2.*"), True), ((".*a.{7}", ".*b.{6}c"), False)):
        both = intersect(*[parse_regex(one, search=False) for one in pair])
        assert both.has_boolean
        assert is_plain(Productions({"start": Term(both)})) is is_small, pair  # as their automaton is small, or large
    choices = [Ref(f"r{i}") for i in range(3)]
    rules = {f"r{i}": alt(*(Lit(f"{i} {j}") for j in range(800))) for i in range(3)}
    assert is_plain(Productions({"start": choices[0], "r0": rules["r0"]}))
    assert not is_plain(Productions({"start": alt(*choices), **rules}))


def test_bombs_are_refused_or_compiled_in_time(backends: Backends) -> None:
    bombs: list[tuple[str, str]] = [
        ("regex", "((a{1,100}){1,100}){1,100}"),
        ("regex", "(a|aa)+" * 50),
        ("regex", "(.*a){30}"),
        ("regex", "[a-z]{0,1000000000}"),
        ("ebnf", 'root ::= "a"{1000000000}'),
        ("ebnf", "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)), 'r60 ::= "a"'])),
        ("json_schema", '{"type": "array", "minItems": 1000000000}'),
        ("json_schema", '{"type": "string", "maxLength": 1000000000}'),
        ("json_schema", json.dumps({"enum": [f"value {i}" for i in range(20_000)]})),
        ("choices", json.dumps([f"{random.Random(i).random()}" for i in range(10_000)])),
    ]
    for kind, source in bombs:
        started = time.process_time()
        with contextlib.suppress(RequestError):
            compiled(kind, source, backends)
        assert time.process_time() - started < BOMB_S, (kind, source[:80])


def test_a_text_that_the_model_cannot_write_is_refused() -> None:
    backends = Backends(small_vocabulary("unigram"))
    with pytest.raises(RequestError, match="no token"):
        compiled("choices", '["\u2603"]', backends)
