"""Terminals made of single characters, and the rule that makes them right for a greedy lexer."""

from __future__ import annotations

import random

import pytest

from radixrt.constrained import regex as regular
from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.productions import Expr, Lit, Productions, Ref, Term, alt, postorder, seq
from radixrt.constrained.productions.ebnf import parse_ebnf
from radixrt.constrained.productions.maximal_munch import MaximalMunch
from radixrt.constrained.productions.terminal_inference import with_terminals
from radixrt.constrained.regex import Regex, matches
from tests.constrained.engines import llguidance_language
from tests.constrained.grammars import language, random_productions
from tests.constrained.productions.test_ebnf import JSON


def terminals(productions: Productions) -> list[Regex]:
    found: dict[Regex, None] = {}
    for expr in postorder(productions.rules.values()):
        if isinstance(expr, Term):
            found[expr.regex] = None
        elif isinstance(expr, Lit) and expr.text:
            found[regular.literal(expr.text)] = None
    return list(found)


def as_terms(productions: Productions) -> Productions:
    def visit(expr: Expr) -> Expr:
        return Term(regular.literal(expr.text)) if isinstance(expr, Lit) else expr

    return productions.rewrite(visit)


def is_terminal(productions: Productions, *accepted: str) -> bool:
    """Return True if one terminal reads each of the texts."""
    return any(all(matches(regex, text) for text in accepted) for regex in terminals(productions))


def test_a_regular_grammar_is_one_terminal() -> None:
    productions = parse_ebnf('root ::= (w " "?){1,100}\nw ::= [a-z]{1,20}')
    assert len(terminals(productions)) == 1


def test_strings_numbers_and_words_of_json_are_terminals() -> None:
    productions = parse_ebnf(JSON)
    assert is_terminal(productions, '"a\\nb" ', '""')
    assert is_terminal(productions, "-12.5e3", "0 ")
    assert is_terminal(productions, "true", "null")
    assert len(terminals(productions)) < 15


def test_a_word_and_a_name_that_begins_like_it_stay_apart() -> None:
    productions = parse_ebnf('root ::= s\ns ::= "(" s ")" | "if" [a-z]+ "!" | [a-z]+ "?"')
    assert not is_terminal(productions, "if")
    recursive = parse_ebnf('root ::= s\ns ::= "(" s ")" | "if " [a-z]+ "!" | [a-z]+ "?"')
    assert is_terminal(recursive, "if x!")


def test_a_literal_is_cut_just_where_another_one_may_end() -> None:
    productions = parse_ebnf('root ::= "[" root ("," root)* "]" | "{" root ",key:" root "}" | "k" root | "x"')
    assert is_terminal(productions, "key:")
    assert is_terminal(productions, ",")
    assert not is_terminal(productions, ",key:")


def test_the_rule_holds_and_the_language_stays() -> None:
    pytest.importorskip("llguidance")
    larger = 0
    for seed in range(400):
        productions = random_productions(random.Random(seed), letters=True)
        made = with_terminals(productions)
        assert language(made, "ab", 6) == language(productions, "ab", 6), seed
        assert llguidance_language(to_lark(made, {}), "ab", 6) == language(productions, "ab", 6), seed
        assert not MaximalMunch().violations(made), seed
        larger += any(regex.max_length != 1 for regex in terminals(made))
    assert larger > 100


@pytest.mark.parametrize(
    ("first", "second", "after", "length"),
    [
        ("ab", "abc", "c", 2),
        ("ab", "abc", "x", None),
        ("[a-z]+", "[a-z]+", "ab", 1),
        ("[a-z]+", "[a-z]+", "AB", None),
        ('"[^"]*"', '"key":', ":", 5),
        ('"[^"]*"', '"key":', ",", None),
        ("a|ab", "a*c|abd", "d", 2),
        ("a{5}", "a{9}", "a", 5),
    ],
)
def test_the_rule_for_two_terminals(first: str, second: str, after: str, length: int | None) -> None:
    """The rule asks about all pairs: here T is followed by a class, and U stands somewhere else."""
    shorter, longer = (Term(regular.parse_regex(pattern, search=False)) for pattern in (first, second))
    follow = Term(regular.chars(regular.CharSet.of(after)))
    rules: dict[str, Expr] = {"start": Ref("one"), "one": shorter, "two": longer, "end": follow}
    productions = Productions(
        rules | {"start": alt(seq(Ref("one"), Ref("end")), seq(Lit("-"), Ref("two")))}  # "-" follows nothing
    )
    found = MaximalMunch().violations(as_terms(productions))
    assert found.get(longer.regex) == length
