"""`ArgumentsEmitter`: productions of an object whose members stand between tags, as models write arguments of tools.

The object and its strings are written in an `ArgumentStyle`; every other value of a member is JSON. The normal form is
the same as of JSON texts, so all keywords of a schema hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import Expr, Lit, Ref, Seq, Special, Term, alt, optional
from radixrt.constrained.regex import (
    ANY,
    ANY_CHAR,
    CharSet,
    Regex,
    RegexTooComplex,
    alternate,
    chars,
    complement,
    concat,
    intersect,
    literal,
    literals,
    parse_regex,
    repeat,
    shortest_length,
)
from radixrt.constrained.schema.emit.arrays import array_expression
from radixrt.constrained.schema.emit.free_parts import MAX_KEY_CHARS, MAX_STRING_CHARS, with_bounded_digits
from radixrt.constrained.schema.emit.grammar import GrammarEmitter
from radixrt.constrained.schema.emit.json_text import END, Comma, TextStyle, joined
from radixrt.constrained.schema.emit.key_classes import KeyClass
from radixrt.constrained.schema.emit.objects import object_expression
from radixrt.constrained.schema.emit.plan import ArrayPlan, ObjectPlan, Plan
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Node
from radixrt.constrained.schema.values import text_of
from radixrt.constrained.tags.argument_styles import (
    KINDS,
    LITERALS,
    NUMBER,
    OPENINGS,
    ArgumentStyle,
    Kind,
    kind_of,
    split_kinds,
)
from radixrt.errors import shown

_KEY = re.compile(r"""[^\s<>"&|=\x00-\x1f\x7f](?:[^<>"&|\x00-\x1f\x7f]*[^\s<>"&|\x00-\x1f\x7f])?""")
"""Names that every style can write. They have no character of a tag in them."""
_FREE_KEY = parse_regex(f"[a-zA-Z_][a-zA-Z0-9_.-]{{0,{MAX_KEY_CHARS - 1}}}", search=False)
"""Undeclared names: those that xgrammar allows, and dots and hyphens."""
_SCALARS: dict[Kind, Regex] = {kind: literals(texts) for kind, texts in LITERALS.items()}
_SCALARS["number"] = parse_regex(NUMBER, search=False)


@dataclass(frozen=True, slots=True)
class TaggedObject:
    """How the arguments of a tool are written.

    Attributes:
        style: the tags.
        kinds: returns the kinds of values that a member of a name may have, as the reader of calls sees the schema.
        tokens: texts in the tags that are control tokens of the vocabulary.
        begin: text before the name of a member, with a surrogate for each control token.
    """

    style: ArgumentStyle
    kinds: Callable[[str], frozenset[Kind]]
    tokens: tuple[str, ...]
    begin: str

    @property
    def key(self) -> object:
        """Equal for objects that are written alike, if their schemas are equal."""
        return self.style.name, self.tokens

    def text(self, text: str) -> Expr:
        """Return a constant text, with its control tokens."""
        if not self.tokens:
            return Lit(text)
        parts = re.split("(" + "|".join(map(re.escape, self.tokens)) + ")", text)
        made = [Special(part) if part in self.tokens else Lit(part) for part in parts if part]
        return made[0] if len(made) == 1 else Seq(tuple(made))


