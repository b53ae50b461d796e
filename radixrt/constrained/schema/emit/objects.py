"""Expressions for objects: declared members in their order, then undeclared ones in any order.

With `key_order` "any", declared and undeclared members are parts in any order (`AnyOrder`), each declared one at most
once. Otherwise the grammar is linear in the number of members. Its states record only whether a member has been written
yet (for the comma) or, where the number of members is bounded, how many have been.

A grammar cannot remember the names of undeclared members, nor those of many declared ones that come in any order. That
none repeats is an `Obligation`, which guards enforce. A minimum number of members relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import NOTHING, AnyOrder, Expr, Lit, Part, alt, optional, seq
from radixrt.constrained.productions.argument import MAX_BITS, Argument
from radixrt.constrained.productions.tally import Tally
from radixrt.constrained.regex import enumerate_strings
from radixrt.constrained.schema.emit.free_parts import MAX_UNDECLARED
from radixrt.constrained.schema.emit.json_text import END, SHORT, Comma, Emitter, joined, repeated
from radixrt.constrained.schema.emit.key_classes import KeyClass
from radixrt.constrained.schema.emit.plan import ObjectPlan
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.nodes import NONE, Formulas

MAX_GROUPINGS = 200
"""Maximum number of ways to assign the members that must exist to classes."""
MAX_COUNTED_NAMES = 4_000
"""A class of more names counts as infinite: an answer does not use up all of them."""
Group = tuple[int, Formulas]
"""A member that must exist: the index of its class, and the formulas of its value."""


def object_expression(emitter: Emitter, plan: ObjectPlan, pointer: str) -> Expr:
    """Return the expression of an object whose schema is at `pointer`. Raises Unsupported."""
    return _ObjectEmitter(emitter, plan, pointer).emit()


class _ObjectEmitter:
    def __init__(self, emitter: Emitter, plan: ObjectPlan, pointer: str) -> None:
        self._emitter = emitter
        self._style = emitter.style
        self._pointer = pointer
        self._plan = plan
        self._values = [emitter.member_value(name, node) for name, node, _ in plan.members]
        self._undeclared = _UndeclaredEmitter(emitter, plan)

    def emit(self) -> Expr:
        # Members are counted only if the bounds on their number are not implied by the required members.
        plan = self._plan
        required = plan.required
        possible = None if plan.classes else len(plan.members)
        if possible is not None and plan.low > possible:
            return NOTHING
        bounded_above = plan.high is not None and (possible is None or plan.high < possible)
        if self._style.key_order == "any" and (len(plan.members) > 1 or (plan.members and plan.classes)):
            return self._in_any_order(plan.high if bounded_above else None)
        if bounded_above or plan.low > max(required + self._undeclared.fewest, 0 if required else 1):
            return self._counted(required)
        if not plan.members and not plan.classes:
            return self._style.enclosed("{", None, "}", may_be_empty=True)
        may_be_empty = required == 0 and not plan.witnesses and plan.low == 0
        return self._style.enclosed("{", self._body(), "}", may_be_empty=may_be_empty)

    # In any order

    def _in_any_order(self, high: int | None) -> Expr:
        """Return the object with its members in any order, at most `high` of them."""
        plan, style = self._plan, self._style
        self._rely_on_names()
        for place in range(len(plan.members)):
            self._share(place)
        parts = [
            Part(self._member(place, comma=False), self._member(place, comma=True), int(needed), 1)
            for place, (_, _, needed) in enumerate(plan.members)
        ]
        if plan.witnesses:
            # Members that must exist and have undeclared names come last, in an order of their own.
            if high is not None or plan.low > plan.required + self._undeclared.fewest:
                raise self._cannot_order("its members are counted, and some whose names are not declared must exist")
            order = self._order(parts, 1, None)
            body = joined(order, self._undeclared.members(None, comma=True))
            if plan.required == 0:
                body = alt(body, self._undeclared.members(None, comma=False))
            return style.enclosed("{", body, "}", may_be_empty=False)
        order = self._order([*parts, *self._undeclared.parts(high)], max(1, plan.low), high)
        return style.enclosed("{", order, "}", may_be_empty=plan.required == 0 and plan.low == 0)

    def _order(self, parts: list[Part], low: int, high: int | None) -> Expr:
        """Return the parts in any order. Raises Unsupported if they are more than can be counted."""
        for some in (parts, self._optional_together(parts)):
            order = AnyOrder(tuple(some), low, high)
            if Argument(Tally.of(order)).problem is None:
                return order
        raise self._cannot_order(f"it requires {self._plan.required}, with the bounds on their number")

    def _optional_together(self, parts: list[Part]) -> list[Part]:
        """Return the parts with one part for all members that may be missing. Guards see to it that none repeats."""
        options = [part for part in parts if (part.low, part.high) == (0, 1)]
        others = [part for part in parts if (part.low, part.high) != (0, 1)]
        if not options or not self._emitter.guarded:
            return parts
        counts = self._plan.low > max(1, self._plan.required)
        self._emitter.oblige(Obligation("keys", counts=counts, finite=True))
        first, later = alt(*[part.first for part in options]), alt(*[part.later for part in options])
        return [*others, Part(first, later, 0, None)]

    def _cannot_order(self, reason: str) -> Unsupported:
        return Unsupported(
            self._pointer,
            "properties",
            f'with key_order "any", up to {MAX_BITS} required properties of an object can be followed, and {reason}',
            'Leave structured.key_order at "schema", or put some of the properties into an object of their own.',
            droppable=False,
        )

    def _rely_on_names(self) -> None:
        """Leave it to guards that undeclared members, of which a minimum number must exist, have different names."""
        plan = self._plan
        if plan.classes and plan.low > plan.required + max(1, self._undeclared.fewest):
            guarded = self._emitter.guarded
            if plan.witnesses or not guarded:
                pointer, keyword, _ = plan.source
                reason = (
                    "members must exist beside one that a condition asks for"
                    if guarded
                    else "between tags, members whose names are not declared could repeat"
                )
                fix = "Declare the properties that are counted, or require fewer."
                self._emitter.graph.refuse(Unsupported(pointer, keyword, reason, fix))
            self._emitter.oblige(Obligation("keys", counts=True))

    # Without counting

    def _body(self) -> Expr:
        """Return at least one member.

        An optional member before the first required member is written with the comma behind it. Where no member is
        required, each member becomes a rule: the member and the members that may follow, or only the members that may
        follow. So every member is written once.
        """
        members = self._plan.members
        if not members:
            return self._undeclared.members(None, comma=False)
        # With a required member, the commas of the optional members before it are known.
        needed = next((place for place, member in enumerate(members) if member[2]), len(members))
        after = self._style.after(",")
        if needed < len(members):
            before = [self._optional_member(place, "after") for place in range(needed)]
            return joined(*before, self._member(needed, comma=False), self._chain(needed + 1))
        # Without a required member, build the rules from the last member to the first.
        following = self._undeclared.members(None, comma=False) if self._plan.classes else None
        for place in range(needed - 1, -1, -1):
            member = self._member(place, comma=False)
            if following is None:
                following = member
                continue
            following = self._emitter.new_rule(following)
            others = seq(after, following)
            following = alt(joined(member, others if self._plan.witnesses else optional(others)), following)
        return NOTHING if following is None else following

    def _share(self, place: int) -> None:
        """Make a rule of a value that is used in two places."""
        if type(self._values[place]) not in SHORT:
            self._values[place] = self._emitter.new_rule(self._values[place])

    def _chain(self, start: int) -> Expr:
        """Return the members from a place on, after another member, and the undeclared ones."""
        parts = [
            self._member(place, comma=True) if needed else self._optional_member(place, "before")
            for place, (_, _, needed) in enumerate(self._plan.members)
            if place >= start
        ]
        return joined(*parts, self._undeclared.members(None, comma=True))

    def _member(self, place: int, *, comma: bool) -> Expr:
        return self._style.member(self._plan.members[place][0], self._values[place], comma=comma)

    def _optional_member(self, place: int, comma: Comma) -> Expr:
        return self._style.optional_member(self._plan.members[place][0], self._values[place], comma)

    # With counting

    def _counted(self, required: int) -> Expr:
        plan = self._plan
        graph = self._emitter.graph
        pointer, keyword, _ = plan.source
        self._rely_on_names()
        most = len(plan.members) if plan.high is None else min(plan.high, len(plan.members))
        limit = graph.budget.limits.array_states
        if (len(plan.members) + 1) * (most + 1) > limit:
            raise over_limit(pointer, keyword, f"counting {len(plan.members)} members takes more than {limit} rules")
        for place in range(len(plan.members)):
            self._share(place)
        states: dict[tuple[int, int], Expr] = {}
        counts = [{0}]  # numbers of members that may have been written before each place
        for *_, needed in plan.members:
            more = {count + 1 for count in counts[-1] if count < most}
            counts.append(more if needed else more | counts[-1])
        for place in range(len(plan.members), -1, -1):
            for count in counts[place]:
                states[place, count] = self._state(place, count, states)
        may_be_empty = required == 0 and plan.low == 0 and not plan.witnesses
        if states[0, 0] is NOTHING:
            return self._style.enclosed("{", None, "}", may_be_empty=True) if may_be_empty else NOTHING
        return self._style.enclosed("{", states[0, 0], "}", may_be_empty=may_be_empty)

    def _state(self, place: int, count: int, states: dict[tuple[int, int], Expr]) -> Expr:
        """Return the continuation after `count` of the members before `place`; NOTHING if there is none.

        With count 0, at least one member follows: the empty object is a separate alternative.
        """
        plan = self._plan
        if place == len(plan.members):
            if count or plan.classes:
                return self._undeclared.members(count, comma=count > 0)
            return NOTHING
        options: list[Expr] = []
        if states.get((place + 1, count + 1), NOTHING) is not NOTHING:
            options.append(joined(self._member(place, comma=count > 0), states[place + 1, count + 1]))
        if not plan.members[place][2] and states[place + 1, count] is not NOTHING:
            options.append(states[place + 1, count])
        if not options:
            return NOTHING
        return (
            options[0]
            if len(options) == 1 and not isinstance(options[0], Lit)
            else self._emitter.new_rule(alt(*options))
        )


class _UndeclaredEmitter:
    """The undeclared members of one object.

    Attributes:
        fewest: number of undeclared members that must exist at least.
    """

    def __init__(self, emitter: Emitter, plan: ObjectPlan) -> None:
        self._emitter = emitter
        self._plan = plan
        pair = emitter.style.pair
        bounded = emitter.style.bounded
        self._keys = [emitter.style.keys(one) for one, _ in plan.classes]
        self._pairs = [pair(key, emitter.value(node)) for key, (_, node) in zip(self._keys, plan.classes, strict=True)]
        # Members of which no keyword says anything are few where the object declares others.
        unspoken = plan.members and not any(node.formulas for _, node in plan.classes)
        self._most = MAX_UNDECLARED if bounded and unspoken else None
        self._num_names = [_num_names(one) for one, _ in plan.classes]
        if plan.classes and emitter.guarded:
            is_finite = any(number is not None for number in self._num_names)
            emitter.oblige(Obligation("keys", counts=bool(plan.witnesses), finite=is_finite))
        self._groupings = list(self._find_groupings()) if plan.witnesses else [()]
        self._states: dict[tuple[tuple[Group, ...], int, int], Expr] = {}
        self.fewest = min((len(grouping) for grouping in self._groupings), default=0)

    def parts(self, high: int | None) -> list[Part]:
        """Return the members of each class as a part, where no member must exist and `high` bounds all members.

        The number of free members has a bound of its own where no other bound is counted. A minimum number of members
        relies on no more members of a class than the class has names.
        """
        after = self._emitter.style.after(",")
        counts = self._plan.low > max(1, self._plan.required)
        most = self._most if high is None and not counts else None
        pairs = [self._emitter.new_rule(pair) for pair in self._pairs]
        return [
            Part(pair, joined(after, pair), 0, names if counts and names is not None else most)
            for pair, names in zip(pairs, self._num_names, strict=True)
        ]

    def members(self, count: int | None, *, comma: bool) -> Expr:
        """Return all undeclared members; without a comma, at least one.

        Args:
            count: number of declared members written; None where the bounds on their number hold anyway.

        Returns:
            `NOTHING` if the bounds exclude one another.

        Raises:
            Unsupported: counting takes too many rules.
        """
        plan = self._plan
        room = self._most if count is None or plan.high is None else plan.high - count
        missing = 0 if count is None else max(0, plan.low - count)
        if self._most is not None and room is not None:
            room = max(missing, min(room, self._most))
        if not plan.witnesses:
            if (room is not None and missing > room) or not self._has_names(missing):
                return NOTHING
            if not plan.classes or room == 0:
                return END if comma and not missing else NOTHING
            if comma:
                return repeated(self._others(set()), missing, room)
            rest = repeated(self._others(set()), max(0, missing - 1), None if room is None else room - 1)
            return joined(alt(*self._pairs), rest)
        found = []
        for grouping in self._groupings:
            left = None if room is None else room - len(grouping)
            if left is None or left >= 0:
                found.append(self._from(grouping, 0, left, comma=comma))
        return alt(*found) if found else NOTHING

    def _has_names(self, number: int) -> bool:
        """Return whether there are at least so many undeclared names."""
        return None in self._num_names or number <= sum(one for one in self._num_names if one is not None)

    def _others(self, gone: set[int]) -> Expr:
        """Return a member of any open class, preceded by a comma."""
        pairs = [pair for place, pair in enumerate(self._pairs) if place not in gone]
        return joined(self._emitter.style.after(","), alt(*pairs)) if pairs else NOTHING

    def _from(self, grouping: tuple[Group, ...], first: int, room: int | None, *, comma: bool) -> Expr:
        """Return the members from the group that must come next; `room` counts members that need not exist."""
        # A class of few names is closed before its members that must exist, so that a name is left for each of them.
        # Without guards, every class is closed after such a member, because a later one could replace it.
        gone = {place for place, _ in grouping[first:] if self._num_names[place] is not None}
        if not self._emitter.guarded:
            gone = {place for place, _ in grouping[:first]}
        if first == len(grouping):
            others = self._others(gone)
            return END if others is NOTHING else repeated(others, 0, room)
        place, formulas = grouping[first]
        style = self._emitter.style
        separator = style.after(",") if comma else END
        value = self._emitter.value(self._emitter.graph.node(formulas))
        needed = joined(separator, style.pair(self._keys[place], value))
        # Without an upper bound, any number of other members may come first.
        if room is None and comma:
            others = self._others(gone)
            before = END if others is NOTHING else repeated(others, 0, None)
            return seq(before, needed, self._from(grouping, first + 1, None, comma=True))
        # With an upper bound, each (group, room) is a rule: either the member of the group follows, or another member
        # that takes up room.
        key = (grouping, first, -1 if room is None else room)
        if comma and key in self._states:
            return self._states[key]
        options = [joined(needed, self._from(grouping, first + 1, room, comma=True))]
        pairs = [pair for index, pair in enumerate(self._pairs) if index not in gone]
        if pairs and (room is None or room > 0):
            left = None if room is None else room - 1
            options.append(joined(separator, alt(*pairs), self._from(grouping, first, left, comma=True)))
        expression = alt(*options)
        if not comma:
            return expression
        limit = self._emitter.graph.budget.limits.array_states
        if len(self._states) > limit:
            pointer, keyword, _ = self._plan.source
            raise over_limit(pointer, keyword, f"counting the members takes more than {limit} rules")
        rule = self._states[key] = self._emitter.new_rule(expression)
        return rule

    def _find_groupings(self) -> Iterator[tuple[Group, ...]]:
        """Yield the ways in which members satisfy the witnesses: a member may satisfy several witnesses, or each
        witness has its own class.

        Groupings without a value, a name or room for each member are skipped.
        """
        # Enumerate: each witness joins a group whose class it may belong to, or begins a group.
        plan = self._plan
        room = None if plan.high is None else plan.high - plan.required
        groupings: list[tuple[Group, ...]] = [()]
        for witness in plan.witnesses:
            options = dict(witness.options)
            longer: list[tuple[Group, ...]] = []
            for grouping in groupings:
                for index, (place, formulas) in enumerate(grouping):
                    if place in options:
                        more = tuple(formula for formula in options[place] if formula not in formulas)
                        longer.append((*grouping[:index], (place, formulas + more), *grouping[index + 1 :]))
                longer.extend((*grouping, group) for group in options.items())
            groupings = list(dict.fromkeys(longer))
            if len(groupings) > MAX_GROUPINGS:
                raise _unsupported(witness.source, "too many kinds of members could be the ones that must exist")
        for grouping in groupings:
            if any(self._emitter.graph.node(formulas).formulas == NONE for _, formulas in grouping):
                continue
            if room is not None and len(grouping) > room:
                continue
            places = [place for place, _ in grouping]
            if not self._emitter.guarded and len(set(places)) < len(places):
                # Names may be the same, so nothing is gained where a member satisfies the requirement of another.
                pairs = [(a, b) for index, a in enumerate(grouping) for b in grouping[index + 1 :] if a[0] == b[0]]
                if any(set(a[1]) <= set(b[1]) or set(b[1]) <= set(a[1]) for a, b in pairs):
                    continue
                reason = "between tags, members that must exist could have the same name"
                raise _unsupported(plan.witnesses[-1].source, reason)
            names = [(places.count(place), self._num_names[place]) for place in places]
            if all(number is None or needed <= number for needed, number in names):
                yield grouping


def _num_names(one: KeyClass) -> int | None:
    """Return the number of names of a class; None if there are more than `MAX_COUNTED_NAMES`."""
    names = enumerate_strings(one.names(), MAX_COUNTED_NAMES) if one.tests else None
    return None if names is None else len(names)


def _unsupported(source: tuple[str, str, str], reason: str) -> Unsupported:
    pointer, keyword, _ = source
    return Unsupported(pointer, keyword, reason, "Declare the properties in question.")
