"""Productions: their properties, pruning, the wire form, left recursion."""

from __future__ import annotations

import random

import pytest

from radixrt.constrained import regex as regular
from radixrt.constrained.productions import (
    NO_TEXT,
    NOTHING,
    Alt,
    EmptyLanguage,
    Expr,
    Lit,
    Productions,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
    alt,
    left_recursion,
    length_of,
    optional,
    postorder,
    seq,
)
from radixrt.constrained.productions.layout import AGAIN, ALL, CALL
from radixrt.constrained.productions.maximal_munch import Terminal, followers, terminals_of
from radixrt.errors import InvariantError, RequestError
from tests.constrained.grammars import language, random_expr, random_productions

NEVER = Term(regular.EMPTY)


def grammar(**rules: Expr) -> Productions:
    return Productions(rules)


def test_shortest_counts_characters_and_control_tokens() -> None:
    productions = grammar(
        start=Seq((Special("<a>"), Ref("pair"), Rep(Lit("xy"), 3, None))),
        pair=Alt((Seq((Lit("("), Ref("pair"), Lit(")"))), Term(regular.parse_regex("a{2,5}", search=False)))),
        never=Seq((Lit("a"), Ref("never"))),
    )
    assert productions.shortest == {"start": 1 + 2 + 6, "pair": 2}


def test_shortest_of_counts_that_nobody_could_write_out() -> None:
    productions = grammar(start=Rep(Rep(Lit("ab"), 10**9, None), 10**9, 10**12))
    assert productions.shortest["start"] == 2 * 10**18


def test_length_of_an_expression() -> None:
    assert length_of(Seq((Lit("ab"), Ref("r"))), {"r": 3}) == 5
    assert length_of(Ref("unknown"), {}) is None
    assert length_of(NOTHING, {}) is None
    assert length_of(Rep(NOTHING, 0, 3), {}) == 0


def test_size_counts_shared_expressions_once() -> None:
    shared = Seq((Lit("abc"), Lit("d")))
    assert grammar(start=Alt((shared, shared))).size == 2 + (1 + 3) + (1 + 1)


def test_constructors_flatten_and_drop_what_says_nothing() -> None:
    assert seq(Lit("a"), seq(Lit("b"), Lit("c")), Lit("")) == Seq((Lit("a"), Lit("b"), Lit("c")))
    assert seq(Lit("a"), NOTHING) is NOTHING
    assert seq() == NO_TEXT
    assert seq(Lit("a")) == Lit("a")
    assert alt() is NOTHING
    assert alt(Lit("a"), alt(Lit("b"), Lit("a"))) == Alt((Lit("a"), Lit("b")))
    assert optional(Lit("a")) == Rep(Lit("a"), 0, 1)


def test_validate_names_what_is_missing_or_impossible() -> None:
    with pytest.raises(InvariantError, match="root rule 'start'"):
        Productions({"other": Lit("a")}).validate()
    with pytest.raises(InvariantError, match="'start' refers to 'b', which is not defined"):
        grammar(start=Ref("b")).validate()
    with pytest.raises(InvariantError, match="repeats from 3 to 2"):
        grammar(start=Rep(Lit("a"), 3, 2)).validate()
    with pytest.raises(InvariantError, match="left recursion through start, b"):
        grammar(start=Seq((Ref("b"), Lit("x"))), b=Alt((Ref("start"), Lit("y")))).validate()


@pytest.mark.parametrize(
    ("rules", "recursive"),
    [
        ({"start": Seq((Lit("a"), Ref("start")))}, False),
        ({"start": Alt((Seq((Ref("start"), Lit("a"))), Lit("b")))}, True),
        ({"start": Alt((Seq((optional(Lit("a")), Ref("start"))), Lit("b")))}, True),
        ({"start": Alt((Rep(Ref("start"), 0, 0), Lit("b")))}, False),
        ({"start": Seq((Ref("empty"), Ref("start"))), "empty": Lit("")}, True),
        ({"start": Alt((Seq((Special("<a>"), Ref("start"))), Lit("b")))}, False),
        ({"start": Rep(Seq((Lit("a"), optional(Ref("start")))), 1, None)}, False),
    ],
)
def test_left_recursion_is_found_behind_what_may_be_empty(rules: dict[str, Expr], recursive: bool) -> None:
    assert bool(left_recursion(Productions(rules))) is recursive


