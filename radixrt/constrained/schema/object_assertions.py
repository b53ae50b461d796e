"""Assertions on the members of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.assertion import Assertion, Frames, assume, deny, satisfies
from radixrt.constrained.schema.branch import Alternative, Branch
from radixrt.constrained.schema.evaluated import Marks
from radixrt.constrained.schema.formula import NONE, Formulas
from radixrt.constrained.schema.keys import KeySet, Matching, Rest
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.strings import StringTest
from radixrt.constrained.schema.values import OBJECT

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph


class PropertiesAssertion(Assertion):
    """`properties`: the value of each named member, where present, satisfies its schema.

    `required` has the names that the same schema requires. Of those it is `RequiredAssertion` that says what it means
    that they are absent or wrong, in one alternative instead of two.
    """

    __slots__ = ("_formulas", "members", "required")
    keyword = "properties"
    domain = OBJECT

    def __init__(self, graph: Graph, located: Located, members: dict[str, Located]) -> None:
        super().__init__(graph, located)
        self.members = members
        self.required: frozenset[str] = frozenset()
        self._formulas: list[tuple[str, Formulas]] | None = None

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """Each named member satisfies its schema."""
        if not branch.mask & OBJECT:
            return True
        if self._formulas is None:
            self._formulas = [(name, self.graph.formulas(member)) for name, member in self.members.items()]
        for name, formulas in self._formulas:
            if not branch.add_member(name, formulas):
                return False
        for frame in frames:
            branch.frames[frame].names.update(self.members)
        return True

    def refute(self) -> list[Alternative]:
        """One of the named members that are not required is present and does not satisfy its schema."""
        return [
            lambda b, n=name, m=member: _has(b, n, m)  # type: ignore[misc]
            for name, member in self.members.items()
            if name not in self.required
        ]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether each named member of an object satisfies its schema."""
        if type(value) is not dict:
            return True
        present = [name for name in self.members if name in value]
        if marks is not None:
            marks.names.update(present)
        return all(satisfies(self.graph, self.members[name], value[name]) for name in present)


def _has(branch: Branch, name: str, member: Located) -> bool:
    """The value is an object with this member, which does not satisfy the schema."""
    formulas = branch.graph.formulas(member, positive=False)
    if formulas is NONE or not branch.limit_types(OBJECT):
        return False
    return branch.add_member(name, formulas) and branch.require(name) and bool(branch.mask & OBJECT)


class KeysAssertion(Assertion):
    """`additionalProperties`, or one pattern of `patternProperties`: members with certain names satisfy a schema."""

    __slots__ = ("keys", "keyword", "member")
    domain = OBJECT

    def __init__(self, graph: Graph, located: Located, keyword: str, keys: KeySet, member: Located) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.keys = keys
        self.member = member

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """Each member with such a name satisfies the schema."""
        for frame in frames:
            if isinstance(self.keys, Matching):
                branch.frames[frame].tests.append(self.keys.test)
            else:
                branch.frames[frame].all_members = True
        return branch.add_keys(self.keys, self.graph.formulas(self.member))

    def refute(self) -> list[Alternative]:
        """Some member with such a name does not satisfy the schema."""
        formulas = self.graph.formulas(self.member, positive=False)
        if formulas is NONE:
            return []
        return [lambda b: b.limit_types(OBJECT) and b.add_witness(self.keys, formulas, self.source())]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether each member of an object with such a name satisfies the schema."""
        if type(value) is not dict:
            return True
        present = [name for name in value if name in self.keys]
        if marks is not None:
            marks.names.update(present)
        return all(satisfies(self.graph, self.member, value[name]) for name in present)


class PropertyNamesAssertion(Assertion):
    """`propertyNames`: every name satisfies a schema."""

    __slots__ = ("_keys", "names")
    keyword = "propertyNames"
    domain = OBJECT

    def __init__(self, graph: Graph, located: Located, names: Located) -> None:
        super().__init__(graph, located)
        self.names = names
        self._keys: Rest | None = None

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """No member has another name."""
        return not branch.mask & OBJECT or branch.add_keys(self._others(), NONE)

    def refute(self) -> list[Alternative]:
        """Some member has another name."""
        return [lambda b: b.limit_types(OBJECT) and b.add_witness(self._others(), (), self.source())]

    def _others(self) -> Rest:
        """The names that do not satisfy the schema."""
        if self._keys is None:
            found = self.graph.strings(self.names)
            if isinstance(found, tuple):
                self._keys = Rest(frozenset(found), order=found)
            else:
                test = StringTest(found, True, self.source(), self.graph.formulas(self.names))
                self._keys = Rest(frozenset(), (test,))
        return self._keys

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether every name of an object satisfies the schema."""
        return type(value) is not dict or all(satisfies(self.graph, self.names, name) for name in value)


