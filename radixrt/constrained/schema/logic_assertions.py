"""Assertions that combine subschemas which apply to the value itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt.constrained.schema.assertion import Assertion, Frames, assume, deny, satisfies
from radixrt.constrained.schema.branch import Alternative, Branch
from radixrt.constrained.schema.evaluated import Marks
from radixrt.constrained.schema.resources import Located

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph


class FalseAssertion(Assertion):
    """The schema `false`."""

    __slots__ = ()
    keyword = "false"
    accepts = 0

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """No value is left."""
        return False

    def refute(self) -> list[Alternative]:
        """Every value."""
        return [lambda b: True]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Never."""
        return False


class RefAssertion(Assertion):
    """`$ref`, `$dynamicRef`, `$recursiveRef`: what they point to holds."""

    __slots__ = ("_target", "keyword", "reference")

    def __init__(self, graph: Graph, located: Located, keyword: str, reference: str) -> None:
        super().__init__(graph, located)
        self.keyword = keyword
        self.reference = reference
        self._target: Located | None = None

    @property
    def target(self) -> Located:
        """What it points to."""
        if self._target is None:
            document = self.graph.document
            if self.keyword == "$dynamicRef":
                self._target = document.resolve_dynamic(self.located, self.reference)
            elif self.keyword == "$recursiveRef":
                self._target = document.resolve_recursive(self.located)
            else:
                self._target = document.resolve(self.located, self.reference)
        return self._target

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """The target holds."""
        return assume(branch, self.target, frames)

    def refute(self) -> list[Alternative]:
        """The target does not hold."""
        return [lambda b: deny(b, self.target)]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether the target holds."""
        return satisfies(self.graph, self.target, value, marks)

    def in_place(self) -> list[Located]:
        """The target."""
        return [self.target]


class _Options(Assertion):
    """A keyword with a list of schemas."""

    __slots__ = ("options",)

    def __init__(self, graph: Graph, located: Located, options: list[Located]) -> None:
        super().__init__(graph, located)
        self.options = options

    def in_place(self) -> list[Located]:
        """Every option."""
        return self.options


class AllOfAssertion(_Options):
    """`allOf`."""

    __slots__ = ()
    keyword = "allOf"

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """Every option holds."""
        return all(assume(branch, option, frames) for option in self.options)

    def refute(self) -> list[Alternative]:
        """Some option does not hold."""
        return [lambda b, o=option: deny(b, o) for option in self.options]  # type: ignore[misc]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether every option holds."""
        return all(satisfies(self.graph, option, value, marks) for option in self.options)


