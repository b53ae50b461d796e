"""`Graph`: the interned nodes and formulas of a schema, with all results computed for them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from radixrt.constrained.regex import EMPTY, Regex, RegexTooComplex, alternate, complement, enumerate_strings, literals
from radixrt.constrained.schema.document.document import Document
from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.limits import Budget, over_limit
from radixrt.constrained.schema.normal_form.keywords.base import Assertion
from radixrt.constrained.schema.normal_form.keywords.objects import PropertyNames, UnevaluatedProperties
from radixrt.constrained.schema.normal_form.keywords.reader import FormatMode, KeywordReader
from radixrt.constrained.schema.normal_form.nodes import (
    NEVER,
    NONE,
    Either,
    Expansion,
    Formula,
    Formulas,
    Is,
    Node,
    either,
)
from radixrt.constrained.schema.normal_form.strings import KeySet, MatchingKeys, RemainingKeys, StringTest

IN_PLACE_DEPTH = 64
"""Maximum nesting of schemas that apply to the same value."""
MAX_LISTED_NAMES = 32
"""A pattern that at most this many property names match is replaced by those names."""
_IN_PLACE_KEYWORDS = frozenset(
    ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies")
)
"""Keywords that apply other schemas to the value itself."""


@dataclass(slots=True)
class StaticFacts:
    """Memoized answers of `static_checks` and `disjointness`, whose functions document them."""

    types: dict[Located, int] = field(default_factory=dict)
    evaluates: dict[Located, bool] = field(default_factory=dict)
    declares: dict[Located, bool] = field(default_factory=dict)
    evaluates_all: dict[Located, bool] = field(default_factory=dict)
    disjoint: dict[tuple[Located, Located], bool] = field(default_factory=dict)
    discriminated: dict[Assertion, bool] = field(default_factory=dict)
    listed_options: dict[Assertion, dict[Hashable, tuple[Located, Any]] | None] = field(default_factory=dict)
    contradict: dict[frozenset[Formula], bool] = field(default_factory=dict)
    implies: dict[tuple[Formulas, Formulas], bool] = field(default_factory=dict)
    candidates: dict[Formulas, list[Any] | None] = field(default_factory=dict)
    listed_names: dict[KeySet, tuple[list[str] | None]] = field(default_factory=dict)
    tags: dict[Located, dict[str, frozenset[Hashable]]] = field(default_factory=dict)
    listed_members: dict[Located, dict[str, frozenset[Hashable]]] = field(default_factory=dict)


class Graph:
    """The normal form of one schema, expanded on demand.

    Args:
        schema: the parsed schema.
        budget: bounds on the work.
        solve: computes the expansion of a node (`solver.expand`).
        formats: "assert" enforces the known formats.
        closed: objects that declare members have no unevaluated members, as if `unevaluatedProperties: false` stood
            beside all schemas that apply to the object.
        ignored: keywords (pointer of their schema, name) that are skipped.

    Attributes:
        guarded: guards enforce the obligations of the grammar. Without guards, a schema that needs them is refused.
        assertions: see `KeywordReader.assertions`.
        refusals: keywords that cannot be enforced, collected while emitting productions without these keywords.
        facts: memoized answers of `static_checks` and `disjointness`.
        closing: the assertion that closes objects; None where they are open.

    Raises:
        MalformedSchema, Unsupported: see `Document`.
    """

    def __init__(
        self,
        schema: Any,
        budget: Budget,
        solve: Callable[[Graph, Node], Expansion],
        *,
        formats: FormatMode = "assert",
        closed: bool = False,
        ignored: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self.budget = budget
        self.guarded = True
        self.document = Document(schema, budget.limits)
        self.reader = KeywordReader(self.document, budget.limits, formats, ignored)
        self.assertions = self.reader.assertions
        self.refusals: list[Unsupported] = []
        self.facts = StaticFacts()
        self._solve = solve
        self._nodes: dict[Formula | frozenset[Formula], Node] = {}
        self._expansions: dict[Node, Expansion] = {}
        self._formulas: dict[Located, Formulas] = {}
        self._negations: dict[Located, Formulas] = {}
        self._in_place: dict[Located, int] = {}
        self._other_names: dict[PropertyNames, RemainingKeys] = {}
        self._expanding: set[Node] = set()
        self._conflict: tuple[str, str] | None = None
        self._conflicts: dict[Node, tuple[str, str]] = {}
        self._string_schema = self.document.synthetic({"type": "string"}, self.document.root)
        self.closing = self._make_closing() if closed else None
        self._open: Graph | None = None
        self.root = self.node(self.formulas(self.document.root))

    @property
    def open(self) -> Graph:
        """The graph of the same schema with open objects, which decides whether options of `not` and `oneOf` hold."""
        if self.closing is None:
            return self
        if self._open is None:
            self._open = copy(self)
            self._open._forget(closing=None)
        return self._open

    def _forget(self, *, closing: UnevaluatedProperties | None) -> None:
        """Set the assertion that closes objects, and drop all results that depend on the previous assertion."""
        self.closing = closing
        self.facts = StaticFacts()
        self._nodes = {}
        self._expansions = {}
        self._other_names = {}
        self._expanding = set()
        self._conflicts = {}
        self._conflict = None

    def _make_closing(self) -> UnevaluatedProperties:
        root = self.document.root
        nothing = self.document.synthetic({"not": {}}, root)
        return UnevaluatedProperties(root, "unevaluatedProperties", nothing)

    def refuse(self, refusal: Unsupported) -> None:
        """Record a keyword that cannot be enforced, and continue without the keyword to find all others as well."""
        if all((refusal.pointer, refusal.keyword) != (other.pointer, other.keyword) for other in self.refusals):
            self.refusals.append(refusal)

    # Formulas

    def formulas(self, located: Located, *, positive: bool = True) -> Formulas:
        """Return the conjunction that is equivalent to the schema, or to its negation: () if trivial, NONE if empty.

        A schema that only refers to other schemas, or only negates a schema, is replaced by these schemas, so that
        equal positions share a node.
        """
        known = self._formulas if positive else self._negations
        found = known.get(located)
        if found is None:
            target = self._lone_target(located)
            if target is not None and self._stands_alone(target):
                found = (Is(located, positive),) if target is located else self.formulas(target, positive=positive)
            else:
                self._check_in_place(located, 0)
                found = self._make_formulas(located, positive)
            known[located] = found
        return found

    def _lone_target(self, located: Located) -> Located | None:
        """Return the target of a schema that is nothing but a `$ref`, and the schema itself if it has none."""
        schema, dialect = located.schema, located.resource.dialect
        if not isinstance(schema, dict) or "$ref" not in schema:
            return located
        is_alone = dialect.ref_alone or dialect.keywords.isdisjoint(schema.keys() - {"$ref"})
        if self.reader.skips_keywords or not is_alone:
            return None
        return self.document.resolve(located, schema["$ref"])

    def _stands_alone(self, located: Located) -> bool:
        """Return whether the schema certainly asserts something, and no other schema applies to the same value."""
        schema = located.schema
        return (
            isinstance(schema, dict)
            and "type" in schema
            and _IN_PLACE_KEYWORDS.isdisjoint(schema)
            and not self.reader.skips_keywords
        )

    def _make_formulas(self, located: Located, positive: bool) -> Formulas:
        assertions = self.assertions(located)
        if not assertions:
            return () if positive else NONE
        if len(assertions) == 1:
            found = assertions[0].formulas(self, positive=positive)
            if found is not None:
                return found
        return (Is(located, positive),)

    def negated(self, formulas: Formulas) -> Formulas:
        """Return the negation of a conjunction."""
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
        return either(tuple(options))

    # Nodes

    def node(self, formulas: Formulas) -> Node:
        """Return the node of a conjunction. Raises Unsupported if there are too many nodes."""
        if formulas is not NONE and NEVER in formulas:
            formulas = NONE
        conjunction = formulas[0] if len(formulas) == 1 else frozenset(formulas)
        found = self._nodes.get(conjunction)
        if found is None:
            found = Node(tuple(dict.fromkeys(formulas)), len(self._nodes))
            self.budget.count_node(found, "schema")
            self._nodes[conjunction] = found
        return found

    def expand(self, node: Node) -> Expansion:
        """Return the alternatives of a node, solved once. Raises Unsupported."""
        found = self._expansions.get(node)
        if found is None:
            if node in self._expanding:
                raise over_limit(node.pointer, "propertyNames", "it depends on itself")
            self._expanding.add(node)
            outer = self._take_conflict()
            try:
                found = self._expansions[node] = self._solve(self, node)
                conflict = self._take_conflict()
                if found.is_empty and conflict is not None:
                    self._conflicts[node] = conflict
            except RegexTooComplex as error:
                raise over_limit(node.pointer, "pattern", f"its patterns are too complex together ({error})") from None
            finally:
                self._expanding.discard(node)
                self._conflict = outer
        return found

    def is_expanding(self, node: Node) -> bool:
        """Return whether the node is being solved right now."""
        return node in self._expanding

    @property
    def expanding(self) -> int:
        """The number of nodes that are currently being solved, each within the solution of the previous one."""
        return len(self._expanding)

    def note_conflict(self, name: str, demanded: Formulas) -> None:
        """Note that the value of a required member cannot satisfy the formulas demanded of it."""
        pointers = [formula.located.pointer for formula in demanded if isinstance(formula, Is)]
        self._conflict = (pointers[-1] if pointers else "", name)

    def _take_conflict(self) -> tuple[str, str] | None:
        found, self._conflict = self._conflict, None
        return found

    def conflict(self, node: Node) -> tuple[str, str] | None:
        """Return why a node has no value: a pointer and the name of a required member, if `note_conflict` knew."""
        return self._conflicts.get(node)

    # Property names

    def other_names(self, assertion: PropertyNames) -> RemainingKeys:
        """Return the property names that do not satisfy the schema of `propertyNames`."""
        keys = self._other_names.get(assertion)
        if keys is None:
            found = self._strings(assertion.names)
            if isinstance(found, tuple):
                keys = RemainingKeys(frozenset(found), order=found)
            else:
                keys = RemainingKeys(frozenset(), (StringTest(found, True, assertion.source(), assertion.names),))
            self._other_names[assertion] = keys
        return keys

    def _strings(self, located: Located) -> tuple[str, ...] | Regex:
        """Return the strings that satisfy a schema: a tuple if the schema lists the strings, else a language."""
        pending = [self.node((Is(self._string_schema, True), *self.formulas(located)))]
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

    def listed_names(self, keys: KeySet) -> list[str] | None:
        """Return the names of a set, sorted; None if there are more than `MAX_LISTED_NAMES`."""
        if isinstance(keys, RemainingKeys) and (keys.names or len(keys.tests) != 1):
            return None
        found = self.facts.listed_names.get(keys)
        if found is None:
            test = keys.tests[0]
            language = test.language() if isinstance(keys, MatchingKeys) else complement(test.language())
            names = enumerate_strings(language, MAX_LISTED_NAMES) if language.max_length is not None else None
            found = self.facts.listed_names[keys] = (None if names is None else sorted(names),)
        return found[0]

    def _check_in_place(self, located: Located, depth: int) -> int:
        """Return the longest chain of schemas that apply to the same value. Raises Unsupported if it is endless."""
        found = self._in_place.get(located)
        if found == -1:
            fix = "Let it lead into a property or an item first."
            raise Unsupported(located.pointer, "$ref", "the reference leads back to itself for the same value", fix)
        if found is None and self._stands_alone(located):
            found = self._in_place[located] = 0
        if found is None:
            if depth > IN_PLACE_DEPTH:
                raise _too_deep(located)
            self._in_place[located] = -1
            found = 0
            try:
                for assertion in self.assertions(located):
                    for part in assertion.in_place:
                        found = max(found, 1 + self._check_in_place(part, depth + 1))
            finally:
                self._in_place.pop(located)
            self._in_place[located] = found
        if depth + found > IN_PLACE_DEPTH:
            raise _too_deep(located)
        return found


def _too_deep(located: Located) -> Unsupported:
    reason = f"more than {IN_PLACE_DEPTH} schemas are nested in one another for the same value"
    return over_limit(located.pointer, "$ref", reason)
