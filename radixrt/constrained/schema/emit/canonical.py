"""What items that must differ need: one text for each number, and the number of values that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from radixrt.constrained.regex import (
    Regex,
    RegexTooComplex,
    enumerate_strings,
    intersect,
    is_subset,
    parse_regex,
    without_remainders,
)
from radixrt.constrained.schema.emit.free_parts import MAX_DIGITS, with_bounded_digits
from radixrt.constrained.schema.emit.plan import ArrayPlan, ObjectPlan, Plan
from radixrt.constrained.schema.normal_form.nodes import Node
from radixrt.constrained.schema.normal_form.numbers import NUMBER_TEXT

SIGNIFICANT_DIGITS: Final = 15
"""Most digits of a number with a fraction: different decimals of so many digits are different doubles."""


@lru_cache(maxsize=16)
def _canonical(most: int) -> Regex:
    """Return integers without -0 of at most `most` digits after the first, and fractions that do not end with 0."""
    whole = ["0", *(f"[1-9][0-9]{{{more}}}" for more in range(SIGNIFICANT_DIGITS - 1))]
    rooms = [SIGNIFICANT_DIGITS - 2, *(SIGNIFICANT_DIGITS - 2 - more for more in range(SIGNIFICANT_DIGITS - 1))]
    fractions = "|".join(rf"{digits}\.[0-9]{{0,{room}}}[1-9]" for digits, room in zip(whole, rooms, strict=True))
    return parse_regex(f"0|-?([1-9][0-9]{{0,{most}}}|{fractions})", search=False)


@lru_cache(maxsize=1024)
def canonical_numbers(number: Regex, most: int) -> Regex:
    """Return the texts of numbers with one text for each value: no exponent, no zero at the end of a fraction, no -0.
    Numbers with a fraction have at most SIGNIFICANT_DIGITS digits, so that those that differ are different doubles.

    Args:
        number: the texts of numbers.
        most: digits after the first digit of an integer.
    """
    canonical = _canonical(most)
    if number is NUMBER_TEXT:
        return canonical
    number = with_bounded_digits(number, most)
    try:
        if is_subset(without_remainders(number), canonical):
            return number
    except RegexTooComplex:
        pass
    return intersect(number, canonical)


class Sizes:
    """Upper bounds on the numbers of values of nodes, and whether equal values may have several texts.

    Args:
        plan_of: returns the plan of a node.
    """

    def __init__(self, plan_of: Callable[[Node], Plan]) -> None:
        self._plan_of = plan_of
        self._known: dict[tuple[Node, int], int | None] = {}
        self._ordered: dict[Node, bool] = {}

    def most(self, node: Node, limit: int) -> int | None:
        """Return a number of values that a node has at most; None if it is more than the limit."""
        key = node, limit
        if key not in self._known:
            self._known[key] = None  # a node within itself has no bound
            self._known[key] = self._of_plan(self._plan_of(node), limit)
        return self._known[key]

    def is_ordered(self, node: Node) -> bool:
        """Return whether the members of objects have one order, in canonical texts with keys in the schema's order."""
        if node not in self._ordered:
            self._ordered[node] = False  # a node within itself
            plan = self._plan_of(node)
            several = len(plan.objects) + len(plan.union) + any(type(value) in (dict, list) for value in plan.values)
            alone = not plan.objects or (several == 1 and not plan.objects[0].classes)
            self._ordered[node] = alone and all(map(self.is_ordered, plan.children()))
        return self._ordered[node]

    def _of_plan(self, plan: Plan, limit: int) -> int | None:
        parts: list[int | None] = [len(plan.texts) + len(plan.values) + len(plan.booleans) + plan.null]
        languages = [plan.strings] if plan.strings is not None else []
        languages += [canonical_numbers(one, MAX_DIGITS) for one in plan.numbers]
        parts += [_num_strings(one, limit) for one in languages]
        parts += [self.most(part, limit) for part in plan.union]
        parts += [self._of_array(one, limit) for one in plan.arrays]
        parts += [self._of_object(one, limit) for one in plan.objects]
        return _within(sum, parts, limit)

    def _of_array(self, plan: ArrayPlan, limit: int) -> int | None:
        if plan.high is None:
            return None
        total, sequences = 0, 1
        for length in range(plan.high + 1):
            total += sequences if length >= plan.low else 0
            node = plan.prefix[length] if length < len(plan.prefix) else plan.rest
            if node is None or length == plan.high:
                break
            more = self.most(node, limit)
            if more is None or total + sequences * more > limit:
                return None
            sequences *= more
            if more <= 1 and length >= len(plan.prefix):
                # Each of the longer lengths has as many sequences.
                total += sequences * (plan.high - max(plan.low - 1, length))
                break
        return total

    def _of_object(self, plan: ObjectPlan, limit: int) -> int | None:
        product = 1
        for _, node, needed in plan.members:
            more = self.most(node, limit)
            if more is None or product * (more + (not needed)) > limit:
                return None
            product *= more + (not needed)
        # Of each class, every name may be missing, or have one of the values.
        for one, node in plan.classes:
            names, more = _num_strings(one.names(), limit), self.most(node, limit)
            if names is None or more is None:
                return None
            room = names if plan.high is None else min(names, plan.high - plan.required)
            product *= (1 + names * more) ** min(room, limit.bit_length())
            if product > limit:
                return None
        return product


def _num_strings(language: Regex, limit: int) -> int | None:
    try:
        found = enumerate_strings(language, limit)
    except RegexTooComplex:
        return None
    return None if found is None else len(found)


def _within(total: Callable[[Iterable[int]], int], parts: list[int | None], limit: int) -> int | None:
    known = [part for part in parts if part is not None]
    return None if len(known) < len(parts) or total(known) > limit else total(known)