class ArgumentsEmitter(GrammarEmitter):
    """Emits the productions of arguments: JSON within values, tags around them."""

    def __init__(self, graph: Graph, style: TextStyle, tagged: TaggedObject) -> None:
        super().__init__(graph, style)
        self._tagged = tagged
        self._values: dict[tuple[Node, frozenset[Kind]], Expr] = {}

    def root(self, node: Node) -> Expr:
        members = _Members(self, self._tagged)
        return alt(*(object_expression(members, plan, node.pointer) for plan in self._parts(node).objects))

    def argument(self, node: Node, kinds: frozenset[Kind]) -> Expr:
        """Return the text of a value from the text behind its name to the closing tag.

        Args:
            kinds: kinds of values between which a reader of the text decides.
        """
        key = (node, kinds)
        if key not in self._values:
            try:
                self._values[key] = self._argument(node, kinds)
            except RegexTooComplex as error:
                raise over_limit(node.pointer, "pattern", f"it is too complex ({error})") from None
        return self._values[key]

    def _argument(self, node: Node, kinds: frozenset[Kind]) -> Expr:
        parts, style = self._parts(node), self._tagged.style
        others = frozenset[Kind]() if style.marks_kinds else kinds - {"string"}
        strings = self._strings(node, parts, others)
        scalars: list[tuple[Kind, Regex]] = [("string", strings)] if strings is not None else []
        scalars += [("number", with_bounded_digits(one, self.style.max_digits)) for one in parts.numbers]
        scalars += [("boolean", literal("true" if flag else "false")) for flag in parts.booleans]
        scalars += [("null", literal("null"))] if parts.null else []
        inner: list[tuple[Kind, Expr]] = []
        for value in parts.values:
            if kind_of(value) in OPENINGS:
                inner.append((kind_of(value), self.style.value(value)))
            else:
                scalars.append((kind_of(value), literal(text_of(value))))
        inner += [("array", array_expression(self, plan)) for plan in parts.arrays]
        inner += [("object", object_expression(self, plan, node.pointer)) for plan in parts.objects]
        if style.marks_kinds:
            options = [self._marked(kind, self._closed(regex)) for kind, regex in scalars]
            options += [self._marked(kind, joined(expr, self._closing)) for kind, expr in inner]
            return alt(*options)
        # Without marks, all scalars are one terminal, because a string may begin as a number does.
        whole = [self._closed(alternate(*(regex for _, regex in scalars)))] if scalars else []
        return self._marked("string", alt(*whole, *(joined(expr, self._closing) for _, expr in inner)))

    def _marked(self, kind: Kind, value: Expr) -> Expr:
        return joined(self._tagged.text(self._tagged.style.before_value(kind)), value)

    @property
    def _closing(self) -> Expr:
        return self._tagged.text(self._tagged.style.closing)

    def _closed(self, regex: Regex) -> Expr:
        """Return texts with the closing tag, as one terminal up to the first control token of the tag."""
        first, *rest = _flat(self._closing)
        if not isinstance(first, Lit):
            return joined(Lit(regex.text) if regex.text is not None else Term(regex), first, *rest)
        if regex.text is not None:
            return joined(Lit(regex.text + first.text), *rest)
        return joined(Term(concat(regex, literal(first.text))), *rest)

    def _strings(self, node: Node, parts: Plan, others: frozenset[Kind]) -> Regex | None:
        """Return the strings of a node that stand between tags unmistakably; None if it has no strings.

        Raises:
            Unsupported: the node has strings, and no other values, and none of the strings can stand there.
        """
        found = [parts.strings] if parts.strings is not None else []
        if found and self.style.bounded and not node.formulas:
            found = [repeat(ANY_CHAR, 0, MAX_STRING_CHARS)]
        found += [literals(parts.texts)] if parts.texts else []
        if not found:
            return None
        excluded = self._tagged.style.excluded
        apart = [concat(ANY, literals(excluded), ANY)]
        apart += [_SCALARS[kind] for kind in sorted(others) if kind in _SCALARS]
        apart += [concat(chars(CharSet.of(OPENINGS[kind])), ANY) for kind in sorted(others) if kind in OPENINGS]
        strings: Regex | None
        if parts.strings is None:
            texts = [text for text in parts.texts if not any(one in text for one in excluded)]
            texts = [text for text in texts if split_kinds(text, others) == "string"]
            strings = literals(texts) if texts else None
        else:
            strings = intersect(alternate(*found), complement(alternate(*apart)))
            strings = None if shortest_length(strings) is None else strings
        if strings is None and parts == Plan(texts=parts.texts, strings=parts.strings):
            reason = f"none of its strings can stand between tags: they hold {shown(excluded[0])} or look like JSON"
            raise Unsupported(node.pointer, "enum", reason, "Take other texts, or --tool-call-format json.")
        return strings

    def _parts(self, node: Node) -> Plan:
        """Return the plan of a node together with the nodes that it is the union of."""
        plans: list[Plan] = []
        pending, seen = [node], {node}
        while pending:
            plan = self.plan(pending.pop())
            plans.append(plan)
            news = [part for part in plan.union if part not in seen]
            seen.update(news)
            pending += reversed(news)
        if len(plans) == 1:
            return plans[0]
        strings = [plan.strings for plan in plans if plan.strings is not None]
        arrays: list[ArrayPlan] = []
        objects: list[ObjectPlan] = []
        texts: list[str] = []
        values: list[Any] = []
        numbers: list[Regex] = []
        booleans: list[bool] = []
        for plan in plans:
            arrays += plan.arrays
            objects += plan.objects
            texts += plan.texts
            values += plan.values
            numbers += plan.numbers
            booleans += plan.booleans
        return Plan(
            texts=tuple(dict.fromkeys(texts)),
            values=tuple(values),
            strings=alternate(*strings) if strings else None,
            numbers=tuple(dict.fromkeys(numbers)),
            null=any(plan.null for plan in plans),
            booleans=tuple(dict.fromkeys(booleans)),
            arrays=tuple(arrays),
            objects=tuple(objects),
        )


