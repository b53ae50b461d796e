"""Assertions on the items of an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.assertion import Assertion, Frames, satisfies
from radixrt.constrained.schema.branch import Alternative, Branch
from radixrt.constrained.schema.evaluated import Marks
from radixrt.constrained.schema.expansion import ItemCount
from radixrt.constrained.schema.formula import NONE, Formulas
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.values import ARRAY, key

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph


class PrefixItemsAssertion(Assertion):
    """`prefixItems` (`items` as a list in older drafts): the first items satisfy one schema each."""

    __slots__ = ("items", "keyword")
    domain = ARRAY

    def __init__(self, graph: Graph, located: Located, keyword: str, items: list[Located]) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.items = items

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """Each of the first items, where present, satisfies its schema."""
        for index, item in enumerate(self.items):
            if not branch.add_items(index, index + 1, self.graph.formulas(item)):
                return False
        for frame in frames:
            branch.frames[frame].prefix = max(branch.frames[frame].prefix, len(self.items))
        return True

    def refute(self) -> list[Alternative]:
        """One of the first items is present and does not satisfy its schema."""
        return [lambda b, i=index, s=item: _has(b, i, s) for index, item in enumerate(self.items)]  # type: ignore[misc]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether each of the first items of an array satisfies its schema."""
        if type(value) is not list:
            return True
        if marks is not None:
            marks.items.update(range(min(len(value), len(self.items))))
        return all(satisfies(self.graph, schema, item) for schema, item in zip(self.items, value))


def _has(branch: Branch, index: int, item: Located) -> bool:
    """The value is an array with an item at this index, which does not satisfy the schema."""
    formulas = branch.graph.formulas(item, positive=False)
    if formulas is NONE or not branch.limit_types(ARRAY) or not branch.limit_items(index + 1, None):
        return False
    return branch.add_items(index, index + 1, formulas)


class ItemsAssertion(Assertion):
    """`items` (`additionalItems` in older drafts): every item from an index on satisfies a schema."""

    __slots__ = ("item", "keyword", "start")
    domain = ARRAY

    def __init__(self, graph: Graph, located: Located, keyword: str, start: int, item: Located) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.start = start
        self.item = item

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """Each of those items satisfies the schema."""
        for frame in frames:
            branch.frames[frame].all_items = True
        return not branch.mask & ARRAY or branch.add_items(self.start, None, self.graph.formulas(self.item))

    def refute(self) -> list[Alternative]:
        """One of those items does not satisfy the schema."""
        formulas = self.graph.formulas(self.item, positive=False)
        return [] if formulas is NONE else [lambda b: _some(b, self.start, formulas, self)]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether each of those items of an array satisfies the schema."""
        if type(value) is not list:
            return True
        if marks is not None:
            marks.items.update(range(self.start, len(value)))
        return all(satisfies(self.graph, self.item, item) for item in value[self.start :])


def _some(branch: Branch, start: int, formulas: Formulas, assertion: Assertion) -> bool:
    """The value is an array of which some item from an index on satisfies the formulas."""
    return branch.limit_types(ARRAY) and branch.count_items(ItemCount(start, formulas, 1, None, assertion.source()))


class ContainsAssertion(Assertion):
    """`contains` with `minContains` and `maxContains`."""

    __slots__ = ("high", "item", "low")
    keyword = "contains"
    domain = ARRAY

    def __init__(self, graph: Graph, located: Located, item: Located, low: int, high: int | None) -> None:
        super().__init__(graph, located)
        self.item = item
        self.low = low
        self.high = high

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """An array has as many items that satisfy the schema as it must."""
        formulas = self.graph.formulas(self.item)
        if self.located.resource.dialect.contains_evaluates:
            for frame in frames:
                branch.frames[frame].kinds.append(formulas)
        return not branch.mask & ARRAY or self._counted(branch, self.low, self.high)

    def _counted(self, branch: Branch, low: int, high: int | None) -> bool:
        if high is not None and low > high:
            return branch.drop(ARRAY)
        formulas = self.graph.formulas(self.item)
        if formulas is NONE:
            return low == 0 or branch.drop(ARRAY)
        if not formulas:
            return branch.limit_items(low, high)
        if low == 0 and high is None:
            return True
        return branch.count_items(ItemCount(0, formulas, low, high, self.source()))

    def refute(self) -> list[Alternative]:
        """An array has too few or too many items that satisfy the schema."""
        found: list[Alternative] = []
        if self.low > 0:
            found.append(lambda b: b.limit_types(ARRAY) and self._counted(b, 0, self.low - 1))
        if self.high is not None:
            found.append(lambda b: b.limit_types(ARRAY) and self._counted(b, (self.high or 0) + 1, None))
        return found

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether an array has as many items that satisfy the schema as it must."""
        if type(value) is not list:
            return True
        with self.graph.denying(self.high is not None):
            found = [index for index, item in enumerate(value) if satisfies(self.graph, self.item, item)]
        if marks is not None and self.located.resource.dialect.contains_evaluates:
            marks.items.update(found)
        return len(found) >= self.low and (self.high is None or len(found) <= self.high)


