"""From the graph of nodes to productions.

First every node that can be reached is planned, which also counts how often each is used. Then they are written: a node
that is used once is written where it is used, so that fixed text is not torn apart; the others become rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from radixrt.constrained.productions import Alt, Expr, Lit, Productions, Ref, Term, alt
from radixrt.constrained.regex import RegexTooComplex, alternate, json_string, literals
from radixrt.constrained.schema.array_text import ArrayText
from radixrt.constrained.schema.expansion import Expansion
from radixrt.constrained.schema.formula import NONE, Node
from radixrt.constrained.schema.graph import Graph
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.object_text import ObjectText
from radixrt.constrained.schema.plan import ArrayPlan, ObjectPlan, plan_array, plan_object
from radixrt.constrained.schema.text import TextStyle, check_text

INLINE_DEPTH = 12
"""Objects and arrays that are written into one another before the next becomes a rule."""
FEW_WORDS = 4
"""Listed strings up to which each is an option of its own; more of them are one terminal."""


@dataclass(slots=True)
class Plan:
    """What a node comes to, with the nodes below it."""

    expansion: Expansion
    arrays: list[ArrayPlan] = field(default_factory=list)
    objects: list[ObjectPlan] = field(default_factory=list)

    def below(self) -> list[Node]:
        """The nodes that are used."""
        found = list(self.expansion.union or ())
        for array in self.arrays:
            found += array.prefix
            if array.rest is not None:
                found.append(array.rest)
        for one in self.objects:
            found += [node for _, node, _ in one.members]
            found += [node for _, node in one.classes]
        return found


class Writer:
    """Writes the productions of one graph."""

    def __init__(self, graph: Graph, whitespace: int) -> None:
        self._graph = graph
        self._style = TextStyle(whitespace)
        self._plans: dict[Node, Plan] = {}
        self._uses: dict[Node, int] = {}
        self._rules: dict[str, Expr] = {}
        self._named: dict[Node, Ref] = {}
        self._waiting: list[Node] = []
        self._depth = 0

    def write(self) -> Productions:
        """The productions of the graph's root.

        Raises:
            Unsupported: something in the schema cannot be written.
            EmptyLanguage: nothing satisfies it.
        """
        root = self._graph.root
        self._plan_from(root)
        self._uses[root] = self._uses.get(root, 0) + 1
        self._rules["start"] = self._value(root)
        while self._waiting:
            node = self._waiting.pop()
            self._graph.budget.check_time(node.pointer, "schema")
            self._rules[self._named[node].rule] = self._written(node)
        return Productions(self._rules).prune()

    def _plan_from(self, root: Node) -> None:
        """Plan every node that can be reached from here and is not planned yet."""
        pending = [root]
        while pending:
            node = pending.pop()
            if node in self._plans:
                continue
            plan = self._plans[node] = self._planned(node)
            for below in plan.below():
                self._uses[below] = self._uses.get(below, 0) + 1
                pending.append(below)

    def _planned(self, node: Node) -> Plan:
        graph = self._graph
        plan = Plan(graph.expand(node) if node.formulas != NONE else Expansion())
        try:
            for array in plan.expansion.arrays:
                one = plan_array(graph, array, node.pointer)
                if one is not None:
                    plan.arrays.append(one)
            for shape in plan.expansion.objects:
                other = plan_object(graph, shape, node.pointer)
                if other is not None:
                    plan.objects.append(other)
        except RegexTooComplex as error:
            raise over_limit(
                node.pointer, "patternProperties", f"its patterns are too complex together ({error})"
            ) from None
        return plan

    def _value(self, node: Node) -> Expr:
        """The expression of a node: a reference, or itself where that is short or used once."""
        named = self._named.get(node)
        if named is not None:
            return named
        if node not in self._plans:
            self._plan_from(node)
            self._uses[node] = 2
        plan = self._plans[node]
        if not (plan.arrays or plan.objects or plan.expansion.union is not None):
            return self._scalars(node, plan.expansion)
        if self._uses[node] <= 1 and self._depth < INLINE_DEPTH:
            return self._written(node)
        self._named[node] = Ref(f"n{node.index}")
        self._waiting.append(node)
        return self._named[node]

    def _written(self, node: Node) -> Expr:
        """Everything that a node allows."""
        plan = self._plans[node]
        self._depth += 1
        try:
            if plan.expansion.union is not None:
                return alt(*(self._value(part) for part in plan.expansion.union))
            options = [self._scalars(node, plan.expansion)]
            for array in plan.arrays:
                options.append(
                    ArrayText(self._graph, array, self._style, self._value, self._new_rule, self._set_rule).write()
                )
            for one in plan.objects:
                states = self._graph.limits.array_states
                options.append(
                    ObjectText(one, self._style, self._value, self._graph.node, self._new_rule, states).write()
                )
            return alt(*options)
        finally:
            self._depth -= 1

    def _scalars(self, node: Node, expansion: Expansion) -> Expr:
        """Null, booleans, numbers, strings and listed values."""
        options: list[Expr] = []
        words: list[str] = []
        for value in expansion.values.values():
            if isinstance(value, str):
                words.append(value)
            else:
                options.append(self._listed(node, value))
        check_text("".join(words), node.pointer, "enum")
        try:
            if len(words) > FEW_WORDS:
                options.append(Term(json_string(literals(words))))
            else:
                options = [*(self._style.value(word) for word in words), *options]
            languages = [strings.language() for strings in expansion.strings]
            if languages:
                options.append(Term(json_string(alternate(*languages))))
            numbers = [numbers.language() for numbers in expansion.numbers]
            if numbers:
                options.append(Term(alternate(*numbers)))
        except RegexTooComplex as error:
            raise over_limit(node.pointer, "pattern", f"its conditions are too complex together ({error})") from None
        options += [Lit("true" if flag else "false") for flag in sorted(expansion.booleans, reverse=True)]
        if expansion.null:
            options.append(Lit("null"))
        return alt(*options) if options else Alt(())

    def _listed(self, node: Node, value: Any) -> Expr:
        expr = self._style.value(value)
        if isinstance(value, list | dict) and isinstance(expr, Lit):
            check_text(expr.text, node.pointer, "enum")
        return expr

    def _new_rule(self, expr: Expr | None) -> Ref:
        name = f"r{len(self._rules)}"
        self._rules[name] = expr if expr is not None else Alt(())
        return Ref(name)

    def _set_rule(self, ref: Ref, expr: Expr) -> None:
        self._rules[ref.rule] = expr