def _flat(expr: Expr) -> tuple[Expr, ...]:
    return expr.parts if isinstance(expr, Seq) else (expr,)


class _TagStyle(TextStyle):
    """Members between tags, with nothing between them."""

    def __init__(self, tagged: TaggedObject, pointer: str, *, bounded: bool) -> None:
        super().__init__(0, bounded=bounded)
        self._tagged = tagged
        self._pointer = pointer

    def after(self, token: str) -> Expr:
        return END

    def enclosed(self, opening: str, body: Expr | None, closing: str, *, may_be_empty: bool) -> Expr:
        if body is None:
            return END
        return optional(body) if may_be_empty else body

    def member(self, name: str, value: Expr, *, comma: bool) -> Expr:
        if not _KEY.fullmatch(name):
            reason = f"the model writes arguments between tags, which cannot hold the name {shown(name)}"
            fix = "Name the parameter with letters, digits, '_', '-' and '.', or start with --tool-call-format json."
            raise Unsupported(self._pointer, "properties", reason, fix)
        return joined(self._tagged.text(self._tagged.style.opening + name), value)

    def optional_member(self, name: str, value: Expr, comma: Comma) -> Expr:
        return optional(self.member(name, value, comma=False))

    def keys(self, one: KeyClass) -> Expr:
        named = one.names() if one.declared or one.language is not ANY else ANY
        return joined(self._tagged.text(self._tagged.style.opening), Term(intersect(named, _FREE_KEY)))


class _Members:
    """The emitter as the emitter of the outermost object sees it."""

    def __init__(self, emitter: ArgumentsEmitter, tagged: TaggedObject) -> None:
        self._emitter = emitter
        self._tagged = tagged
        self.graph = emitter.graph
        self.style: TextStyle = _TagStyle(tagged, emitter.graph.root.pointer, bounded=emitter.style.bounded)

    def value(self, node: Node) -> Expr:
        return self._emitter.argument(node, KINDS)

    def member_value(self, name: str, node: Node) -> Expr:
        return self._emitter.argument(node, self._tagged.kinds(name))

    def oblige(self, obligation: Obligation) -> None:
        self._emitter.oblige(obligation)

    def new_rule(self, expr: Expr | None) -> Ref:
        return self._emitter.new_rule(expr)

    def set_rule(self, ref: Ref, expr: Expr) -> None:
        self._emitter.set_rule(ref, expr)
