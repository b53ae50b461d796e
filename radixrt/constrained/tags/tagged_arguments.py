"""`ArgumentsEmitter`: productions of an object whose members stand between tags, as models write arguments of tools.

The object and its strings are written in an `ArgumentStyle`; every other value of a member is JSON. The normal form is
the same as of JSON texts, so all keywords of a schema hold.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import NOTHING, Expr, Lit, Ref, Seq, Special, Term, alt, optional
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
from radixrt.constrained.schema.errors import SchemaRefused, Unsupported
from radixrt.constrained.schema.limits import over_limit
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Node
from radixrt.constrained.schema.values import text_of
from radixrt.constrained.tags.argument_kinds import ValuePlace
from radixrt.constrained.tags.argument_styles import (
    ITEM,
    LITERALS,
    NAME,
    NUMBER,
    OPENINGS,
    ArgumentStyle,
    Kind,
    kind_of,
    nested_kind,
    split_kinds,
)
from radixrt.errors import shown

_KEY = re.compile(r"""[^\s<>"&|=\x00-\x1f\x7f](?:[^<>"&|\x00-\x1f\x7f]*[^\s<>"&|\x00-\x1f\x7f])?""")
"""Names that every style can write. They have no character of a tag in them."""
_FIRST = string.ascii_letters + "_"
"""First characters of undeclared names; where a name is a tag, of all names, because no closing tag begins so."""
_FREE_KEY = parse_regex(f"[a-zA-Z_][a-zA-Z0-9_.-]{{0,{MAX_KEY_CHARS - 1}}}", search=False)
"""Undeclared names: those that xgrammar allows, and dots and hyphens."""
JSON_RULE: Final = "json"
"""First characters of the names of rules in which JSON begins between tags, if they are named."""
_SCALARS: dict[Kind, Regex] = {kind: literals(texts) for kind, texts in LITERALS.items()}
_SCALARS["number"] = parse_regex(NUMBER, search=False)


@dataclass(frozen=True, slots=True)
class TaggedObject:
    """How the arguments of a tool are written.

    Attributes:
        style: the tags.
        place: the root of the schema, as the reader of calls sees the schema.
        tokens: texts in the tags that are control tokens of the vocabulary.
        begins: texts with which a member begins, with a surrogate for each control token.
    """

    style: ArgumentStyle
    place: ValuePlace
    tokens: tuple[str, ...]
    begins: tuple[str, ...]

    @staticmethod
    def of(style: ArgumentStyle, schema: Any, tokens: tuple[str, ...], sign: Callable[[str], str]) -> TaggedObject:
        """Return how arguments of a schema are written.

        Args:
            sign: returns the surrogate of a control token.
        """
        begin = style.opening
        for token in tokens:
            begin = begin.replace(token, sign(token))
        # Where names are tags, a closing tag begins as an opening one, up to the first character of the name.
        begins = tuple([begin + first for first in _FIRST]) if style.repeats_name else (begin,)
        return TaggedObject(style, ValuePlace.of(schema), tokens, begins)

    @property
    def key(self) -> object:
        """Equal for objects that are written alike, if their schemas are equal."""
        return self.style.name, self.tokens

    def others(self, place: ValuePlace) -> frozenset[Kind]:
        """Return the kinds for which a reader could take the text of a string at a place."""
        if self.style.marks_kinds:
            return frozenset()
        return place.kinds - ({"string", *OPENINGS} if self.style.nests else {"string"})

    def can_hold(self, text: str, others: frozenset[Kind]) -> bool:
        """Return whether a string can stand between tags unmistakably."""
        return not any(one in text for one in self.style.excluded) and split_kinds(text, others) == "string"

    def is_kind(self, kind: Kind, place: ValuePlace, text: str = "") -> bool:
        """Return whether a reader takes an array or object at a place, of which the text begins so, for that kind."""
        return self.style.marks_kinds or nested_kind(text, place.kinds, self.style) == kind

    def can_write(self, value: Any, place: ValuePlace) -> bool:
        """Return whether a value can stand between tags at a place, of a style that nests, unmistakably."""
        if isinstance(value, str):
            return self.can_hold(value, self.others(place))
        if isinstance(value, list):
            return self.is_kind("array", place, self.style.write_value(value)) and all(
                self.can_write(item, place.item) for item in value
            )
        if isinstance(value, dict):
            return self.is_kind("object", place, self.style.write_value(value)) and all(
                self.can_name(name) and self.can_write(one, place.member(name)) for name, one in value.items()
            )
        return True

    def can_name(self, name: str) -> bool:
        """Return whether a tag can hold a name."""
        return bool(_KEY.fullmatch(name)) and (not self.style.repeats_name or name[0] in _FIRST)

    def text(self, text: str) -> Expr:
        """Return a constant text, with its control tokens."""
        if not self.tokens:
            return Lit(text)
        parts = re.split("(" + "|".join(map(re.escape, self.tokens)) + ")", text)
        made = [Special(part) if part in self.tokens else Lit(part) for part in parts if part]
        return made[0] if len(made) == 1 else Seq(tuple(made))


