"""Keywords for arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.keywords.base import IS_ARRAY, Alternatives, Assertion, Deferred, Size
from radixrt.constrained.schema.normal_form.nodes import NONE, ItemCount, either
from radixrt.constrained.schema.values import ARRAY, key

if TYPE_CHECKING:
    from radixrt.constrained.schema.normal_form.branch import Branch, EvaluationScope, Scopes
    from radixrt.constrained.schema.normal_form.graph import Graph
    from radixrt.constrained.schema.normal_form.keywords.reader import KeywordReader
    from radixrt.constrained.schema.normal_form.validation import Context


@dataclass(frozen=True, eq=False, slots=True)
class ItemFails:
    """The value is an array with an item at this index, which does not satisfy the schema."""

    index: int
    item: Located

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        formulas = branch.graph.formulas(self.item, positive=False)
        if formulas is NONE or not branch.limit_types(ARRAY) or not branch.limit_items(self.index + 1, None):
            return False
        return branch.add_items(self.index, self.index + 1, formulas)


class ArrayLength(Size):
    """`minItems`, `maxItems`."""

    __slots__ = ()
    keywords = ("minItems", "maxItems")
    domain: ClassVar[int] = ARRAY

    def holds(self, context: Context, value: Any) -> bool:
        return type(value) is not list or self.contains(len(value))

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return branch.limit_items(self.low, self.high)


@dataclass(frozen=True, eq=False, slots=True)
class PrefixItems(Assertion):
    """`prefixItems` (`items` as a list in older drafts): one schema for each of the first items."""

    keywords = ("prefixItems",)
    domain: ClassVar[int] = ARRAY

    items: tuple[Located, ...]

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        yield cls(located, keyword, reader.children(located, keyword))

    def holds(self, context: Context, value: Any) -> bool:
        if type(value) is not list:
            return True
        if context.evaluated is not None:
            context.evaluated.items.update(range(min(len(value), len(self.items))))
        return all(context.satisfies(schema, item) for schema, item in zip(self.items, value))

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        for index, item in enumerate(self.items):
            if not branch.add_items(index, index + 1, branch.graph.formulas(item)):
                return False
        for scope in scopes:
            known = branch.scopes[scope]
            branch.scopes[scope] = replace(known, prefix=max(known.prefix, len(self.items)))
        return True

    def refute(self, graph: Graph) -> Alternatives:
        return [(ItemFails(index, item),) for index, item in enumerate(self.items)]


@dataclass(frozen=True, eq=False, slots=True)
class Items(Assertion):
    """`items` (`additionalItems` in older drafts): every item from index `start` on satisfies a schema."""

    keywords = ("items", "additionalItems")
    domain: ClassVar[int] = ARRAY

    start: int
    item: Located

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        if keyword == "additionalItems":
            items = located.schema.get("items")
            if isinstance(items, list):
                yield cls(located, keyword, len(items), reader.child(located, keyword))
        elif isinstance(value, list):
            yield from PrefixItems.read(reader, located, keyword, value)
        else:
            has_prefix = "prefixItems" in located.resource.dialect.keywords
            start = len(located.schema.get("prefixItems", ())) if has_prefix else 0
            yield cls(located, keyword, start, reader.child(located, keyword))

    def holds(self, context: Context, value: Any) -> bool:
        if type(value) is not list:
            return True
        if context.evaluated is not None:
            context.evaluated.items.update(range(self.start, len(value)))
        return all(context.satisfies(self.item, item) for item in value[self.start :])

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        for scope in scopes:
            branch.scopes[scope] = replace(branch.scopes[scope], all_items=True)
        return not branch.types & ARRAY or branch.add_items(self.start, None, branch.graph.formulas(self.item))

    def refute(self, graph: Graph) -> Alternatives:
        formulas = graph.formulas(self.item, positive=False)
        return [] if formulas is NONE else [(IS_ARRAY, ItemCount(self.start, formulas, 1, None, self.source()))]


@dataclass(frozen=True, eq=False, slots=True)
class Contains(Assertion):
    """`contains` with `minContains` (`low`) and `maxContains` (`high`)."""

    keywords = ("contains",)
    domain: ClassVar[int] = ARRAY

    item: Located
    low: int
    high: int | None

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        known = located.resource.dialect.keywords
        low = int(located.schema.get("minContains", 1)) if "minContains" in known else 1
        high = located.schema.get("maxContains") if "maxContains" in known else None
        yield cls(located, keyword, reader.child(located, keyword), low, None if high is None else int(high))

    def holds(self, context: Context, value: Any) -> bool:
        if type(value) is not list:
            return True
        exact = self.high is not None
        found = [index for index, item in enumerate(value) if context.satisfies(self.item, item, exact=exact)]
        if context.evaluated is not None and self.located.resource.dialect.contains_evaluates:
            context.evaluated.items.update(found)
        return len(found) >= self.low and (self.high is None or len(found) <= self.high)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        formulas = branch.graph.formulas(self.item)
        if self.located.resource.dialect.contains_evaluates:
            for scope in scopes:
                branch.scopes[scope] = replace(branch.scopes[scope], kinds=(*branch.scopes[scope].kinds, formulas))
        if not branch.types & ARRAY:
            return True
        if self.high is not None and self.low > self.high:
            return branch.drop(ARRAY)
        if formulas is NONE:
            return self.low == 0 or branch.drop(ARRAY)
        if not formulas:
            return branch.limit_items(self.low, self.high)
        if self.low == 0 and self.high is None:
            return True
        return branch.count_items(ItemCount(0, formulas, self.low, self.high, self.source()))

    def refute(self, graph: Graph) -> Alternatives:
        found: Alternatives = []
        if self.low > 0:
            found.append((IS_ARRAY, replace(self, low=0, high=self.low - 1)))
        if self.high is not None:
            found.append((IS_ARRAY, replace(self, low=self.high + 1, high=None)))
        return found


@dataclass(frozen=True, eq=False, slots=True)
class UniqueItems(Assertion):
    """`uniqueItems: true`; if not `unique`, its negation: two items are equal."""

    keywords = ("uniqueItems",)
    domain: ClassVar[int] = ARRAY

    unique: bool = True

    @classmethod
    def read(cls, reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
        if value:
            yield cls(located, keyword)

    def holds(self, context: Context, value: Any) -> bool:
        return type(value) is not list or len({key(item) for item in value}) == len(value)

    def apply(self, branch: Branch, scopes: Scopes) -> bool:
        return not branch.types & ARRAY or branch.set_unique(self.unique, self.source())

    def refute(self, graph: Graph) -> Alternatives:
        return [(IS_ARRAY, replace(self, unique=False))]


class UnevaluatedItems(Deferred):
    """`unevaluatedItems`."""

    __slots__ = ()
    keywords = ("unevaluatedItems",)
    domain: ClassVar[int] = ARRAY

    def holds(self, context: Context, value: Any) -> bool:
        if type(value) is not list or context.evaluated is None:
            return True
        left = [index for index in range(len(value)) if index not in context.evaluated.items]
        context.evaluated.items.update(left)
        return all(context.satisfies(self.inner, value[index]) for index in left)

    def settle(self, branch: Branch, scope: EvaluationScope) -> bool:
        if scope.all_items:
            return True
        options = (*scope.kinds, branch.graph.formulas(self.inner))
        for outer in scope.outer:
            branch.scopes[outer] = replace(branch.scopes[outer], all_items=True)
        return not branch.types & ARRAY or branch.add_items(scope.prefix, None, either(options))

    def settle_denied(self, branch: Branch, scope: EvaluationScope) -> bool:
        if scope.all_items:
            return False
        formulas = branch.graph.formulas(self.inner, positive=False)
        for kind in scope.kinds:
            if formulas is not NONE:
                negated = branch.graph.negated(kind)
                formulas = NONE if negated is NONE else formulas + negated
        if formulas is NONE or not branch.limit_types(ARRAY):
            return False
        return branch.count_items(ItemCount(scope.prefix, formulas, 1, None, self.source()))
