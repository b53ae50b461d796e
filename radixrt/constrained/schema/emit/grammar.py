"""`emit_productions`: from the nodes of a graph to productions.

First, every reachable node is planned, and its uses are counted. Then a node with a single use is emitted in place,
which keeps fixed text in a single literal; all other nodes become rules.
"""

from __future__ import annotations

from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import NOTHING, Alt, EmptyLanguage, Expr, Lit, Productions, Ref, Term, alt
from radixrt.constrained.regex import json_string, literals
from radixrt.constrained.schema.emit.apart import nodes_apart
from radixrt.constrained.schema.emit.arrays import array_expression
from radixrt.constrained.schema.emit.canonical import Sizes, canonical_numbers
from radixrt.constrained.schema.emit.free_parts import FREE_STRING, with_bounded_digits
from radixrt.constrained.schema.emit.inhabited import empty_cause, inhabited, is_exact, without_empty
from radixrt.constrained.schema.emit.json_text import SHORT, TextStyle
from radixrt.constrained.schema.emit.objects import object_expression
from radixrt.constrained.schema.emit.plan import ArrayPlan, Plan, plan_node
from radixrt.constrained.schema.errors import EmptySchema
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Node
from radixrt.constrained.schema.values import text_of
from radixrt.errors import shown

INLINE_DEPTH = 12
"""Maximum nesting of objects and arrays within one rule."""
MAX_LISTED_OPTIONS = 4
"""Maximum number of listed values that are separate options. A longer list becomes a single terminal."""


def emit_productions(graph: Graph, style: TextStyle) -> tuple[Productions, tuple[Obligation, ...]]:
    """Return the productions of the graph's root, without rules that derive nothing, and what they leave to guards.

    Raises:
        Unsupported: some part of the schema cannot be expressed.
        EmptySchema: no value satisfies the schema.
    """
    emitter = GrammarEmitter(graph, style)
    return emitter.emit(), emitter.obligations


CLOSED = (
    "; objects are closed (by strict, closed or --closed-objects), so declare each required property in properties, or "
    "leave objects open"
)


