"""Literals are cut where a greedy lexer would otherwise lose a reading: productions of JSON in llguidance."""

from __future__ import annotations

import json
import random

import pytest

from radixrt.constrained import regex as regular
from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.backends.lark_terminals import cut_literals
from radixrt.constrained.productions import (
    NO_TEXT,
    Alt,
    Expr,
    Lit,
    Productions,
    Ref,
    Rep,
    Seq,
    Term,
    alt,
    optional,
    seq,
)
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.recognizer.pushdown import TEXT
from radixrt.constrained.regex import Regex
from tests.constrained.engines import llguidance_accepts

STRING = Term(regular.json_string(regular.ANY))
NUMBER = Term(regular.number_range(None, None))


def other_key(names: list[str]) -> Expr:
    return Term(regular.json_string(regular.intersect(regular.ANY, regular.complement(regular.literals(names)))))


def object_of(rng: random.Random, members: dict[str, Expr], rest: Expr | None) -> Expr:
    """An object whose keys are one literal each with the punctuation around them; the first one is required."""
    parts: list[Expr] = []
    for name, value in members.items():
        key = json.dumps(name)
        if not parts:
            parts.append(seq(Lit("{" + key + ":"), value))
        else:
            member = seq(Lit("," + key + ":"), value)
            parts.append(optional(member) if rng.random() < 0.7 else member)
    if rest is not None:
        parts.append(Rep(seq(Lit(","), other_key(list(members)), Lit(":"), rest), 0, rng.choice([None, 3])))
    return seq(*parts, Lit("}"))


def value(rng: random.Random, depth: int) -> Expr:
    kind = rng.randrange(7 if depth else 4)
    if kind == 0:
        return STRING
    if kind == 1:
        return rng.choice([NUMBER, Term(regular.integer_range(0, 300))])
    if kind == 2:
        words = rng.sample(['"a"', '"ab"', '"b"', "1", "12", "1.5", "true", "null", "[]", "{}", '{"a":1}', "[1]"], 3)
        return alt(*map(Lit, words))
    if kind == 3:
        return alt(Ref("any"), Lit("null"))
    if kind == 4:
        item = value(rng, depth - 1)
        return seq(Lit("["), optional(seq(item, Rep(seq(Lit(","), item), 0, rng.choice([None, 2])))), Lit("]"))
    names = rng.sample(["a", "ab", "b", "key", "1", ","], rng.randint(1, 4))
    members = {name: value(rng, depth - 1) for name in names}
    made = object_of(rng, members, rng.choice([None, STRING, Ref("any")]))
    return made if kind == 5 else alt(made, value(rng, depth - 1))


ANY: dict[str, Expr] = {
    "any": Alt((STRING, NUMBER, Lit("true"), Ref("list"), Ref("map"))),
    "list": seq(Lit("["), optional(seq(Ref("any"), Rep(seq(Lit(","), Ref("any")), 0, None))), Lit("]")),
    "map": seq(Lit("{"), optional(seq(Ref("member"), Rep(seq(Lit(","), Ref("member")), 0, None))), Lit("}")),
    "member": seq(STRING, Lit(":"), Ref("any")),
}


def random_sentence(rng: random.Random, recognizer: Recognizer, steps: int) -> str:
    """Some text that the recognizer takes, closed the shortest way."""
    state = recognizer.start()
    text = ""
    for _ in range(steps):
        if not state.items:
            break
        node, progress, _ = rng.choice(state.items)
        if isinstance(progress, Regex):
            charset = rng.choice(progress.classes())
            likely = [char for char in 'a1b0,:"}]' if char in charset]
            more = rng.choice(likely) if likely else chr(charset.edges[0])
        else:
            assert node.kind == TEXT
            more = node.text[progress : progress + rng.choice([1, 20])]
        after = recognizer.advance(state, more)
        if after is not None:
            state = after
            text += more
    return text + "".join(map(str, recognizer.closing(state).pieces))


def test_llguidance_takes_every_sentence_of_random_objects() -> None:
    pytest.importorskip("llguidance")
    for seed in range(80):
        rng = random.Random(seed)
        productions = Productions(
            {"start": object_of(rng, {"a": value(rng, 2), "b": value(rng, 2)}, STRING), **ANY}
        ).prune()
        recognizer = Recognizer(productions)
        lark = to_lark(productions, {})
        for _ in range(12):
            text = random_sentence(rng, recognizer, rng.choice([5, 30, 100]))
            json.loads(text)
            assert llguidance_accepts(lark, text), (seed, text, lark)


def test_a_key_is_cut_behind_a_comma_that_other_keys_follow() -> None:
    members: dict[str, Expr] = {"a": NUMBER, "b": NUMBER}
    closed = Productions({"start": object_of(random.Random(1), members, None)})
    assert cut_literals(closed) == {}
    opened = Productions({"start": object_of(random.Random(1), members, NUMBER)})
    assert cut_literals(opened) == {',"b":': [",", '"b":']}


def test_a_key_is_cut_behind_its_quote_where_any_key_can_stand() -> None:
    body = alt(seq(Lit('{"b":'), NUMBER, Lit("}")), Ref("map"))
    assert cut_literals(Productions({"start": body, **ANY}).prune()) == {'{"b":': ["{", '"b"', ":"]}


def test_what_only_looks_alike_is_left_whole() -> None:
    words = Alt((Lit("true"), Lit("truer"), Lit("12"), Lit("1"), Lit("1.5"), NUMBER))
    assert cut_literals(Productions({"start": Seq((Lit("["), words, Lit("]")))})) == {}
    assert cut_literals(Productions({"start": Seq((words, Lit("r")))})) == {"truer": ["true", "r"]}


def test_pieces_are_cut_again() -> None:
    body = Rep(Alt((Lit("abc"), Lit("a"), Lit("b"), Lit("c"))), 0, None)
    assert cut_literals(Productions({"start": body})) == {"abc": ["a", "b", "c"]}


def test_long_literals_and_many_of_them_take_no_time() -> None:
    words = Alt(tuple(Lit(f"word{i}") for i in range(20_000)))
    long = Lit('","' * 60_000)
    assert cut_literals(Productions({"start": Seq((Lit('"'), words, long, Lit('"')))})) == {}
    assert cut_literals(Productions({"start": NO_TEXT})) == {}