class AnyOfAssertion(_Options):
    """`anyOf`."""

    __slots__ = ()
    keyword = "anyOf"

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """Some option holds. Where it matters what has been evaluated, each option is known to hold or not to hold."""
        graph = self.graph
        if frames and any(graph.hints.evaluates(option) for option in self.options):
            return branch.choose([lambda b, p=place: self._first(b, p, frames) for place in range(len(self.options))])  # type: ignore[misc]
        live: list[Alternative] = []
        for option in self.options:
            if not graph.assertions(option):
                return True
            if graph.hints.accepts(option) & branch.mask:
                live.append(lambda b, o=option: assume(b, o))  # type: ignore[misc]
        return branch.choose(live)

    def _first(self, branch: Branch, place: int, frames: Frames) -> bool:
        """The option at this place is the first that holds; each later one holds or does not."""
        if not all(deny(branch, option) for option in self.options[:place]):
            return False
        if not assume(branch, self.options[place], frames):
            return False
        for option in self.options[place + 1 :]:
            branch.choose([lambda b, o=option: assume(b, o, frames), lambda b, o=option: deny(b, o)])  # type: ignore[misc]
        return True

    def refute(self) -> list[Alternative]:
        """No option holds."""
        return [lambda b: all(deny(b, option) for option in self.options)]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether some option holds."""
        if marks is None:
            return any(satisfies(self.graph, option, value) for option in self.options)
        found = False
        for option in self.options:  # all of them, for what they evaluate
            found = satisfies(self.graph, option, value, marks) or found
        return found


class OneOfAssertion(_Options):
    """`oneOf`."""

    __slots__ = ("_told_apart",)
    keyword = "oneOf"

    def __init__(self, graph: Graph, located: Located, options: list[Located]) -> None:
        super().__init__(graph, located, options)
        self._told_apart: bool | None = None

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """One option holds; the others do not, which is only written where two can hold at once."""
        live = [option for option in self.options if self.graph.hints.accepts(option) & branch.mask]
        return branch.choose([lambda b, o=option: self._only(b, o, live, frames) for option in live])  # type: ignore[misc]

    def _only(self, branch: Branch, option: Located, live: list[Located], frames: Frames) -> bool:
        if live.count(option) > 1 or not assume(branch, option, frames):
            return False
        if self._told_apart is None:
            self._told_apart = self.graph.hints.told_apart(self.options)
        return self._told_apart or all(
            other is option or self.graph.hints.disjoint(option, other) or deny(branch, other)
            for other in live
            if self.graph.hints.accepts(other) & branch.mask
        )

    def refute(self) -> list[Alternative]:
        """No option holds, or two do."""
        options = self.options
        found: list[Alternative] = [lambda b: all(deny(b, option) for option in options)]
        for place, one in enumerate(options):
            for two in options[place + 1 :]:
                if one is two or not self.graph.hints.disjoint(one, two):
                    found.append(lambda b, one=one, two=two: assume(b, one) and assume(b, two))  # type: ignore[misc]
        return found

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether exactly one option holds."""
        with self.graph.denying():
            return sum(satisfies(self.graph, option, value, marks) for option in self.options) == 1


class NotAssertion(Assertion):
    """`not`."""

    __slots__ = ("inner",)
    keyword = "not"

    def __init__(self, graph: Graph, located: Located, inner: Located) -> None:
        super().__init__(graph, located)
        self.inner = inner

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """The schema does not hold."""
        return deny(branch, self.inner)

    def refute(self) -> list[Alternative]:
        """The schema holds."""
        return [lambda b: assume(b, self.inner)]

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether the schema does not hold."""
        with self.graph.denying():
            return not satisfies(self.graph, self.inner, value)

    def in_place(self) -> list[Located]:
        """The schema."""
        return [self.inner]


class IfAssertion(Assertion):
    """`if` with `then` and `else`, of which one may be missing."""

    __slots__ = ("condition", "no", "yes")
    keyword = "if"

    def __init__(
        self, graph: Graph, located: Located, condition: Located, yes: Located | None, no: Located | None
    ) -> None:
        super().__init__(graph, located)
        self.condition = condition
        self.yes = yes
        self.no = no

    def apply(self, branch: Branch, frames: Frames) -> bool:
        """The condition and `then` hold, or the condition does not and `else` does."""
        if self.yes is None and self.no is None and not frames:
            return True

        def holds(b: Branch) -> bool:
            return assume(b, self.condition, frames) and (self.yes is None or assume(b, self.yes, frames))

        def fails(b: Branch) -> bool:
            return deny(b, self.condition) and (self.no is None or assume(b, self.no, frames))

        return branch.choose([holds, fails])

    def refute(self) -> list[Alternative]:
        """The condition holds and `then` does not, or the condition does not and neither does `else`."""
        found: list[Alternative] = []
        yes, no = self.yes, self.no
        if yes is not None:
            found.append(lambda b: assume(b, self.condition) and deny(b, yes))
        if no is not None:
            found.append(lambda b: deny(b, self.condition) and deny(b, no))
        return found

    def holds(self, value: Any, marks: Marks | None) -> bool:
        """Whether the branch of the condition that is taken holds."""
        with self.graph.denying():
            taken = self.yes if satisfies(self.graph, self.condition, value, marks) else self.no
        return taken is None or satisfies(self.graph, taken, value, marks)

    def in_place(self) -> list[Located]:
        """The condition and both branches."""
        return [part for part in (self.condition, self.yes, self.no) if part is not None]
