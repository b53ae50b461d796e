"""Parts in any order: the recognizer and llguidance against enumerated languages."""

from __future__ import annotations

import random

import pytest

from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.backends.xgrammar_backend import to_ebnf
from radixrt.constrained.productions import (
    AnyOrder,
    EmptyLanguage,
    Lit,
    NotExpressible,
    Part,
    Productions,
    Ref,
    Rep,
    Seq,
    alt,
    left_recursion,
    optional,
)
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.stop_strings import check_stops
from radixrt.errors import InvariantError, RequestError
from tests.constrained.engines import byte_ids, llguidance_language, llguidance_matcher
from tests.constrained.grammars import language, random_parts
from tests.constrained.recognizer.test_recognizer import check_against


def random_grammar(seed: int, separator: str = ",") -> Productions | None:
    """Parts in any order beside other rules, which may call them again; None for a grammar without texts."""
    rng = random.Random(seed)
    parts = random_parts(rng, ["inner"], "ab", separator)
    inner = alt(Lit("a"), Seq((Lit("["), random_parts(rng, ["start", "inner"], "ab", separator), Lit("]"))))
    bodies = [Seq((Lit("["), parts, Lit("]"))), Seq((Lit("["), optional(parts), Lit("]"))), Seq((parts, Lit("]")))]
    try:
        productions = Productions({"start": rng.choice(bodies), "inner": inner}).prune()
    except EmptyLanguage:
        return None
    if left_recursion(productions):
        return None
    productions.validate()
    return productions


def test_the_recognizer_follows_parts_in_any_order_exactly() -> None:
    checked = 0
    for seed in range(150):
        productions = random_grammar(seed)
        if productions is not None:
            check_against(productions, "ab,[]", 6)
            checked += 1
    assert checked > 80


def test_separators_may_be_missing_and_parts_may_look_alike() -> None:
    for seed in range(200):
        productions = random_grammar(seed, separator="")
        if productions is not None:
            check_against(productions, "ab]", 7)


def test_encoding_keeps_parts_and_shares_equal_ones() -> None:
    parts = (Part(Lit("a"), Lit(",a"), 1, 1), Part(Ref("x"), Seq((Lit(","), Ref("x"))), 0, None))
    rules = {
        "start": Seq((AnyOrder(parts, 1, 2**70), AnyOrder(parts, 1, 2**70), AnyOrder(parts, 2, None))),
        "x": Lit("b"),
    }
    productions = Productions(rules)
    assert Productions.decode(productions.encode()) == productions
    assert len([kind for kind in productions.layout.kinds if kind == 5]) == 2


def test_parts_without_a_text_are_pruned() -> None:
    dead = Part(Ref("dead"), Ref("dead"), 0, None)
    rules = {"start": AnyOrder((Part(Lit("a"), Lit(",a"), 0, 2), dead), 1, None), "dead": Seq((Lit("x"), Ref("dead")))}
    assert Productions(rules).prune().rules == {"start": AnyOrder((Part(Lit("a"), Lit(",a"), 0, 2),), 1, None)}
    needed = AnyOrder((Part(Lit("a"), Lit(",a"), 0, 2), Part(Ref("dead"), Ref("dead"), 1, None)), 1, None)
    with pytest.raises(EmptyLanguage):
        Productions({**rules, "start": needed}).prune()
    for low, high in ((3, None), (1, 0)):
        with pytest.raises(EmptyLanguage):
            Productions({**rules, "start": AnyOrder((Part(Lit("a"), Lit(",a"), 0, 2), dead), low, high)}).prune()


def test_parts_that_may_be_empty_are_a_defect() -> None:
    part = Part(Rep(Lit("a"), 0, None), Lit(",a"), 0, 2)
    with pytest.raises(InvariantError, match="may be empty"):
        Productions({"start": AnyOrder((part,), 1, None)}).validate()
    with pytest.raises(InvariantError, match="bounds"):
        Productions({"start": AnyOrder((Part(Lit("a"), Lit(",a"), 0, 2),), 0, None)}).validate()


