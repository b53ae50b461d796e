"""The normalized schema as a graph of nodes, and the questions that are asked of it while it grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from radixrt.constrained.regex import (
    EMPTY,
    Regex,
    RegexError,
    RegexTooComplex,
    alternate,
    complement,
    literals,
    parse_regex,
)
from radixrt.constrained.schema.assertion import Assertion, satisfies
from radixrt.constrained.schema.disjoint import discriminated, surely_empty, told_apart
from radixrt.constrained.schema.document import Document, Located
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.expansion import Expansion
from radixrt.constrained.schema.formula import NEVER, NONE, Either, Formula, Formulas, Is, Node
from radixrt.constrained.schema.keys import KeySet, Matching, Rest
from radixrt.constrained.schema.keywords import assertions_of
from radixrt.constrained.schema.limits import Budget, over_limit
from radixrt.constrained.schema.logic_assertions import (
    AllOfAssertion,
    AnyOfAssertion,
    FalseAssertion,
    NotAssertion,
    OneOfAssertion,
    RefAssertion,
)
from radixrt.constrained.schema.scalar_assertions import EnumAssertion
from radixrt.constrained.schema.solve import expand
from radixrt.constrained.schema.values import ALL

Formats = Literal["assert", "annotate"]
IN_PLACE_DEPTH = 64
"""Schemas that may be nested in one another for one value."""
LISTED_NAMES = 32
"""A pattern for property names that has at most this many is taken as those."""
_EVALUATING = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "items",
        "patternProperties",
        "prefixItems",
        "properties",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)


class Graph:
    """One normalization.

    Args:
        schema: the document.
        budget: bounds on the work.
        formats: whether known formats are enforced.
        closed: objects that do not say anything about further members have none.
        ignored: keywords (pointer of their schema, name) that are left out.

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
        self._nodes: dict[frozenset[Formula], Node] = {}
        self._formulas: dict[tuple[Located, bool], Formulas] = {}
        self._opposite: dict[Formula, Formula] = {}
        self._accepts: dict[Located, int] = {}
        self._in_place: dict[Located, int] = {}
        self._disjoint: dict[tuple[Located, Located], bool] = {}
        self._contradict: dict[frozenset[Formula], bool] = {}
        self._remaining: dict[Formulas, list[Any] | None] = {}
        self._implies: dict[tuple[Formulas, Formulas], bool] = {}
        self._patterns: dict[str, Regex] = {}
        self._listed_names: dict[KeySet, tuple[list[str] | None]] = {}
        self._expanding: set[Node] = set()
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
        """The strings in which the pattern is found. Raises Unsupported if it is none, or one that cannot be enforced."""
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
            try:
                node.expansion = expand(self, node)
            except RegexTooComplex as error:
                raise over_limit(node.pointer, "pattern", f"its patterns are too complex together ({error})") from None
            finally:
                self._expanding.discard(node)
        return node.expansion

    def is_expanding(self, node: Node) -> bool:
        """Whether the node is being worked out right now."""
        return node in self._expanding

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

    def accepts(self, located: Located) -> int:
        """Types of values that the schema may accept: a quick upper bound."""
        found = self._accepts.get(located)
        if found is None:
            self._accepts[located] = ALL  # while it is worked out, for schemas that contain themselves
            found = ALL
            for assertion in self.assertions(located):
                found &= assertion.accepts
                if isinstance(assertion, RefAssertion):
                    found &= self.accepts(assertion.target)
                elif isinstance(assertion, AllOfAssertion):
                    for option in assertion.options:
                        found &= self.accepts(option)
                elif isinstance(assertion, AnyOfAssertion | OneOfAssertion):
                    below = 0
                    for option in assertion.options:
                        below |= self.accepts(option)
                    found &= below
            self._accepts[located] = found
        return found

    def evaluates(self, located: Located) -> bool:
        """Whether the schema may evaluate members or items of the value."""
        return any(
            assertion.keyword in _EVALUATING or any(self.evaluates(part) for part in assertion.in_place())
            for assertion in self.assertions(located)
        )

    def single_values(self, formula: Formula) -> list[Any] | None:
        """Values one of which the value must equal, if the formula plainly says so."""
        if not isinstance(formula, Is) or not formula.positive:
            return None
        for assertion in self.assertions(formula.located):
            if isinstance(assertion, EnumAssertion):
                return assertion.values
            if isinstance(assertion, RefAssertion):
                for inner in self.formulas(assertion.target):
                    values = self.single_values(inner)
                    if values is not None:
                        return values
        return None

    def contradict(self, formulas: Formulas) -> bool:
        """Whether the formulas plainly exclude one another: by their types, or because one lists single values."""
        conjunction = frozenset(formulas)
        found = self._contradict.get(conjunction)
        if found is None:
            found = self._contradict[conjunction] = self._do_contradict(formulas)
        return found

    def _do_contradict(self, formulas: Formulas) -> bool:
        if NEVER in formulas or not self._types(formulas):
            return True
        try:
            return self._candidates(formulas) == []
        except Unsupported:
            return False

    def _types(self, formulas: Formulas) -> int:
        """Types of values that may satisfy the formulas: a quick upper bound."""
        mask = ALL
        for formula in formulas:
            if isinstance(formula, Is) and formula.positive:
                mask &= self.accepts(formula.located)
        return mask

    def _candidates(self, formulas: Formulas) -> list[Any] | None:
        """The values that satisfy the formulas, if one of them plainly lists values. Raises Unsupported."""
        known = len(formulas)
        while known and formulas[:known] not in self._remaining:
            known -= 1
        found = self._remaining[formulas[:known]] if known else None
        for place in range(known, len(formulas)):
            if found is None:
                found = self.single_values(formulas[place])
                if found is not None:
                    found = [value for value in found if all(self.holds(other, value) for other in formulas[:place])]
            if found is not None:
                found = [value for value in found if self.holds(formulas[place], value)]
            self._remaining[formulas[: place + 1]] = found
        return found

    def implies(self, known: Formulas, formulas: Formulas) -> bool:
        """Whether what is known of a value plainly implies the formulas."""
        if known is NONE:
            return True
        if formulas is NONE or not known:
            return False
        left = [formula for formula in formulas if formula not in known]
        if not left:
            return True
        place = (known, formulas)
        found = self._implies.get(place)
        if found is None:
            found = self._implies[place] = self._does_imply(known, left)
        return found

    def _does_imply(self, known: Formulas, formulas: list[Formula]) -> bool:
        try:
            values = self._candidates(known)
            if values is not None:
                return all(self.holds(formula, value) for formula in formulas for value in values)
        except Unsupported:
            return False
        mask = self._types(known)
        return all(
            isinstance(formula, Is) and not formula.positive and not self.accepts(formula.located) & mask
            for formula in formulas
        )

    def told_apart(self, options: list[Located]) -> bool:
        """Whether all are objects with one required member of whose listed values each has its own."""
        return told_apart(self, options)

    def all_disjoint(self, options: list[Located]) -> bool:
        """Whether it is certain that no value satisfies two of the schemas."""
        if told_apart(self, options):
            return True
        return not any(not self.disjoint(one, two) for place, one in enumerate(options) for two in options[place + 1 :])

    def disjoint(self, left: Located, right: Located) -> bool:
        """Whether it is certain that no value satisfies both schemas."""
        place = (left, right)
        found = self._disjoint.get(place)
        if found is None:
            found = not self.accepts(left) & self.accepts(right) or discriminated(self, left, right)
            if not found and left is not right:
                try:
                    found = surely_empty(self, self.node((*self.formulas(left), *self.formulas(right))), 3)
                except (Unsupported, RegexTooComplex):
                    found = False
            self._disjoint[place] = self._disjoint[right, left] = found
        return found

    def strings(self, located: Located) -> frozenset[str] | Regex:
        """The strings that satisfy a schema: as a set if the schema lists them, else as a language."""
        only_strings = Is(self._type_string, True)
        pending = [self.node((only_strings, *self.formulas(located)))]
        listed: set[str] = set()
        languages: list[Regex] = []
        while pending:
            expansion = self.expand(pending.pop())
            pending.extend(expansion.union or ())
            listed.update(value for value in expansion.values.values() if type(value) is str)
            languages.extend(strings.language() for strings in expansion.strings)
        languages = [language for language in languages if language is not EMPTY]
        if not languages:
            return frozenset(listed)
        return alternate(literals(sorted(listed)), *languages) if listed else alternate(*languages)

    def listed_names(self, keys: KeySet) -> list[str] | None:
        """The names of a set, if they are few; None if they are many."""
        if isinstance(keys, Rest) and (keys.names or len(keys.tests) != 1):
            return None
        found = self._listed_names.get(keys)
        if found is None:
            test = keys.tests[0]
            language = test.language() if isinstance(keys, Matching) else complement(test.language())
            names = language.enumerate(LISTED_NAMES) if language.max_length is not None else None
            found = self._listed_names[keys] = (None if names is None else sorted(names),)
        return found[0]

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
