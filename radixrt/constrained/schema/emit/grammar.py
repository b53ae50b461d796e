"""From the graph of nodes to productions.

First every node that can be reached is planned, which also counts how often each is used. Then they are written: a node
that is used once is written where it is used, so that fixed text is not torn apart; the others become rules.
"""

from __future__ import annotations

from radixrt.constrained.productions import NOTHING, Alt, EmptyLanguage, Expr, Lit, Productions, Ref, Term, alt
from radixrt.constrained.regex import json_string, literals
from radixrt.constrained.schema.emit.arrays import ArrayText
from radixrt.constrained.schema.emit.inhabitation import conflict, inhabited, is_exact, strip
from radixrt.constrained.schema.emit.json_text import TextStyle
from radixrt.constrained.schema.emit.objects import ObjectText
from radixrt.constrained.schema.emit.plan import Plan, plan_node
from radixrt.constrained.schema.errors import EmptySchema
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Node
from radixrt.constrained.schema.values import text_of
from radixrt.errors import shown

INLINE_DEPTH = 12
"""Objects and arrays that are written into one another before the next becomes a rule."""
FEW_WORDS = 4
"""Listed strings up to which each is an option of its own; more of them are one terminal."""


class Writer:
    """Writes the productions of one graph."""

    def __init__(self, graph: Graph, whitespace: int) -> None:
        self._graph = graph
        self._style = TextStyle(whitespace)
        self._plans: dict[Node, Plan] = {}
        self._uses: dict[Node, int] = {}
        self._exact = True
        self._rules: dict[str, Expr] = {}
        self._plain: dict[Expr, Ref] = {}  # rules that are a choice of leaves, to have each only once
        self._scalars: dict[Node, Expr] = {}
        self._named: dict[Node, Ref] = {}
        self._waiting: list[Node] = []
        self._depth = 0

    def write(self) -> Productions:
        """The productions of the graph's root, without rules that derive nothing.

        Raises:
            Unsupported: something in the schema cannot be written.
            EmptySchema: nothing satisfies it.
        """
        root = self._graph.root
        self._plan_from(root)
        alive = inhabited(self._plans)
        if root not in alive:
            raise self._empty(conflict(self._plans, alive, root))
        for plan in self._plans.values():
            self._exact = self._exact and is_exact(plan)
            strip(plan, alive)
        self._count_uses(root)
        self._rules["start"] = self._value(root)
        while self._waiting:
            node = self._waiting.pop()
            self._graph.budget.check_time(node.pointer, "schema")
            self._rules[self._named[node].rule] = self._written(node)
        productions = Productions(self._rules)
        if self._exact:
            return productions
        try:
            return productions.prune()
        except EmptyLanguage:
            raise self._empty(root) from None

    def _empty(self, node: Node) -> EmptySchema:
        blamed = self._graph.conflict(node)
        if blamed is not None:
            pointer, name = blamed
            return EmptySchema(pointer, f"what is asked of the required property {shown(name)} excludes one another")
        return EmptySchema(node.pointer, "the conditions there exclude one another, or never come to an end")

    def _plan_from(self, root: Node) -> None:
        """Plan every node that can be reached from here and is not planned yet."""
        pending = [root]
        while pending:
            node = pending.pop()
            if node not in self._plans:
                plan = self._plans[node] = plan_node(self._graph, node)
                pending.extend(plan.below())

    def _count_uses(self, root: Node) -> None:
        """How often each node is used that can still be reached; the root is used from outside as well."""
        self._uses[root] = 1
        pending = [root]
        while pending:
            for node in self._plans[pending.pop()].below():
                self._uses[node] = self._uses.get(node, 0) + 1
                if self._uses[node] == 1:
                    pending.append(node)

    def _plan_late(self, node: Node) -> None:
        """Plan a node that came up while another was written, and what it uses."""
        self._plan_from(node)
        self._exact = False
        pending = [node]
        while pending:
            other = pending.pop()
            if other not in self._uses:
                self._uses[other] = 2
                pending.extend(self._plans[other].below())

    def _value(self, node: Node) -> Expr:
        """The expression of a node: a reference, or itself where that is short or used once."""
        if node in self._named:
            return self._named[node]
        if node not in self._uses:
            self._plan_late(node)
        plan = self._plans[node]
        if plan.is_scalar:
            return self._scalar(node)
        if self._uses[node] <= 1 and self._depth < INLINE_DEPTH:
            return self._written(node)
        self._named[node] = Ref(f"n{node.index}")
        self._waiting.append(node)
        return self._named[node]

    def _written(self, node: Node) -> Expr:
        """Everything that a node allows."""
        plan = self._plans[node]
        graph = self._graph
        self._depth += 1
        try:
            options = [self._scalar(node)] if plan.has_scalars else []
            options.extend(self._value(part) for part in plan.union)
            for array in plan.arrays:
                options.append(
                    ArrayText(graph, array, self._style, self._value, self._new_rule, self._set_rule).write()
                )
            for one in plan.objects:
                options.append(ObjectText(graph, one, self._style, self._value, self._new_rule).write())
            return alt(*options) if options else NOTHING
        finally:
            self._depth -= 1

    def _scalar(self, node: Node) -> Expr:
        """Single values, strings, numbers, booleans and null."""
        found = self._scalars.get(node)
        if found is None:
            found = self._scalars[node] = self._make_scalar(node)
        return found

    def _make_scalar(self, node: Node) -> Expr:
        plan = self._plans[node]
        options: list[Expr] = []
        if len(plan.words) > FEW_WORDS:
            options.append(Term(literals([text_of(word) for word in plan.words])))
        else:
            options.extend(Lit(text_of(word)) for word in plan.words)
        options.extend(self._style.value(value) for value in plan.values)
        if plan.strings is not None:
            options.append(Term(json_string(plan.strings)))
        options.extend(Term(numbers) for numbers in plan.numbers)
        options.extend(Lit("true" if flag else "false") for flag in plan.booleans)
        if plan.null:
            options.append(Lit("null"))
        return alt(*options) if options else NOTHING

    def _new_rule(self, expr: Expr | None) -> Ref:
        """A rule of an expression; of None, a rule whose expression is still to be set."""
        plain = isinstance(expr, Alt) and all(isinstance(option, Lit | Term | Ref) for option in expr.options)
        if plain and expr in self._plain:
            return self._plain[expr]
        ref = Ref(f"r{len(self._rules)}")
        self._rules[ref.rule] = expr if expr is not None else NOTHING
        if plain and expr is not None:
            self._plain[expr] = ref
        return ref

    def _set_rule(self, ref: Ref, expr: Expr) -> None:
        self._rules[ref.rule] = expr