def test_prune_drops_options_and_rules_without_a_text() -> None:
    productions = grammar(
        start=Alt((Seq((Lit("a"), Ref("dead"))), Ref("live"), NEVER, Rep(Ref("dead"), 1, 3))),
        dead=Seq((Lit("b"), Ref("dead"))),
        live=Seq((Lit("c"), Rep(Ref("dead"), 0, 3), Rep(Lit("d"), 0, 0))),
        unused=Lit("e"),
    )
    assert productions.prune().rules == {"start": Ref("live"), "live": Seq((Lit("c"), NO_TEXT, NO_TEXT))}


def test_prune_keeps_what_is_whole_as_the_same_object() -> None:
    productions = grammar(start=Alt((Seq((Lit("a"), Ref("b"))), Lit("c"))), b=Term(regular.ANY))
    assert productions.prune().rules["start"] is productions.rules["start"]


def test_prune_refuses_a_grammar_without_a_sentence() -> None:
    contradiction = regular.intersect(regular.literal("a"), regular.complement(regular.literal("a")))
    for body in (Ref("start"), NOTHING, Seq((Lit("a"), NEVER)), Term(contradiction), Rep(NEVER, 2, None)):
        with pytest.raises(EmptyLanguage) as caught:
            grammar(start=body).prune()
        assert isinstance(caught.value, RequestError)
        assert caught.value.code == "empty_language"


def test_prune_keeps_the_language_of_random_grammars() -> None:
    rng = random.Random(7)
    for _ in range(200):
        names = ["start", "a", "b"]
        productions = Productions({name: random_expr(rng, names, "ab", 3, letters=False) for name in names})
        expected = language(productions, "ab", 4)
        try:
            pruned = productions.prune()
        except EmptyLanguage:
            assert not expected
            continue
        assert language(pruned, "ab", 4) == expected
        assert set(pruned.shortest) == set(pruned.rules)


def test_wire_form_of_random_grammars() -> None:
    rng = random.Random(3)
    for _ in range(200):
        productions = random_productions(rng)
        again = Productions.decode(productions.encode())
        assert again.rules.keys() <= productions.rules.keys()  # of rules with the same body one is enough
        assert Productions.decode(again.encode()) == again
        assert language(again, "ab", 4) == language(productions, "ab", 4)
        same = len(set(productions.rules.values())) < len(productions.rules)
        assert same or again == productions
        assert same or list(again.rules) == list(productions.rules)


def test_wire_form_keeps_sharing_counts_and_every_kind() -> None:
    item: Expr = Seq((Lit("é\0😀"), Special("<x>"), Term(regular.parse_regex("(?!ab)[^c]*", search=False))))
    for _ in range(50):
        item = Seq((item, item))
    productions = grammar(start=Rep(item, 10**30, None), other=Rep(Ref("start"), 0, 10**25))
    data = productions.encode()
    assert len(data) < 3000
    again = Productions.decode(data)
    assert again.rules["other"] == Rep(Ref("start"), 0, 10**25)
    assert len(postorder(again.rules.values())) == len(postorder(productions.rules.values()))


def test_equal_expressions_and_rules_with_equal_bodies_are_one_row() -> None:
    def pair(rule: str) -> Expr:
        return Seq((Lit("a"), Rep(Ref(rule), 0, 1)))

    productions = grammar(start=Alt((Ref("x"), Ref("y"), Ref("z"))), x=pair("v"), y=pair("w"), z=pair("x"),
                          v=Lit("b"), w=Lit("b"))  # fmt: skip
    layout = productions.layout
    assert layout.bodies["x"] == layout.bodies["y"] != layout.bodies["z"]
    assert sum(isinstance(expr, Ref) for expr in layout.order) == 3  # of b, of its pair and of the pair's pair
    assert len(layout.distinct("start")) == 4
    assert productions.prune() is productions
    again = Productions.decode(productions.encode())
    assert language(again, "ab", 3) == language(productions, "ab", 3) == {"a", "ab", "aa", "aab"}


def test_depth_is_no_danger() -> None:
    body: Expr = Lit("a")
    for _ in range(20_000):  # the interpreter allows 1,000 calls
        body = Rep(Seq((Lit("("), Alt((body, Lit(""))), Lit(")"))), 1, 2)
    productions = grammar(start=body)
    productions.validate()
    assert productions.prune().shortest["start"] == 2
    assert Productions.decode(productions.encode()).shortest["start"] == 2