class _Value(NamedTuple):
    """A value between tags; equal where the texts are the same."""

    node: Node
    place: ValuePlace
    name: str | None
    is_item: bool


class ArgumentsEmitter(GrammarEmitter):
    """Emits the productions of arguments: JSON within values, tags around them.

    Args:
        names_json: JSON texts begin in rules of their own, whose names begin with `JSON_RULE` or end with a mark.
    """

    def __init__(self, graph: Graph, style: TextStyle, tagged: TaggedObject, *, names_json: bool = False) -> None:
        super().__init__(graph, style)
        self._tagged = tagged
        self._names_json = names_json
        self._values: dict[_Value, Expr] = {}
        self._unwritten: list[tuple[_Value, Ref]] = []

    def root(self, node: Node) -> Expr:
        place = self._tagged.place
        whole = alt(*(self.members(plan, node, place) for plan in self._parts(node).objects))
        while self._unwritten:
            value, rule = self._unwritten.pop()
            self.graph.budget.check_time(value.node.pointer, "schema")
            self.set_rule(rule, self._argument(value))
        return whole

    def members(self, plan: ObjectPlan, node: Node, place: ValuePlace) -> Expr:
        """Return the members of an object, with their tags."""
        is_root = place is self._tagged.place
        style = _TagStyle(self._tagged, node.pointer, place, is_root=is_root, bounded=self.style.bounded)
        return object_expression(_Members(self, style, place), plan, node.pointer)

    def argument(self, node: Node, place: ValuePlace, name: str | None, *, is_item: bool = False) -> Expr:
        """Return the text of a member from the text behind its name to the closing tag, or the text of an item of an
        array with its tags.

        Args:
            place: decides between the kinds of values where the text has no mark.
            name: of the member, or `ITEM`; None for a member whose name is not declared.
        """
        style = self._tagged.style
        if style.marks_kinds:
            place = place.anywhere
        value = _Value(node, place, name if style.repeats_name else None, is_item)
        if value not in self._values:
            if style.nests and not self.plan(node).is_scalar:
                # Values in values are rules, because they may hold themselves.
                rule = self.new_rule(None)
                self._values[value] = rule
                self._unwritten.append((value, rule))
            else:
                self._values[value] = self._argument(value)
        return self._values[value]

    def _argument(self, value: _Value) -> Expr:
        try:
            return self._options(value)
        except RegexTooComplex as error:
            raise over_limit(value.node.pointer, "pattern", f"it is too complex ({error})") from None

    def _options(self, value: _Value) -> Expr:
        node, parts, style = value.node, self._parts(value.node), self._tagged.style
        others = self._tagged.others(value.place)
        strings = self._strings(node, parts, others)
        scalars: list[tuple[Kind, Regex]] = [("string", strings)] if strings is not None else []
        scalars += [("number", with_bounded_digits(one, self.style.max_digits)) for one in parts.numbers]
        scalars += [("boolean", literal("true" if flag else "false")) for flag in parts.booleans]
        scalars += [("null", literal("null"))] if parts.null else []
        inner: list[tuple[Kind, Expr]] = []
        for one in parts.values:
            if kind_of(one) not in OPENINGS:
                scalars.append((kind_of(one), literal(text_of(one))))
            elif not style.nests:
                inner.append((kind_of(one), self.style.value(one)))
            elif self._tagged.can_write(one, value.place):
                inner.append((kind_of(one), self._tagged.text(style.write_value(one))))
        if style.nests:
            item_style = _ItemStyle(self._tagged, node, value.place, bounded=self.style.bounded)
            items = _Items(self, item_style, value.place)
            inner += [("array", array_expression(items, plan)) for plan in parts.arrays]
            inner += [("object", self.members(plan, node, value.place)) for plan in parts.objects]
        else:
            inner += [("array", array_expression(self, plan)) for plan in parts.arrays]
            inner += [("object", object_expression(self, plan, node.pointer)) for plan in parts.objects]
            inner = [(kind, self._json(expr)) for kind, expr in inner] if self._names_json else inner
        closing = self._closing(value.name)
        if style.marks_kinds:
            options = [self._marked(value, kind, self._closed(regex, closing)) for kind, regex in scalars]
            options += [self._marked(value, kind, joined(expr, closing)) for kind, expr in inner]
        else:
            # Without marks, all scalars are one terminal, because a string may begin as a number does.
            options = [self._closed(alternate(*(regex for _, regex in scalars)), closing)] if scalars else []
            options = [self._marked(value, "string", alt(*options, *(joined(expr, closing) for _, expr in inner)))]
        found = alt(*options)
        if found is NOTHING and style.nests:
            reason = "none of its values can stand between tags, which show an empty value as the empty string"
            raise Unsupported(node.pointer, "type", reason, "Allow other values, or --tool-call-format json.")
        return found

    def _json(self, expr: Expr) -> Ref:
        """Create a rule of JSON texts."""
        ref = Ref(f"{JSON_RULE}{len(self._rules)}")
        self._rules[ref.rule] = expr
        return ref

    def _marked(self, value: _Value, kind: Kind, text: Expr) -> Expr:
        style = self._tagged.style
        return joined(self._tagged.text(style.before_item(kind) if value.is_item else style.before_value(kind)), text)

    def _closing(self, name: str | None) -> Expr:
        """Return the text after a value. A name that is not declared is not compared with the name before the value."""
        if name is not None or not self._tagged.style.repeats_name:
            return self._tagged.text(self._tagged.style.after_value(name or ""))
        before, _, after = self._tagged.style.closing.partition(NAME)
        return joined(self._tagged.text(before), Term(_FREE_KEY), self._tagged.text(after))

    def _closed(self, regex: Regex, closing: Expr) -> Expr:
        """Return texts with the closing tag, as one terminal up to the first control token of the tag."""
        first, *rest = _flat(closing)
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
            texts = [text for text in parts.texts if self._tagged.can_hold(text, others)]
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
    """Members between tags, with nothing between them.

    Args:
        pointer: JSON pointer of the object.
        place: the object's place.
        is_root: the object is not between tags itself.
    """

    def __init__(self, tagged: TaggedObject, pointer: str, place: ValuePlace, *, is_root: bool, bounded: bool) -> None:
        super().__init__(0, bounded=bounded)
        self._tagged = tagged
        self._pointer = pointer
        self._may_be_empty = is_root or tagged.is_kind("object", place)
        # An item of an array begins as a member of this name does.
        self._is_item = not is_root and not tagged.style.marks_kinds and "array" in place.kinds

    def after(self, token: str) -> Expr:
        return END

    def enclosed(self, opening: str, body: Expr | None, closing: str, *, may_be_empty: bool) -> Expr:
        return _enclosed(body, may_be_empty=may_be_empty and self._may_be_empty)

    def member(self, name: str, value: Expr, *, comma: bool) -> Expr:
        if not self._tagged.can_name(name):
            reason = f"the model writes arguments between tags, which cannot hold the name {shown(name)}"
            fix = "Name the parameter with letters, digits, '_', '-' and '.', or start with --tool-call-format json."
            raise Unsupported(self._pointer, "properties", reason, fix)
        if name == ITEM and self._is_item:
            reason = (
                f"an array may stand in place of the object, whose items have the tag of the property {shown(ITEM)}"
            )
            raise Unsupported(self._pointer, "properties", reason, "Rename it, or start with --tool-call-format json.")
        return joined(self._tagged.text(self._tagged.style.opening + name), value)

    def optional_member(self, name: str, value: Expr, comma: Comma) -> Expr:
        return optional(self.member(name, value, comma=False))

    def keys(self, one: KeyClass) -> Expr:
        named = one.names() if one.declared or one.language is not ANY else ANY
        names = [named, _FREE_KEY, complement(literal(ITEM))] if self._is_item else [named, _FREE_KEY]
        return joined(self._tagged.text(self._tagged.style.opening), Term(intersect(*names)))


