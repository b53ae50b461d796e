"""Small random grammars and, computed in the plainest way, what they mean."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from radixrt.constrained import regex as regular
from radixrt.constrained.productions import (
    Alt,
    AnyOrder,
    EmptyLanguage,
    Expr,
    Lit,
    Part,
    Productions,
    Ref,
    Rep,
    Seq,
    Term,
    left_recursion,
)
from radixrt.constrained.regex import matches


def texts(alphabet: str, longest: int) -> Iterator[str]:
    """Every text over the alphabet, up to a length."""
    for length in range(longest + 1):
        for chars in product(alphabet, repeat=length):
            yield "".join(chars)


def language(productions: Productions, alphabet: str, longest: int) -> set[str]:
    """All sentences up to a length, by adding texts to rules until nothing changes."""
    every = list(texts(alphabet, longest))
    members: dict[regular.Regex, set[str]] = {}
    known: dict[str, set[str]] = {name: set() for name in productions.rules}

    def joined(left: set[str], right: set[str]) -> set[str]:
        return {a + b for a in left for b in right if len(a) + len(b) <= longest}

    def meaning(expr: Expr) -> set[str]:
        if isinstance(expr, Lit):
            return {expr.text} if len(expr.text) <= longest else set()
        if isinstance(expr, Term):
            if expr.regex not in members:
                members[expr.regex] = {text for text in every if matches(expr.regex, text)}
            return members[expr.regex]
        if isinstance(expr, Ref):
            return known[expr.rule]
        if isinstance(expr, Seq):
            found = {""}
            for part in expr.parts:
                found = joined(found, meaning(part))
            return found
        if isinstance(expr, Alt):
            return set().union(*map(meaning, expr.options))
        if isinstance(expr, AnyOrder):
            return in_any_order(expr, [(meaning(part.first), meaning(part.later)) for part in expr.parts])
        assert isinstance(expr, Rep)
        item = meaning(expr.item)
        found, power, count = set(), {""}, 0
        low = 0 if "" in item else expr.low
        while power and (expr.high is None or count <= expr.high) and count <= low + longest:
            if count >= low:
                found |= power
            power = joined(power, item - {""} if count >= low else item)
            count += 1
        return found

    def in_any_order(expr: AnyOrder, parts: list[tuple[set[str], set[str]]]) -> set[str]:
        found: set[str] = set()
        pending: dict[tuple[int, ...], set[str]] = {(0,) * len(parts): {""}}
        while pending:
            longer: dict[tuple[int, ...], set[str]] = {}
            for counts, before in pending.items():
                bounds = [(part.low, part.high) for part in expr.parts]
                if all(n >= low and (high is None or n <= high) for n, (low, high) in zip(counts, bounds)) and (
                    expr.low <= sum(counts) <= (longest if expr.high is None else expr.high)
                ):
                    found |= before
                for place, (first, later) in enumerate(parts):
                    after = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
                    if more := joined(before, later if sum(counts) else first):
                        longer.setdefault(after, set()).update(more)
            pending = longer
        return found

    changed = True
    while changed:
        changed = False
        for name, body in productions.rules.items():
            found = meaning(body)
            if found != known[name]:
                known[name] = found
                changed = True
    return known[productions.start]


def random_expr(rng: random.Random, rules: list[str], alphabet: str, depth: int, *, letters: bool) -> Expr:
    """An expression; with `letters`, its terminals read one character each."""
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        pick = rng.random()
        if pick < 0.3:
            return Ref(rng.choice(rules))
        if pick < 0.7:
            return Lit("".join(rng.choices(alphabet, k=1 if letters else rng.choice([0, 1, 1, 2]))))
        charset = regular.chars(regular.CharSet.of(rng.sample(alphabet, rng.randint(1, len(alphabet)))))
        if letters or pick < 0.85:
            return Term(charset)
        return Term(random_regex(rng, alphabet, 2))
    if kind < 0.6:
        return Seq(
            tuple(random_expr(rng, rules, alphabet, depth - 1, letters=letters) for _ in range(rng.randint(0, 3)))
        )
    if kind < 0.8:
        return Alt(
            tuple(random_expr(rng, rules, alphabet, depth - 1, letters=letters) for _ in range(rng.randint(1, 3)))
        )
    low = rng.choice([0, 0, 0, 1, 1, 2, 3])
    high = rng.choice([None, low, low + 1, low + 2, low + 5])
    return Rep(random_expr(rng, rules, alphabet, depth - 1, letters=letters), low, high)


def random_parts(rng: random.Random, rules: list[str], alphabet: str, separator: str) -> AnyOrder:
    """Two to four parts in any order, with a separator, with random bounds that may exclude one another."""
    parts = []
    for _ in range(rng.randint(2, 4)):
        while not _is_nonempty(first := random_expr(rng, rules, alphabet, 1, letters=True)):
            pass
        low = rng.choice([0, 0, 1, 1, 2])
        high = rng.choice([None, max(low, 1), low + 1, low + 2])
        parts.append(Part(first, Seq((Lit(separator), first)), low, high))
    least = rng.choice([1, 1, 2, 3])
    return AnyOrder(tuple(parts), least, rng.choice([None, None, least, least + 1, least + 3]))


def _is_nonempty(expr: Expr) -> bool:
    """Return True if the expression reads at least a character, whatever rules it calls."""
    if isinstance(expr, Seq):
        return any(map(_is_nonempty, expr.parts))
    if isinstance(expr, Alt):
        return bool(expr.options) and all(map(_is_nonempty, expr.options))
    return isinstance(expr, Lit | Term) and expr != Lit("")


def random_regex(rng: random.Random, alphabet: str, depth: int) -> regular.Regex:
    """A small regular language, with intersections and complements."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return regular.literal("".join(rng.choices(alphabet, k=rng.randint(0, 2))))
    left, right = (random_regex(rng, alphabet, depth - 1) for _ in range(2))
    if kind < 0.45:
        return regular.concat(left, right)
    if kind < 0.65:
        return regular.alternate(left, right)
    if kind < 0.85:
        return regular.repeat(left, rng.randint(0, 2), rng.choice([None, 2, 4]))
    letters = regular.repeat(regular.chars(regular.CharSet.of(alphabet)))
    if kind < 0.93:
        return regular.intersect(letters, regular.complement(left))
    return regular.intersect(regular.repeat(left), regular.repeat(right))


def random_productions(rng: random.Random, alphabet: str = "ab", *, letters: bool = False) -> Productions:
    """A grammar that is valid and pruned."""
    while True:
        names = [f"r{i}" for i in range(rng.randint(1, 4))]
        rules = {name: random_expr(rng, names, alphabet, 3, letters=letters) for name in names}
        productions = Productions(rules, "r0")
        try:
            productions = productions.prune()
        except EmptyLanguage:
            continue
        if not left_recursion(productions):
            productions.validate()
            return productions
