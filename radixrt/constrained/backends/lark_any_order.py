"""Parts in any order (`AnyOrder`) as a parametric rule of llguidance.

A parametric rule has an argument of 64 bits, which a call may change and on which an option may depend. Here the
argument holds the counts of the parts, so that a rule of one option for each part says what sets of parts would take a
rule each to say. In `r::_: ",a" r::set_bit(0) %if bit_clear(0) | "" %if bit_set(0)`, part 0 occurs once more.

Every item of a row of llguidance's parser that waits for the end of a call is kept, so the calls must not be deeper
than the counts: parts that change no count are repeated in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from radixrt.constrained.productions import NotExpressible
from radixrt.constrained.productions.argument import Argument
from radixrt.constrained.productions.expressions import AnyOrder
from radixrt.constrained.productions.tally import Tally

Step = tuple[str, tuple[str, ...]]
"""The change of the argument by an occurrence of a part, and the conditions under which it is made."""


class RuleWriter(Protocol):
    """The grammar under construction."""

    def new_name(self, wanted: str) -> str:
        """Return an unused rule name that resembles `wanted`."""

    def set_rule(self, name: str, body: str, *, parametric: bool) -> None:
        """Set the body of a rule."""


class AnyOrderRules:
    """The rules of one `AnyOrder`.

    Args:
        parts: the texts of each part as the first and as a later part, in the notation of a sequence.

    Raises:
        NotExpressible: llguidance cannot carry the counts.
    """

    def __init__(self, expr: AnyOrder, parts: Sequence[tuple[str, str]], writer: RuleWriter) -> None:
        self._tally = Tally.of(expr)
        self._argument = Argument(self._tally)
        self._parts = parts
        self._writer = writer
        if self._argument.problem is not None:
            raise NotExpressible(self._argument.problem)

    def write(self) -> str:
        """Add the rules; return the expression, a choice."""
        again = self._repeated()
        if not (self._argument.counts or self._argument.extra_bits):
            return " | ".join(f"{first} {again}" for first, _ in self._parts)
        rule = self._writer.new_name("order")
        options = [(again or '""') + _if(self._enough())]
        for part, (_, later) in enumerate(self._parts):
            for change, conditions in self._steps(part):
                options.append(f"{again} {later} {rule}::{change}{_if(conditions)}".lstrip())
        self._writer.set_rule(rule, " | ".join(options), parametric=True)
        started = []
        for part, (first, _) in enumerate(self._parts):
            if self._tally.after(0, part) is not None:
                started.append(f"{first} {rule}::{self._first_argument(part)}")
        return " | ".join(started)

    def _repeated(self) -> str:
        """Return the repetition of the parts that change no count; empty where there are none."""
        tally = self._tally
        if tally.most is not None:
            return ""
        options = []
        depends = False
        for part, (low, high) in enumerate(self._argument.bounds):
            if high is None:
                conditions = [*self._at_least(part, low), *self._extra_compared("ge", tally.least)]
                options.append(self._parts[part][1] + _if(conditions))
                depends = depends or bool(conditions)
        if not options:
            return ""
        name = self._writer.new_name("more")
        self._writer.set_rule(name, " | ".join(options), parametric=depends)
        return f"{name}::_*" if depends else f"{name}*"

    def _steps(self, part: int) -> Iterator[Step]:
        """Yield the ways in which an occurrence of the part changes the argument, at most one of which is possible."""
        tally = self._tally
        low, high = self._argument.bounds[part]
        if part in self._argument.counts:
            first, end = self._argument.counts[part]
            single = end - first == 1
            yield (
                f"set_bit({first})" if single else f"incr([{first}:{end}])",
                (f"bit_clear({first})" if single else f"lt([{first}:{end}], {self._argument.caps[part]})",),
            )
        if part in self._argument.extra_bits:
            first, end = self._argument.extra_bits[part]
            room = self._extra_compared("lt", tally.least if tally.most is None else tally.most)
            if tally.most is None and high is not None:
                room = ()
            for bit in range(first, end):
                before = (f"bit_set({bit - 1})",) if bit > first else ()
                yield f"set_bit({bit})", (*self._at_least(part, low), *before, f"bit_clear({bit})", *room)

    def _enough(self) -> list[str]:
        """Return the conditions under which the text may end."""
        conditions = [f"is_ones([0:{self._argument.single[1]}])"] if self._argument.single[1] else []
        for part, bounds in enumerate(self._argument.bounds):
            if bounds != (1, 1):
                conditions += self._at_least(part, bounds[0])
        return [*conditions, *self._extra_compared("ge", self._tally.least)]

    def _first_argument(self, part: int) -> int:
        """Return the argument after the part as the first of all."""
        field = self._argument.extra_bits.get(part) if not self._argument.bounds[part][0] else None
        field = field or self._argument.counts.get(part)
        return 0 if field is None else 1 << field[0]

    def _at_least(self, part: int, count: int) -> tuple[str, ...]:
        if not count:
            return ()
        first, end = self._argument.counts[part]
        return (f"bit_set({first})" if end - first == 1 else f"ge([{first}:{end}], {count})",)

    def _extra_compared(self, operator: str, count: int) -> tuple[str, ...]:
        first, end = self._argument.extra
        return (f"bit_count_{operator}([{first}:{end}], {count})",) if self._argument.together and count else ()


def _if(conditions: Sequence[str]) -> str:
    """Return the condition of an option, all of `conditions` together."""
    if not conditions:
        return ""
    *others, last = conditions
    for one in reversed(others):
        last = f"and({one}, {last})"
    return f" %if {last}"
