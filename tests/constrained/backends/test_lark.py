"""Productions as llguidance reads them: the same sentences, and the limits of its dialect met."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from radixrt.constrained import regex as regular
from radixrt.constrained.backends.lark import quoted, to_lark
from radixrt.constrained.productions import (
    Alt,
    EmptyLanguage,
    Expr,
    Lit,
    NotExpressible,
    Productions,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
    optional,
)
from radixrt.errors import InvariantError
from tests.constrained.engines import llguidance_accepts, llguidance_language, special_ids
from tests.constrained.grammars import language, random_productions, random_regex, texts

pytest.importorskip("llguidance")


def lark_of(body: Expr, **rules: Expr) -> str:
    return to_lark(Productions({"start": body, **rules}).prune(), special_ids())


def test_random_grammars_of_single_characters_keep_their_language() -> None:
    for seed in range(700):
        productions = random_productions(random.Random(seed), letters=True)
        assert llguidance_language(to_lark(productions, {}), "ab", 6) == language(productions, "ab", 6), seed


def test_random_terminals_with_booleans_keep_their_language() -> None:
    checked = 0
    for seed in range(1200):
        regex = random_regex(random.Random(seed), "ab", 4)
        if not regex.has_boolean:
            continue
        try:
            productions = Productions({"start": Term(regex)}).prune()
        except EmptyLanguage:
            continue
        checked += 1
        assert llguidance_language(to_lark(productions, {}), "ab", 5) == language(productions, "ab", 5), seed
    assert checked > 150


def test_json_strings_and_keys() -> None:
    string = regular.json_string(regular.ANY)
    other = regular.json_string(regular.intersect(regular.ANY, regular.complement(regular.literal("a"))))
    member = Alt((Seq((Lit('"a":'), Term(string))), Seq((Term(other), Lit(":"), Term(regular.integer_range(0, 50))))))
    text = lark_of(Seq((Lit("{"), member, Rep(Seq((Lit(","), member)), 0, None), Lit("}"))))
    assert llguidance_accepts(text, '{"a":"x \\" é😀","b":50,"":0,"aa":7}')
    assert not llguidance_accepts(text, '{"a":5}')
    assert not llguidance_accepts(text, '{"b":51}')
    assert not llguidance_accepts(text, '{"b":"x"}')


def test_every_character_can_stand_in_a_literal() -> None:
    for text in ("\0\x01\x1f\x7f\x80\xa0\n\r\t", "\"\\/#'<>[]{}()|&~?*+", "é漢😀\u2028\ufeff\U0010ffff", "//", "a b"):
        assert llguidance_accepts(lark_of(Seq((Lit(text), Lit("!")))), text + "!"), text
        assert llguidance_accepts(lark_of(Term(regular.alternate(regular.literal(text), regular.ANY_CHAR))), text), text
    assert quoted('"\\\x7f') == '"\\"\\\\\\u007f"'


def test_complements_match_no_broken_utf8() -> None:
    text = lark_of(Seq((Lit("<"), Term(regular.complement(regular.literal("ab"))))))
    assert llguidance_accepts(text, "<é😀")
    assert not llguidance_accepts(text, "<ab")
    assert not llguidance_accepts(text, b"<\xff")
    assert not llguidance_accepts(text, b"<\xc3")


@pytest.mark.parametrize("divisor", [3, 7, 8, 60, 13, 360])
def test_multiples(divisor: int) -> None:
    """Also beside other numbers, and literals that look like the beginning of one."""
    multiple = Term(regular.multiple_of(Decimal(divisor)))
    number = Term(regular.integer_range(0, 1000))
    text = lark_of(Alt((Seq((multiple, Lit(";"))), Seq((number, Lit("!"))), Lit("12?"))))
    for value in (*range(30), *range(divisor * 20 - 3, divisor * 20 + 3), divisor * 98_765):
        assert llguidance_accepts(text, f"{value};") == (value % divisor == 0)
        assert llguidance_accepts(text, f"{value}!") == (value <= 1000)
        assert llguidance_accepts(text, f"{value}?") == (value == 12)
    assert llguidance_accepts(text, f"-{divisor * 5}.00;")
    assert not llguidance_accepts(text, f"{divisor * 5}.01;")


def test_multiples_of_a_fraction() -> None:
    text = lark_of(Term(regular.multiple_of(Decimal("0.01"))))
    for number, accepted in (("1.25", True), ("-3", True), ("1.255", False), ("1.250", True), ("0.1", True)):
        assert llguidance_accepts(text, number) is accepted, number


def test_an_automaton_that_is_too_large() -> None:
    with pytest.raises(NotExpressible, match="more than 1200 states"):
        lark_of(Term(regular.multiple_of(Decimal(1213))))


def test_control_tokens_are_tokens_and_not_their_characters() -> None:
    text = lark_of(Seq((Special("<call>"), Lit("x"), optional(Special("</call>")))))
    ids = special_ids()
    assert llguidance_accepts(text, ids["<call>"], "x")
    assert llguidance_accepts(text, ids["<call>"], "x", ids["</call>"])
    assert not llguidance_accepts(text, "<call>x")
    assert not llguidance_accepts(text, ids["</call>"], "x")
    with pytest.raises(InvariantError, match="no control token"):
        lark_of(Special("<other>"))


def test_names_of_rules_never_meet() -> None:
    deep: Expr = Lit("z")
    for _ in range(30):
        deep = Seq((Lit("("), Alt((deep, Lit("y"))), Lit(")")))
    text = lark_of(
        Seq((Ref("A b"), Ref("a-b"), Ref("a_b_1"), Ref("Start"), Ref("7"), Ref("é"))),
        **{"A b": deep, "a-b": Lit("2"), "a_b_1": Lit("3"), "Start": Lit("4"), "7": Lit("5"), "é": Lit("6")},
    )
    assert llguidance_accepts(text, "(" * 30 + "z" + ")" * 30 + "23456")
    assert llguidance_accepts(text, "(y)23456")


def test_counts_are_never_written_out() -> None:
    text = lark_of(Rep(Seq((Lit("a"), Rep(Lit("b"), 0, 10**9))), 1, 10**9))
    assert len(text) < 100
    assert llguidance_accepts(text, "abbab")
    with pytest.raises(NotExpressible, match="counts to"):
        lark_of(Rep(Lit("a"), 0, 10**10))
    with pytest.raises(NotExpressible, match="four billion"):
        lark_of(Term(regular.repeat(regular.literal("ab"), 0, 10**12)))


def test_long_chains_of_rules_do_not_end_the_process() -> None:
    rules: dict[str, Expr] = {f"r{i}": Seq((Lit("a"), Ref(f"r{i + 1}"))) for i in range(6000)}
    text = to_lark(Productions({"start": Ref("r0"), **rules, "r6000": Lit("b")}), {})
    assert llguidance_accepts(text, "a" * 6000 + "b")
    assert not llguidance_accepts(text, "a" * 5999 + "b")
    assert not llguidance_accepts(text, "b")
    branching = {
        f"r{i}": Alt((Seq((Lit("a"), Ref(f"r{i + 1}"), Ref(f"r{min(i + 7, 3000)}"))), Lit("c"))) for i in range(3000)
    }
    text = to_lark(Productions({"start": Ref("r0"), **branching, "r3000": Lit("b")}), {})
    assert llguidance_accepts(text, "aaccc")


def test_circles_of_thousands_of_rules_are_refused() -> None:
    rules: dict[str, Expr] = {f"r{i}": Seq((Lit("a"), optional(Ref(f"r{(i + 1) % 5000}")))) for i in range(5000)}
    with pytest.raises(NotExpressible, match="circle"):
        to_lark(Productions({"start": Ref("r0"), **rules}), {})
    rules = {f"r{i}": Seq((Lit("a"), Ref(f"r{i + 1}"))) for i in range(30_000)}
    with pytest.raises(NotExpressible, match="rules and terminals"):
        to_lark(Productions({"start": Ref("r0"), **rules, "r30000": Lit("b")}), {})


def test_depth_is_no_danger() -> None:
    body: Expr = Lit("a")
    for _ in range(2000):
        body = Rep(Seq((Lit("("), Alt((body, Lit("b"))), Lit(")"))), 1, 2)
    text = lark_of(body)
    assert llguidance_accepts(text, "(b)")
    assert llguidance_accepts(text, "((b)(b))")


def test_nothing_else_is_accepted_at_the_start_of_a_long_grammar() -> None:
    rules: dict[str, Expr] = {f"r{i}": Seq((Lit("b"), Ref(f"r{i + 1}"))) for i in range(900)}
    text = to_lark(Productions({"start": Seq((Lit("x"), Ref("r0"))), **rules, "r900": Lit("c")}), {})
    assert "NEVER" in text
    assert not any(llguidance_accepts(text, start) for start in texts("abcx", 2))


def test_what_is_used_again_and_again_is_written_once() -> None:
    body: Expr = Seq((Lit("<"), Term(regular.parse_regex("[a-z]{3}", search=False)), Lit(">")))
    for _ in range(30):
        body = Seq((Lit("["), body, Rep(Seq((Lit(","), body)), 0, None), Lit("]")))
    source = lark_of(body)
    assert len(source) < 3000
    text = "<abc>"
    for _ in range(30):
        text = f"[{text}]"
    assert llguidance_accepts(source, text)
    assert not llguidance_accepts(source, text[1:])