class GrammarEmitter:
    """Emits the productions of one graph; see `json_text.Emitter`."""

    def __init__(self, graph: Graph, style: TextStyle) -> None:
        self.graph = graph
        self.style = style
        self.guarded = graph.guarded
        self._plans: dict[Node, Plan] = {}
        self._uses: dict[Node, int] = {}
        self._exact = True
        self._sizes = Sizes(self.plan)
        self._lacking: tuple[str, str] | None = None
        self._rules: dict[str, Expr] = {}
        self._leaf_choices: dict[Expr, Ref] = {}  # rules that are a choice of leaves, interned
        self._scalars: dict[tuple[Node, bool], Expr] = {}
        self._named: dict[tuple[Node, bool], Ref] = {}  # by node, and whether the style is canonical
        self._waiting: list[tuple[Node, TextStyle]] = []
        self._canonical = style.as_canonical()
        self._depth = 0
        self._apart: frozenset[Node] | None = None
        self._obligations: dict[Obligation, None] = {}

    def emit(self) -> Productions:
        """Return the productions of the root. Raises Unsupported, EmptySchema."""
        root = self.graph.root
        self._plan_from(root)
        alive = inhabited(self._plans)
        if root not in alive:
            raise self._empty(empty_cause(self._plans, alive, root))
        self._exact = all(is_exact(plan) for plan in self._plans.values())
        self._plans = {node: without_empty(plan, alive) for node, plan in self._plans.items()}
        self._count_uses(root)
        self._rules["start"] = self.root(root)
        while self._waiting:
            node, self.style = self._waiting.pop()
            self.graph.budget.check_time(node.pointer, "schema")
            self._rules[self._named[node, self.style.canonical].rule] = self._alternatives(node)
        productions = Productions(self._rules)
        if self._exact:
            return productions
        try:
            return productions.prune()
        except EmptyLanguage:
            raise self._empty(root) from None

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        """The conditions on the texts of `emit` that the productions do not express."""
        return tuple(self._obligations)

    def oblige(self, obligation: Obligation) -> None:
        """Record a condition on the texts that the productions do not express."""
        self._obligations[obligation] = None

    def root(self, node: Node) -> Expr:
        """Return the expression of the root node."""
        return self.value(node)

    def plan(self, node: Node) -> Plan:
        """Return the plan of a node, without the parts that have no value."""
        if node not in self._plans:
            self._plan_late(node)
        return self._plans[node]

    def _empty(self, node: Node) -> EmptySchema:
        if self._lacking is not None:
            return EmptySchema(*self._lacking)
        conflict = self.graph.conflict(node)
        if conflict is not None:
            pointer, name = conflict
            reason = f"what is asked of the required property {shown(name)} excludes one another"
        else:
            pointer, reason = node.pointer, "the conditions there exclude one another, or never come to an end"
        return EmptySchema(pointer, reason + (CLOSED if self.graph.closing is not None else ""))

    def _plan_from(self, root: Node) -> None:
        """Plan every node that is reachable from here and not planned yet."""
        pending = [root]
        while pending:
            node = pending.pop()
            if node not in self._plans:
                plan = self._plans[node] = plan_node(self.graph, node)
                pending.extend(plan.children())

    def _count_uses(self, root: Node) -> None:
        """Count the uses of each reachable node; the root is used from outside as well."""
        self._uses[root] = 1
        pending = [root]
        while pending:
            for node in self._plans[pending.pop()].children():
                self._uses[node] = self._uses.get(node, 0) + 1
                if self._uses[node] == 1:
                    pending.append(node)

    def _plan_late(self, node: Node) -> None:
        """Plan a node that was created while another was emitted, and its descendants; all become rules."""
        self._plan_from(node)
        self._exact = False
        pending = [node]
        while pending:
            other = pending.pop()
            if other not in self._uses:
                self._uses[other] = 2
                pending.extend(self._plans[other].children())

    def value(self, node: Node) -> Expr:
        """Return the expression of a node: a reference, or the expression itself where it is used once or short."""
        key = node, self.style.canonical
        if key in self._named:
            return self._named[key]
        if node not in self._uses:
            self._plan_late(node)
        if self._plans[node].is_scalar:
            return self._scalar(node)
        if self._uses[node] <= 1 and self._depth < INLINE_DEPTH:
            return self._alternatives(node)
        self._named[key] = Ref(f"{'c' if self.style.canonical else 'n'}{node.index}")
        self._waiting.append((node, self.style))
        return self._named[key]

    def canonical_value(self, node: Node) -> Expr:
        """Return the expression of an item that must differ from others: as `value`, in a canonical style."""
        outer, self.style = self.style, self._canonical
        try:
            return self.value(node)
        finally:
            self.style = outer

    def member_value(self, name: str, node: Node) -> Expr:
        """Return the expression of the value of a declared member."""
        return self.value(node)

    def _alternatives(self, node: Node) -> Expr:
        plan = self._plans[node]
        self._depth += 1
        try:
            options = [self._scalar(node)] if plan.has_scalars else []
            options.extend(self.value(part) for part in plan.union)
            options.extend(array_expression(self, one, apart=self._is_apart(node, one)) for one in plan.arrays)
            options.extend(object_expression(self, one, node.pointer) for one in plan.objects)
            return alt(*options) if options else NOTHING
        finally:
            self._depth -= 1

    def _is_apart(self, node: Node, array: ArrayPlan) -> bool:
        """Return whether the text before an array of which two items must be equal tells the array from all others."""
        if array.unique is not False:
            return False
        if self._apart is None:
            self._apart = nodes_apart(self._plans, self.graph.root)
        return node in self._apart

    def _scalar(self, node: Node) -> Expr:
        """Return the single values, strings, numbers, booleans and null of a node."""
        key = node, self.style.canonical
        found = self._scalars.get(key)
        if found is None:
            found = self._scalars[key] = self._make_scalar(self._plans[node], free=not node.formulas)
        return found

    def _make_scalar(self, plan: Plan, *, free: bool) -> Expr:
        """Return the scalars of a plan; `free` if every value satisfies the node."""
        bounded = self.style.bounded
        listed: list[Expr] = [Lit(text_of(text)) for text in plan.texts]
        listed.extend(self.style.value(value) for value in plan.values)
        options: list[Expr] = []
        if len(listed) > MAX_LISTED_OPTIONS:
            leaves = [leaf for expr in listed for leaf in (expr.options if isinstance(expr, Alt) else (expr,))]
            options.append(Term(literals([leaf.text for leaf in leaves if isinstance(leaf, Lit)])))
            listed = [leaf for leaf in leaves if not isinstance(leaf, Lit)]
        options.extend(listed)
        if plan.strings is not None:
            options.append(Term(FREE_STRING if bounded and free else json_string(plan.strings)))
        spelled = canonical_numbers if self.style.canonical else with_bounded_digits
        options.extend(Term(spelled(numbers, self.style.max_digits)) for numbers in plan.numbers)
        options.extend(Lit("true" if flag else "false") for flag in plan.booleans)
        if plan.null:
            options.append(Lit("null"))
        return alt(*options) if options else NOTHING

    def new_rule(self, expr: Expr | None) -> Ref:
        """Create a rule; None reserves a name whose expression `set_rule` provides."""
        if isinstance(expr, Alt) and all(type(option) in SHORT for option in expr.options):
            if expr not in self._leaf_choices:
                self._leaf_choices[expr] = self._add_rule(expr)
            return self._leaf_choices[expr]
        return self._add_rule(NOTHING if expr is None else expr)

    def marked_rule(self, expr: Expr, mark: str) -> Ref:
        """Create a rule of arrays with a mark (see `obligations`)."""
        return self._add_rule(expr, mark)

    def num_values(self, node: Node, limit: int) -> int | None:
        """Return an upper bound on the number of values of a node; None if it is more than a limit."""
        return self._sizes.most(node, limit)

    def is_ordered(self, node: Node) -> bool:
        """Return whether the members of objects have one order, with keys in the schema's order."""
        return self._sizes.is_ordered(node)

    def lacks_values(self, pointer: str, reason: str) -> None:
        """Record why an array that the emitter leaves out has no value."""
        self._lacking = self._lacking or (pointer, reason)

    def _add_rule(self, expr: Expr, mark: str = "") -> Ref:
        ref = Ref(f"r{len(self._rules)}{mark}")
        self._rules[ref.rule] = expr
        return ref

    def set_rule(self, ref: Ref, expr: Expr) -> None:
        """Set the expression of a reserved rule."""
        self._rules[ref.rule] = expr