class _ItemStyle(TextStyle):
    """Items of an array between tags, with nothing between them."""

    def __init__(self, tagged: TaggedObject, node: Node, place: ValuePlace, *, bounded: bool) -> None:
        super().__init__(0, bounded=bounded)
        self._tagged = tagged
        self._node = node
        self._place = place

    def after(self, token: str) -> Expr:
        return END

    def enclosed(self, opening: str, body: Expr | None, closing: str, *, may_be_empty: bool) -> Expr:
        return _enclosed(body, may_be_empty=may_be_empty and self._tagged.is_kind("array", self._place))

    def value(self, value: Any) -> Expr:
        if not self._tagged.can_write(value, self._place.item):
            reason = f"the model writes items between tags, which cannot hold {shown(value)}"
            fix = "Take other values, or --tool-call-format json."
            # Not an Unsupported alone, for which arrays would look for another way to keep the items different.
            raise SchemaRefused([Unsupported(self._node.pointer, "items", reason, fix)])
        return self._tagged.text(self._tagged.style.write_item(value))


def _enclosed(body: Expr | None, *, may_be_empty: bool) -> Expr:
    if body is None:
        return END if may_be_empty else NOTHING
    return optional(body) if may_be_empty else body


class _Inner:
    """The emitter as the emitter of an object or array between tags sees it. Guards read JSON, and no tags."""

    guarded = False

    def __init__(self, emitter: ArgumentsEmitter, style: TextStyle, place: ValuePlace) -> None:
        self._emitter = emitter
        self._place = place
        self.graph = emitter.graph
        self.style = style

    def canonical_value(self, node: Node) -> Expr:
        return self._emitter.canonical_value(node)

    def oblige(self, obligation: Obligation) -> None:
        self._emitter.oblige(obligation)

    def marked_rule(self, expr: Expr, mark: str) -> Ref:
        return self._emitter.marked_rule(expr, mark)

    def num_values(self, node: Node, limit: int) -> int | None:
        return self._emitter.num_values(node, limit)

    def is_ordered(self, node: Node) -> bool:
        return self._emitter.is_ordered(node)

    def lacks_values(self, pointer: str, reason: str) -> None:
        self._emitter.lacks_values(pointer, reason)

    def new_rule(self, expr: Expr | None) -> Ref:
        return self._emitter.new_rule(expr)

    def set_rule(self, ref: Ref, expr: Expr) -> None:
        self._emitter.set_rule(ref, expr)


class _Members(_Inner):
    def value(self, node: Node) -> Expr:
        return self._emitter.argument(node, self._place.anywhere, None)

    def member_value(self, name: str, node: Node) -> Expr:
        return self._emitter.argument(node, self._place.member(name), name)


class _Items(_Inner):
    def value(self, node: Node) -> Expr:
        return self._emitter.argument(node, self._place.item, ITEM, is_item=True)

    def member_value(self, name: str, node: Node) -> Expr:
        return self.value(node)