class ItemCountAssertion(Assertion):
    """`minItems` and `maxItems`."""

    __slots__ = ("keyword", "limit")
    domain = ARRAY

    def __init__(self, graph: Graph, located: Located, keyword: str, limit: int) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.limit = limit

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """An array has enough (not too many) items."""
        if self.keyword == "minItems":
            return branch.limit_items(self.limit, None)
        return branch.limit_items(0, self.limit)

    def refute(self) -> list[Alternative]:
        """An array with too few (many) items."""
        if self.keyword == "maxItems":
            return [lambda b: b.limit_types(ARRAY) and b.limit_items(self.limit + 1, None)]
        return [lambda b: b.limit_types(ARRAY) and b.limit_items(0, self.limit - 1)] if self.limit else []

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether an array has enough (not too many) items."""
        if type(value) is not list:
            return True
        return len(value) >= self.limit if self.keyword == "minItems" else len(value) <= self.limit


class UniqueItemsAssertion(Assertion):
    """`uniqueItems: true`."""

    __slots__ = ()
    keyword = "uniqueItems"
    domain = ARRAY

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """No two items of an array are equal."""
        return not branch.mask & ARRAY or branch.set_unique(True, self.source())

    def refute(self) -> list[Alternative]:
        """Two items of an array are equal."""
        return [lambda b: b.limit_types(ARRAY) and b.set_unique(False, self.source())]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether no two items of an array are equal."""
        return type(value) is not list or len({key(item) for item in value}) == len(value)


class UnevaluatedItemsAssertion(Assertion):
    """`unevaluatedItems`: items that nothing else in the schema has evaluated satisfy a schema."""

    __slots__ = ("item",)
    keyword = "unevaluatedItems"
    domain = ARRAY
    waits = True

    def __init__(self, graph: Graph, located: Located, item: Located) -> None:
        super().__init__(graph, located)
        self.item = item

    def settle(self, branch: Branch, place: int) -> bool:
        """Apply it to what the frame with this index has left over."""
        frame = branch.frames[place]
        if frame.all_items:
            return True
        options = (*frame.kinds, self.graph.formulas(self.item))
        for outer in frame.outer:
            branch.frames[outer].all_items = True
        return not branch.mask & ARRAY or branch.add_items(frame.prefix, None, self.graph.either(options))

    def settle_denied(self, branch: Branch, place: int) -> bool:
        """Some item that the frame has left over does not satisfy the schema."""
        frame = branch.frames[place]
        if frame.all_items:
            return False
        formulas: Formulas = self.graph.formulas(self.item, positive=False)
        for kind in frame.kinds:
            if formulas is not NONE:
                negated = self.graph.negated(kind)
                formulas = NONE if negated is NONE else formulas + negated
        return formulas is not NONE and _some(branch, frame.prefix, formulas, self)

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether each item of an array that the marks do not have satisfies the schema; marks them."""
        if type(value) is not list or marks is None:
            return True
        left = [index for index in range(len(value)) if index not in marks.items]
        marks.items.update(left)
        return all(satisfies(self.graph, self.item, value[index]) for index in left)