class RequiredAssertion(Assertion):
    """`required`: an object has these members. `declared` has the schemas of those that the same schema declares."""

    __slots__ = ("declared", "names")
    keyword = "required"
    domain = OBJECT

    def __init__(self, graph: Graph, located: Located, names: list[str]) -> None:
        super().__init__(graph, located)
        self.names = list(dict.fromkeys(names))
        self.declared: dict[str, Located] = {}

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """An object has all of them."""
        return all(branch.require(name) for name in self.names)

    def refute(self) -> list[Alternative]:
        """The value is an object that lacks one of them, or in which it does not satisfy its schema."""
        return [lambda b, n=name: self._lacks(b, n) for name in self.names]  # type: ignore[misc]

    def _lacks(self, branch: Branch, name: str) -> bool:
        member = self.declared.get(name)
        formulas = NONE if member is None else self.graph.formulas(member, positive=False)
        return branch.limit_types(OBJECT) and branch.add_member(name, formulas) and branch.mask != 0

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether an object has all of them."""
        return type(value) is not dict or all(name in value for name in self.names)


class MemberCountAssertion(Assertion):
    """`minProperties` and `maxProperties`."""

    __slots__ = ("keyword", "limit")
    domain = OBJECT

    def __init__(self, graph: Graph, located: Located, keyword: str, limit: int) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.limit = limit

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """An object has enough (not too many) members."""
        if self.keyword == "minProperties":
            return branch.limit_members(self.limit, None, self.source())
        return branch.limit_members(0, self.limit, self.source())

    def refute(self) -> list[Alternative]:
        """An object with too few (many) members."""
        if self.keyword == "maxProperties":
            return [lambda b: b.limit_types(OBJECT) and b.limit_members(self.limit + 1, None, self.source())]
        if self.limit == 0:
            return []
        return [lambda b: b.limit_types(OBJECT) and b.limit_members(0, self.limit - 1, self.source())]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether an object has enough (not too many) members."""
        if type(value) is not dict:
            return True
        return len(value) >= self.limit if self.keyword == "minProperties" else len(value) <= self.limit


class DependentNamesAssertion(Assertion):
    """`dependentRequired`, one name of it: an object with this member has others too."""

    __slots__ = ("keyword", "name", "needed")
    domain = OBJECT

    def __init__(self, graph: Graph, located: Located, keyword: str, name: str, needed: list[str]) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.name = name
        self.needed = list(dict.fromkeys(other for other in needed if other != name))

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """The member is absent, or all are present."""
        if not branch.mask & OBJECT or not self.needed:
            return True
        return branch.choose([lambda b: b.forbid(self.name), self._all_present])

    def _all_present(self, branch: Branch) -> bool:
        return branch.limit_types(OBJECT) and all(branch.require(name) for name in (self.name, *self.needed))

    def refute(self) -> list[Alternative]:
        """The member is present and one of the others is not."""
        return [
            lambda b, n=name: b.limit_types(OBJECT) and b.require(self.name) and b.forbid(n)  # type: ignore[misc]
            for name in self.needed
        ]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether an object that has the member has the others."""
        return type(value) is not dict or self.name not in value or all(name in value for name in self.needed)


class DependentSchemaAssertion(Assertion):
    """`dependentSchemas`, one name of it: an object with this member satisfies a schema."""

    __slots__ = ("keyword", "name", "then")
    domain = OBJECT

    def __init__(self, graph: Graph, located: Located, keyword: str, name: str, then: Located) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.name = name
        self.then = then

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """The member is absent, or it is present and the schema holds."""
        if not branch.mask & OBJECT:
            return True
        return branch.choose(
            [
                lambda b: b.forbid(self.name),
                lambda b: b.limit_types(OBJECT) and b.require(self.name) and assume(b, self.then, frames),
            ]
        )

    def refute(self) -> list[Alternative]:
        """The member is present and the schema does not hold."""
        return [lambda b: b.limit_types(OBJECT) and b.require(self.name) and deny(b, self.then)]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether an object that has the member satisfies the schema."""
        return type(value) is not dict or self.name not in value or satisfies(self.graph, self.then, value, marks)

    def in_place(self) -> list[Located]:
        """The schema that may have to hold."""
        return [self.then]


class UnevaluatedPropertiesAssertion(Assertion):
    """`unevaluatedProperties`: members that nothing else in the schema has evaluated satisfy a schema."""

    __slots__ = ("member",)
    keyword = "unevaluatedProperties"
    domain = OBJECT
    waits = True

    def __init__(self, graph: Graph, located: Located, member: Located) -> None:
        super().__init__(graph, located)
        self.member = member

    def settle(self, branch: Branch, place: int) -> bool:
        """Apply it to what the frame with this index has left over."""
        frame = branch.frames[place]
        if frame.all_members:
            return True
        keys = Rest(frozenset(frame.names), tuple(frame.tests))
        for outer in frame.outer:
            branch.frames[outer].all_members = True
        return branch.add_keys(keys, self.graph.formulas(self.member))

    def settle_denied(self, branch: Branch, place: int) -> bool:
        """Some member that the frame has left over does not satisfy the schema."""
        frame = branch.frames[place]
        if frame.all_members:
            return False
        keys = Rest(frozenset(frame.names), tuple(frame.tests))
        formulas = self.graph.formulas(self.member, positive=False)
        return branch.limit_types(OBJECT) and branch.add_witness(keys, formulas, self.source()) and branch.mask != 0

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether each member of an object that the marks do not have satisfies the schema; marks them."""
        if type(value) is not dict or marks is None:
            return True
        left = [name for name in value if name not in marks.names]
        marks.names.update(left)
        return all(satisfies(self.graph, self.member, value[name]) for name in left)