def test_large_counts_are_not_unrolled() -> None:
    parts = (Part(Lit("a"), Lit(",a"), 10**9, None), Part(Lit("b"), Lit(",b"), 0, None))
    productions = Productions({"start": AnyOrder(parts, 1, None)})
    assert productions.shortest["start"] == 2 * 10**9 - 1
    recognizer = Recognizer(productions)
    state = recognizer.advance(recognizer.start(), "b,a,a")
    assert state is not None
    assert recognizer.closing_length(state) == 2 * (10**9 - 2)


def test_the_meaning_of_the_bounds() -> None:
    parts = tuple(Part(Lit(char), Lit("," + char), low, high) for char, low, high in (("a", 1, 1), ("b", 0, 1)))
    found = language(Productions({"start": AnyOrder(parts, 1, None)}), "ab,", 5)
    assert found == {"a", "a,b", "b,a"}


def test_llguidance_reads_the_same_language() -> None:
    checked = 0
    for seed in range(250):
        productions = random_grammar(seed)
        if productions is not None:
            lark = to_lark(productions, {})
            found = llguidance_language(lark, "ab,[]", 6)
            assert found == language(productions, "ab,[]", 6), (seed, lark)
            checked += 1
    assert checked > 130


def test_the_masks_of_both_agree_far_from_the_beginning() -> None:
    """llguidance allows a character exactly where the recognizer does, along random texts of up to 200 characters."""
    for seed in range(60):
        rng = random.Random(seed)
        parts = []
        for char in "abcdef"[: rng.randint(2, 6)]:
            low = rng.choice([0, 0, 1, 1, 5, 20])
            high = rng.choice([None, low, low + 1, low + 9]) if low else rng.choice([1, None, 3])
            parts.append(Part(Lit(char), Lit("," + char), low, high))
        least = rng.choice([1, 1, 12])
        order = AnyOrder(tuple(parts), least, rng.choice([None, least + sum(part.low for part in parts)]))
        try:
            productions = Productions({"start": Seq((order, Lit("]")))}).prune()
            lark = to_lark(productions, {})
        except (EmptyLanguage, NotExpressible):
            continue
        recognizer, matcher = Recognizer(productions), llguidance_matcher(lark)
        tokens = {char: byte_ids(char.encode())[0] for char in "abcdef,]"}
        state = recognizer.start()
        for _ in range(200):
            possible = [char for char in tokens if recognizer.advance(state, char) is not None]
            assert [char for char, token in tokens.items() if matcher.validate_tokens([token])] == possible, seed
            if not possible:
                break
            char = rng.choice([one for one in possible if one != "]"] or possible)
            after = recognizer.advance(state, char)
            assert after is not None
            state = after
            assert matcher.consume_token(tokens[char])


def test_more_than_llguidance_can_count_is_told() -> None:
    def keys(count: int, most: int | None) -> Productions:
        parts = tuple(Part(Lit(chr(256 + i)), Lit("," + chr(256 + i)), 0, most) for i in range(count))
        return Productions({"start": AnyOrder(parts, 1, None)})

    assert "set_bit(63)" in to_lark(keys(64, 1), {})
    with pytest.raises(NotExpressible, match="take 65 bits"):
        to_lark(keys(65, 1), {})
    with pytest.raises(NotExpressible, match="counted to 1000"):
        to_lark(keys(1, 1000), {})
    with pytest.raises(NotExpressible, match="any order"):
        to_ebnf(keys(2, 1))


def test_stop_strings_are_found_in_parts() -> None:
    parts = tuple(Part(Lit(char), Lit("," + char), 0, 1) for char in "ab")
    productions = Productions({"start": AnyOrder(parts, 1, None)})
    check_stops(productions, ["a,c"])
    with pytest.raises(RequestError):
        check_stops(productions, ["b,a"])
