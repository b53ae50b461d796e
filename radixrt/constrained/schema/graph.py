"""The normalized schema as a graph of nodes, and the questions that are asked of it while it grows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from radixrt.constrained.regex import (
    EMPTY,
    Regex,
    RegexError,
    RegexTooComplex,
    alternate,
    literals,
    parse_regex,
)
from radixrt.constrained.schema.assertion import Assertion, satisfies
from radixrt.constrained.schema.document import Document
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.expansion import Expansion
from radixrt.constrained.schema.formula import NEVER, NONE, Either, Formula, Formulas, Is, Node
from radixrt.constrained.schema.hints import Hints
from radixrt.constrained.schema.keywords import assertions_of
from radixrt.constrained.schema.limits import Budget, over_limit
from radixrt.constrained.schema.logic_assertions import (
    AllOfAssertion,
    AnyOfAssertion,
    FalseAssertion,
    NotAssertion,
    RefAssertion,
)
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.solve import expand

Formats = Literal["assert", "annotate"]
IN_PLACE_DEPTH = 64
"""Schemas that may be nested in one another for one value."""


class Graph:
    """One normalization.

    Args:
        schema: the document.
        budget: bounds on the work.
        formats: whether known formats are enforced.
        closed: objects that do not say anything about further members have none.
        ignored: keywords (pointer of their schema, name) that are left out.

    Attributes:
        unwritable: values that no UTF-8 text can hold, by `values.key`, with the pointer and keyword that list them.

    Raises:
        MalformedSchema, Unsupported: see `Document`.
    """

    def __init__(
        self,
        schema: Any,
        budget: Budget,
        *,
        formats: Formats = "assert",
        closed: bool = False,
        ignored: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self.limits = budget.limits
        self.budget = budget
        self.document = Document(schema, budget.limits)
        self.formats = formats
        self.closed = closed
        self.ignored = ignored
        self.annotations = dict.fromkeys(self.document.annotations)
        self.refusals: list[Unsupported] = []
        self.nodes: list[Node] = []
        self.denials = 0
        self.unwritable: dict[Hashable, tuple[str, str]] = {}
        self.hints = Hints(self)
        self._nodes: dict[frozenset[Formula], Node] = {}
        self._formulas: dict[tuple[Located, bool], Formulas] = {}
        self._opposite: dict[Formula, Formula] = {}
        self._in_place: dict[Located, int] = {}
        self._patterns: dict[str, Regex] = {}
        self._expanding: set[Node] = set()
        self._blamed: tuple[str, str] | None = None
        self._conflicts: dict[Node, tuple[str, str]] = {}
        self._type_string = self.document.synthetic({"type": "string"}, self.document.root)
        self.root = self.node(self.formulas(self.document.root))

    # Assertions, formulas and nodes

    def assertions(self, located: Located) -> tuple[Assertion, ...]:
        """The assertions of a schema; none means that it is satisfied by every value."""
        found: tuple[Assertion, ...] | None = located.assertions
        if found is None:
            found = located.assertions = assertions_of(self, located)
        return found

    def annotate(self, pointer: str, keyword: str) -> None:
        """Note a keyword that is known not to be enforced because it only annotates."""
        self.annotations[pointer, keyword] = None

    def refuse(self, refusal: Unsupported) -> None:
        """Note a keyword that cannot be enforced, to go on without it and to find the others as well."""
        if all((refusal.pointer, refusal.keyword) != (other.pointer, other.keyword) for other in self.refusals):
            self.refusals.append(refusal)

    def pattern(self, pattern: str, located: Located, keyword: str) -> Regex:
        """The strings in which the pattern is found. Raises Unsupported if it is not one that can be enforced."""
        found = self._patterns.get(pattern)
        if found is None:
            try:
                found = self._patterns[pattern] = parse_regex(pattern, search=True)
            except (RegexError, RegexTooComplex) as error:
                reason = f"the pattern {pattern[:80]!r} is not taken: {error}"
                fix = "Write it without that, in the syntax of ECMA-262."
                raise Unsupported(located.pointer, keyword, reason, fix) from None
        return found

    def formulas(self, located: Located, *, positive: bool = True) -> Formulas:
        """What it takes to satisfy the schema (not to satisfy it): () if nothing, NONE if it is impossible.

        A schema that only refers to others, or only negates one, is replaced by those, so that equal positions meet
        in one node.
        """
        found = self._formulas.get((located, positive))
        if found is None:
            self._check_in_place(located, 0)
            found = self._formulas[located, positive] = self._make_formulas(located, positive)
        return found

    def _make_formulas(self, located: Located, positive: bool) -> Formulas:
        assertions = self.assertions(located)
        if not assertions:
            return () if positive else NONE
        first = assertions[0]
        if isinstance(first, FalseAssertion):
            return NONE if positive else ()
        if len(assertions) == 1:
            if isinstance(first, RefAssertion):
                return self.formulas(first.target, positive=positive)
            if isinstance(first, NotAssertion):
                return self.formulas(first.inner, positive=not positive)
            if isinstance(first, AllOfAssertion if positive else AnyOfAssertion):
                parts = [self.formulas(option, positive=positive) for option in first.options]
                if any(part is NONE for part in parts):
                    return NONE
                return tuple(dict.fromkeys(formula for part in parts for formula in part))
        return (Is(located, positive),)

    def either(self, options: tuple[Formulas, ...]) -> Formulas:
        """What it takes to satisfy at least one of the options."""
        live = tuple(dict.fromkeys(option for option in options if option is not NONE))
        if not live:
            return NONE
        if () in live:
            return ()
        return live[0] if len(live) == 1 else (Either(live),)

    def negated(self, formulas: Formulas) -> Formulas:
        """What it takes not to satisfy all of the formulas."""
        options: list[Formulas] = []
        for formula in formulas:
            if isinstance(formula, Is):
                options.append(self.formulas(formula.located, positive=not formula.positive))
            elif isinstance(formula, Either):
                parts = [self.negated(option) for option in formula.options]
                if all(part is not NONE for part in parts):
                    options.append(tuple(inner for part in parts for inner in part))
            else:
                options.append(())
        return self.either(tuple(options))

    def node(self, formulas: Formulas) -> Node:
        """The node of a conjunction."""
        if formulas is not NONE and NEVER in formulas:
            formulas = NONE
        conjunction = frozenset(formulas)
        found = self._nodes.get(conjunction)
        if found is None:
            found = Node(tuple(dict.fromkeys(formulas)), len(self.nodes))
            self.budget.count_node(found.pointer, "schema")
            self._nodes[conjunction] = found
            self.nodes.append(found)
        return found

    def expand(self, node: Node) -> Expansion:
        """What the node comes to; worked out once."""
        if node.expansion is None:
            if node in self._expanding:
                raise over_limit(node.pointer, "propertyNames", "it depends on itself")
            self._expanding.add(node)
            before = self._take_blame()
            try:
                node.expansion = expand(self, node)
                blamed = self._take_blame()
                if node.expansion.is_empty and blamed is not None:
                    self._conflicts[node] = blamed
            except RegexTooComplex as error:
                raise over_limit(node.pointer, "pattern", f"its patterns are too complex together ({error})") from None
            finally:
                self._expanding.discard(node)
                self._blamed = before
        return node.expansion

    def blame(self, name: str, demanded: Formulas) -> None:
        """Note that the value of a required member cannot be what is demanded of it."""
        places = [formula.located.pointer for formula in demanded if isinstance(formula, Is)]
        self._blamed = (places[-1] if places else "", name)

    def _take_blame(self) -> tuple[str, str] | None:
        found, self._blamed = self._blamed, None
        return found

    def blamed(self, node: Node) -> tuple[str, str] | None:
        """Where a node without any value fails: a place and the name of a member, if that was noted."""
        return self._conflicts.get(node)

    def is_expanding(self, node: Node) -> bool:
        """Whether the node is being worked out right now."""
        return node in self._expanding

    @property
    def expanding(self) -> int:
        """Nodes that are being worked out right now, inside one another."""
        return len(self._expanding)

    # Questions

    def holds(self, formula: Formula, value: Any) -> bool:
        """Whether a value satisfies a formula."""
        if isinstance(formula, Is):
            if formula.positive:
                return satisfies(self, formula.located, value)
            self.denials += 1
            try:
                return not satisfies(self, formula.located, value)
            finally:
                self.denials -= 1
        if isinstance(formula, Either):
            return any(all(self.holds(inner, value) for inner in option) for option in formula.options)
        return False

    @contextmanager
    def denying(self, really: bool = True) -> Iterator[None]:
        """While a value is tested against schemas that may have to fail, so that every test must be exact."""
        self.denials += really
        try:
            yield
        finally:
            self.denials -= really

    def strings(self, located: Located) -> tuple[str, ...] | Regex:
        """The strings that satisfy a schema: one by one if the schema lists them, else as a language."""
        only_strings = Is(self._type_string, True)
        pending = [self.node((only_strings, *self.formulas(located)))]
        listed: dict[str, None] = {}
        languages: list[Regex] = []
        while pending:
            expansion = self.expand(pending.pop())
            pending.extend(expansion.union or ())
            listed.update((value, None) for value in expansion.values.values() if type(value) is str)
            languages.extend(strings.language() for strings in expansion.strings)
        languages = [language for language in languages if language is not EMPTY]
        if not languages:
            return tuple(listed)
        return alternate(literals(sorted(listed)), *languages) if listed else alternate(*languages)

    def _check_in_place(self, located: Located, depth: int) -> int:
        """The longest chain of schemas that apply to the same value; a chain that never ends is refused."""
        found = self._in_place.get(located)
        if found == -1:
            fix = "Let it lead into a property or an item first."
            raise Unsupported(located.pointer, "$ref", "the reference leads back to itself for the same value", fix)
        if found is None:
            if depth > IN_PLACE_DEPTH:
                reason = f"more than {IN_PLACE_DEPTH} schemas are nested in one another for the same value"
                raise over_limit(located.pointer, "$ref", reason)
            self._in_place[located] = -1
            found = 0
            try:
                for assertion in self.assertions(located):
                    for part in assertion.in_place():
                        found = max(found, 1 + self._check_in_place(part, depth + 1))
            finally:
                self._in_place.pop(located)
            self._in_place[located] = found
        if depth + found > IN_PLACE_DEPTH:
            reason = f"more than {IN_PLACE_DEPTH} schemas are nested in one another for the same value"
            raise over_limit(located.pointer, "$ref", reason)
        return found