def test_a_chain_of_rules_is_no_danger() -> None:
    rules: dict[str, Expr] = {f"r{i}": Seq((Lit("a"), Ref(f"r{i + 1}"))) for i in range(20_000)}
    productions = Productions({**rules, "r20000": Lit("")}, "r0")
    productions.validate()
    assert productions.prune().shortest["r0"] == 20_000


def test_rows_have_called_rules_before_their_callers() -> None:
    rules: dict[str, Expr] = {f"r{i}": Alt((Seq((Lit("a"), Ref(f"r{i + 1}"))), Ref(f"r{i + 1}"))) for i in range(50)}
    layout = Productions({**rules, "r50": Lit("b")}, "r0").layout
    assert all(0 <= body < row for row, body in enumerate(layout.called) if isinstance(layout.order[row], Ref))


def test_rows_have_parts_before_their_wholes_where_rules_call_one_another() -> None:
    rng = random.Random(5)
    for _ in range(300):
        shared: list[Expr] = [Lit("a"), *(Ref(name) for name in "xyz")]
        for _ in range(8):
            shared.append(rng.choice((Seq, Alt))(tuple(rng.choices(shared, k=2))))
        productions = grammar(start=Ref("x"), **dict(zip("xyz", rng.sample(shared[4:], 3), strict=True)))
        layout = productions.layout
        assert all(one < row for row, below in enumerate(layout.below) for one in below)
        rows = {layout.row(expr) for expr in postorder(productions.rules.values())}
        assert rows == set(range(len(layout.order)))
        assert len(set(layout.order)) == len(layout.order)
        assert all(layout.lengths[row] == layout.lengths[body] for row, body in enumerate(layout.called) if body >= 0)


def _followers_by_repetition(productions: Productions, begins: dict[Terminal, int]) -> dict[Terminal, int]:
    """The bits that may follow each terminal: every rule of the definition, again and again."""
    layout = productions.layout
    firsts = [0] * len(layout.order)
    for row, terminal in layout.terminals:
        firsts[row] = begins[terminal]
    after = [0] * len(layout.order)
    for _ in range(2 * len(layout.order)):
        for row, (expr, kind) in enumerate(zip(layout.order, layout.kinds)):
            below = (layout.called[row],) if kind == CALL else layout.below[row]
            repeats = isinstance(expr, Rep) and (expr.high is None or expr.high > 1)
            for place, one in enumerate(below):
                if kind != ALL or all(layout.lengths[part] == 0 for part in below[:place]):
                    firsts[row] |= firsts[one]
                if kind == ALL:
                    for more, part in enumerate(below[place + 1 :], place + 1):
                        if all(layout.lengths[between] == 0 for between in below[place + 1 : more]):
                            after[one] |= firsts[part]
                if kind != ALL or all(layout.lengths[part] == 0 for part in below[place + 1 :]):
                    after[one] |= after[row] | (firsts[one] if kind == AGAIN and repeats else 0)
    return {terminal: after[row] for row, terminal in layout.terminals}


def test_followers_of_random_grammars() -> None:
    rng = random.Random(11)
    late = 0
    for _ in range(150):
        names = ["start", *"vwxyz"]
        productions = Productions({name: random_expr(rng, names, "abcd", 3, letters=False) for name in names})
        if "start" not in productions.shortest:
            continue
        productions = productions.prune()
        begins = {terminal: 1 << place for place, terminal in enumerate(terminals_of(productions))}
        assert followers(productions, begins) == _followers_by_repetition(productions, begins)
        called = productions.layout.called
        late += any(body > row for row, body in enumerate(called))
    assert late > 10  # rules that call one another, whose sets change after they were passed on


def test_lengths_and_followers_where_every_rule_depends_on_every_other() -> None:
    """Each rule calls the next and the one before."""
    size = 3000
    rules: dict[str, Expr] = {
        f"r{i}": Alt((Seq((Lit(f"<{i}"), Ref(f"r{(i + 1) % size}"), optional(Ref(f"r{i - 1}")))), Lit("x")))
        for i in range(1, size)
    }
    productions = Productions({"r0": Ref("r1"), **rules}, "r0")
    productions.prune()
    texts = dict.fromkeys(terminals_of(productions), 1) | {"x": 2}
    assert set(productions.shortest.values()) == {1}
    assert followers(productions, texts)["x"] == 3
