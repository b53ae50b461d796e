"""Random texts of productions."""

from __future__ import annotations

import random

from radixrt.constrained.productions import Alt, AnyOrder, Expr, Lit, Productions, Ref, Rep, Seq, Term
from radixrt.constrained.regex import CharSet, Regex, derive, is_empty, shortest_string


class Sampler:
    """Draws sentences; short ones once `steps` rules have been used."""

    def __init__(self, productions: Productions, seed: int) -> None:
        self._productions = productions
        self._random = random.Random(seed)
        self._steps = 0

    def text(self, steps: int = 40) -> str:
        self._steps = steps
        return self._expand(Ref(self._productions.start))

    def _expand(self, expr: Expr) -> str:
        if isinstance(expr, Lit):
            return expr.text
        if isinstance(expr, Term):
            return self._string(expr.regex)
        if isinstance(expr, Ref):
            self._steps -= 1
            return self._expand(self._productions.rules[expr.rule])
        if isinstance(expr, Seq):
            return "".join(self._expand(part) for part in expr.parts)
        if isinstance(expr, Alt):
            if self._steps > 0:
                return self._expand(self._random.choice(expr.options))
            return self._expand(min(expr.options, key=self._shortest))
        if isinstance(expr, AnyOrder):
            parts = [expr.parts[index] for index in self._order(expr)]
            return "".join(self._expand(part.later if place else part.first) for place, part in enumerate(parts))
        assert isinstance(expr, Rep)
        most = expr.low if self._steps <= 0 else expr.low + self._random.choice([0, 1, 1, 2, 3])
        count = most if expr.high is None else min(most, expr.high)
        return "".join(self._expand(expr.item) for _ in range(count))

    def _order(self, expr: AnyOrder) -> list[int]:
        """Draw the indices of the parts that occur, as often as the bounds say."""
        order = [i for i, part in enumerate(expr.parts) for _ in range(part.low)]
        most = expr.low + (self._random.choice([0, 1, 2]) if self._steps > 0 else 0)
        while len(order) < (most if expr.high is None else min(most, expr.high)):
            free = [
                i
                for i, part in enumerate(expr.parts)
                if (part.high is None or order.count(i) < part.high) and self._shortest(part.first) < float("inf")
            ]
            if not free:
                break
            order.append(self._random.choice(free))
        self._random.shuffle(order)
        return order

    def _shortest(self, expr: Expr) -> float:
        if isinstance(expr, Lit):
            return len(expr.text)
        if isinstance(expr, Term):
            return expr.regex.min_length
        if isinstance(expr, Ref):
            return self._productions.shortest[expr.rule]
        if isinstance(expr, Seq):
            return sum(map(self._shortest, expr.parts))
        if isinstance(expr, Alt):
            return min(map(self._shortest, expr.options), default=float("inf"))
        if isinstance(expr, AnyOrder):
            return expr.low * min(self._shortest(part.first) for part in expr.parts)
        assert isinstance(expr, Rep)
        return expr.low * self._shortest(expr.item) if expr.low else 0

    def _string(self, regex: Regex) -> str:
        text = ""
        for _ in range(self._random.choice([3, 6, 12])):
            if regex.nullable and self._random.random() < 0.3:
                return text
            live = [chars for chars in regex.classes() if _one(chars) and not is_empty(derive(regex, _one(chars)))]
            if not live:
                break
            char = self._pick(self._random.choice(live))
            text += char
            regex = derive(regex, char)
        return text + (shortest_string(regex) or "")

    def _pick(self, chars: CharSet) -> str:
        liked = [char for char in 'abcxkind01234567890-.,:{}[]"\\ é' if char in chars]
        return self._random.choice(liked) if liked and self._random.random() < 0.9 else _one(chars)


def _one(chars: CharSet) -> str:
    """A character of the class; "" if all are line terminators, on which Python and ECMA patterns disagree."""
    for first, last in chars.pairs():
        for code in range(first, min(last, first + 3) + 1):
            if chr(code) not in "\n\r\u2028\u2029":
                return chr(code)
    return ""
