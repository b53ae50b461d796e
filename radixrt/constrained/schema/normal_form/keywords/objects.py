"""Keywords for objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.keywords.base import (
    IS_OBJECT,
    Alternatives,
    Assertion,
    Deferred,
    Excludable,
    Excluded,
    Size,
)
from radixrt.constrained.schema.normal_form.nodes import NONE, Formulas, Is
from radixrt.constrained.schema.normal_form.strings import KeySet, MatchingKeys, RemainingKeys, Source
from radixrt.constrained.schema.values import OBJECT

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.branch import Branch, EvaluationScope, Scopes
    from radixrt.constrained.schema.normal_form.graph import Graph
    from radixrt.constrained.schema.normal_form.keywords.reader import KeywordReader
    from radixrt.constrained.schema.normal_form.validation import Context


@dataclass(frozen=True, eq=False, slots=True)
class MemberFails:
    """The value is an object whose member of this name does not satisfy the schema.

    Attributes:
        schema: None if no value satisfies the condition, that is, the member is absent.
        present: the member must be present; otherwise it may be absent too.
    """

    name: str
    schema: Located | None
    present: bool

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        formulas = NONE if self.schema is None else branch.graph.formulas(self.schema, positive=False)
        if self.present and formulas is NONE:
            return False
        if not branch.limit_types(OBJECT) or not branch.add_member(self.name, formulas):
            return False
        return (not self.present or branch.require(self.name)) and branch.types != 0


@dataclass(frozen=True, eq=False, slots=True)
class Member:
    """The member of this name, where present, satisfies the formulas; it is present if `required`."""

    name: str
    formulas: Formulas
    required: bool = False

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.add_member(self.name, self.formulas) and (not self.required or branch.require(self.name))


@dataclass(frozen=True, eq=False, slots=True)
class SomeMember:
    """The value is an object with a member whose name is in the set and whose value satisfies the formulas."""

    keys: KeySet
    formulas: Formulas
    source: Source

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        if self.formulas is NONE or not branch.limit_types(OBJECT):
            return False
        names = branch.graph.listed_names(self.keys)
        if names is None:
            return branch.add_witness(self.keys, self.formulas, self.source)
        return branch.choose([(IS_OBJECT, Member(name, self.formulas, required=True)) for name in names])


class ObjectSize(Size):
    """`minProperties`, `maxProperties`."""

    __slots__ = ()
    keywords = ("minProperties", "maxProperties")
    domain: ClassVar[int] = OBJECT

    def holds(self, context: Context, value: Any) -> bool:
        return type(value) is not dict or self.contains(len(value))

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.limit_members(self.low, self.high, self.source())


@dataclass(frozen=True, eq=False, slots=True)
class Properties(Assertion):
    """`properties`: each named member that is present satisfies its schema.

    Attributes:
        required: names that the same schema requires. The negation of `Required` covers their absence and their wrong
            values in one alternative; the negation of `Properties` skips them.
    """

    keywords = ("properties",)
    domain: ClassVar[int] = OBJECT

    members: dict[str, Located]
    required: frozenset[str]

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        yield cls(located, keyword, reader.members(located), frozenset(reader.required_names(located)))

    def holds(self, context: Context, value: Any) -> bool:
        if type(value) is not dict:
            return True
        present = [name for name in self.members if name in value]
        if context.evaluated is not None:
            context.evaluated.names.update(present)
        return all(context.satisfies(self.members[name], value[name]) for name in present)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        if not branch.types & OBJECT:
            return True
        for name, member in self.members.items():
            if not branch.add_member(name, branch.graph.formulas(member)):
                return False
        for scope in scopes:
            known = branch.scopes[scope]
            branch.scopes[scope] = replace(known, names=known.names.union(self.members))
        return True

    def refute(self, graph: Graph) -> Alternatives:
        members = self.members.items()
        return [(MemberFails(name, member, present=True),) for name, member in members if name not in self.required]


@dataclass(frozen=True, eq=False, slots=True)
class MembersMatching(Assertion):
    """`additionalProperties`, or one pattern of `patternProperties`: members with names in a set satisfy a schema.

    Attributes:
        keys: the names that are in the set for any reader of the patterns.
        certain: the names that are in the set for all readers; another set only where readers differ.
    """

    keywords = ("patternProperties", "additionalProperties")
    domain: ClassVar[int] = OBJECT

    keys: KeySet
    certain: KeySet
    member: Located

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        # A name that only some readers match must satisfy both the schema of the pattern and the schema of other names.
        wide, narrow = (reader.pattern_properties(located, mode) for mode in ("wide", "narrow"))
        if keyword == "patternProperties":
            for test, certain, pattern in zip(wide, narrow, value):
                member = reader.child(located, keyword, pattern)
                yield cls(located, keyword, MatchingKeys(test), MatchingKeys(certain), member)
        else:
            names = frozenset(located.schema.get("properties", ()))
            keys, others = RemainingKeys(names, narrow), RemainingKeys(names, wide)
            yield cls(located, keyword, keys, others, reader.child(located, keyword))

    def holds(self, context: Context, value: Any) -> bool:
        if type(value) is not dict:
            return True
        present = [name for name in value if name in self.keys]
        if context.evaluated is not None:
            context.evaluated.names.update(present)
        return all(context.satisfies(self.member, value[name]) for name in present)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        for scope in scopes:
            known = branch.scopes[scope]
            if isinstance(self.certain, MatchingKeys):
                branch.scopes[scope] = replace(known, tests=(*known.tests, self.certain.test))
            else:
                branch.scopes[scope] = replace(known, all_members=True)
        return branch.add_rule(self.keys, branch.graph.formulas(self.member))

    def refute(self, graph: Graph) -> Alternatives:
        formulas = graph.formulas(self.member, positive=False)
        return [] if formulas is NONE else [(SomeMember(self.certain, formulas, self.source()),)]


@dataclass(frozen=True, eq=False, slots=True)
class PropertyNames(Excludable):
    """`propertyNames`: every name satisfies a schema."""

    keywords = ("propertyNames",)
    domain: ClassVar[int] = OBJECT

    names: Located

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        yield cls(located, keyword, reader.child(located, keyword))

    def holds(self, context: Context, value: Any) -> bool:
        return type(value) is not dict or all(context.satisfies(self.names, name) for name in value)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return not branch.types & OBJECT or branch.add_rule(branch.graph.other_names(self), NONE)

    def refute(self, graph: Graph) -> Alternatives:
        return [(IS_OBJECT, Excluded(self))]

    def exclude(self, branch: Branch) -> bool:
        return SomeMember(branch.graph.other_names(self), (), self.source()).apply(branch, ())


@dataclass(frozen=True, eq=False, slots=True)
class Required(Assertion):
    """`required`; `declared` holds the schemas of the names that the same schema declares."""

    keywords = ("required",)
    domain: ClassVar[int] = OBJECT

    names: tuple[str, ...]
    declared: dict[str, Located]

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        names, members = reader.required_names(located), reader.members(located)
        yield cls(located, keyword, names, {name: members[name] for name in names if name in members})

    def holds(self, context: Context, value: Any) -> bool:
        return type(value) is not dict or all(name in value for name in self.names)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return all(branch.require(name) for name in self.names)

    def refute(self, graph: Graph) -> Alternatives:
        return [(MemberFails(name, self.declared.get(name), present=False),) for name in self.names]


@dataclass(frozen=True, eq=False, slots=True)
class DependentRequired(Assertion):
    """One name of `dependentRequired`: an object with this member has the others too."""

    keywords = ("dependentRequired", "dependentSchemas", "dependencies")
    domain: ClassVar[int] = OBJECT

    name: str
    needed: tuple[str, ...]

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        for name, needed in value.items():
            if isinstance(needed, list):
                others = tuple(dict.fromkeys(other for other in needed if other != name))
                yield cls(located, keyword, name, others)
            else:
                yield DependentSchema(located, keyword, name, reader.child(located, keyword, name))

    def holds(self, context: Context, value: Any) -> bool:
        return type(value) is not dict or self.name not in value or all(name in value for name in self.needed)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        if not branch.types & OBJECT or not self.needed:
            return True
        present = Required(self.located, self.keyword, (self.name, *self.needed), {})
        return branch.choose([(Member(self.name, NONE),), (IS_OBJECT, present)])

    def refute(self, graph: Graph) -> Alternatives:
        present = Required(self.located, self.keyword, (self.name,), {})
        return [(IS_OBJECT, present, Member(name, NONE)) for name in self.needed]


@dataclass(frozen=True, eq=False, slots=True)
class DependentSchema(Assertion):
    """One name of `dependentSchemas`: an object with this member satisfies a schema."""

    domain: ClassVar[int] = OBJECT

    name: str
    then: Located

    def holds(self, context: Context, value: Any) -> bool:
        return type(value) is not dict or self.name not in value or context.satisfies_in_place(self.then, value)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        if not branch.types & OBJECT:
            return True
        present = Required(self.located, self.keyword, (self.name,), {})
        return branch.choose([(Member(self.name, NONE),), (IS_OBJECT, present, Is(self.then, True))], scopes)

    def refute(self, graph: Graph) -> Alternatives:
        return [(IS_OBJECT, Required(self.located, self.keyword, (self.name,), {}), Is(self.then, False))]

    @property
    def in_place(self) -> tuple[Located, ...]:
        return (self.then,)


class UnevaluatedProperties(Deferred):
    """`unevaluatedProperties`."""

    __slots__ = ()
    keywords = ("unevaluatedProperties",)
    domain: ClassVar[int] = OBJECT

    def holds(self, context: Context, value: Any) -> bool:
        if type(value) is not dict or context.evaluated is None:
            return True
        left = [name for name in value if name not in context.evaluated.names]
        context.evaluated.names.update(left)
        return all(context.satisfies(self.inner, value[name]) for name in left)

    def settle(self, branch: Branch, scope: EvaluationScope) -> bool:
        if scope.all_members or (self is branch.graph.closing and not (scope.names or scope.tests)):
            return True
        for outer in scope.outer:
            branch.scopes[outer] = replace(branch.scopes[outer], all_members=True)
        return branch.add_rule(RemainingKeys(scope.names, scope.tests), branch.graph.formulas(self.inner))

    def settle_denied(self, branch: Branch, scope: EvaluationScope) -> bool:
        if scope.all_members:
            return False
        formulas = branch.graph.formulas(self.inner, positive=False)
        return SomeMember(RemainingKeys(scope.names, scope.tests), formulas, self.source()).apply(branch, ())
