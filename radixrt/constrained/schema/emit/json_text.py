"""JSON text as expressions: punctuation with optional whitespace, single values, separated lists."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import NOTHING, Alt, Expr, Lit, Ref, Rep, Seq, Term, alt, optional, seq
from radixrt.constrained.regex import CharSet, chars, repeat
from radixrt.constrained.schema.emit.free_parts import MAX_DIGITS, MAX_READABLE_DIGITS
from radixrt.constrained.schema.emit.key_classes import KeyClass
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Node
from radixrt.constrained.schema.values import is_utf8, number_texts, text_of
from radixrt.constraint import KeyOrder

Comma = Literal["before", "after"]
END: Expr = Seq(())
"""The empty sequence: nothing follows."""
SHORT = frozenset((Lit, Ref, Term))
"""Expressions that may be written at each of their uses."""


class TextStyle:
    """Whitespace between tokens.

    Args:
        whitespace: maximum number of characters (space, newline, tab) after `{ [ , :` and before `} ]`.
        bounded: parts that the schema leaves free have the bounds of `free_parts`.
        max_digits: digits after the first digit of a number, and after its point, where the schema sets no bound; None
            is the bound of `free_parts`, or the longest readable number if not `bounded`.

        key_order: "any" lets the declared members of an object come in any order.
        canonical: equal values have the same text, but for the order of the members of objects.

    Attributes:
        bounded, key_order, canonical: as above.
        max_digits: as above, never None.
    """

    def __init__(
        self,
        whitespace: int,
        *,
        bounded: bool,
        max_digits: int | None = None,
        key_order: KeyOrder = "schema",
        canonical: bool = False,
    ) -> None:
        self.bounded = bounded
        self.key_order = key_order
        self.canonical = canonical
        self.max_digits = (MAX_DIGITS if bounded else MAX_READABLE_DIGITS) if max_digits is None else max_digits
        self._gap = Term(repeat(chars(CharSet.of(" \n\t")), 0, whitespace)) if whitespace else None
        self._members: dict[tuple[str, Expr, str], Expr] = {}  # those with short values, which objects often share

    def as_canonical(self) -> TextStyle:
        """Return the style of items that must differ."""
        return TextStyle(0, bounded=self.bounded, max_digits=self.max_digits, key_order=self.key_order, canonical=True)

    def after(self, token: str) -> Expr:
        """Return an opening bracket or separator with the whitespace after it."""
        return seq(Lit(token), self._gap) if self._gap else Lit(token)

    def enclosed(self, opening: str, body: Expr | None, closing: str, *, may_be_empty: bool) -> Expr:
        """Return a body between two brackets; with `may_be_empty` or without a body, the empty brackets too."""
        empty = seq(self.after(opening), Lit(closing))
        if body is None:
            return empty
        if self._gap is None and may_be_empty:
            return joined(Lit(opening), optional(body), Lit(closing))
        before_closing = seq(self._gap, Lit(closing)) if self._gap else Lit(closing)
        full = joined(self.after(opening), body, before_closing)
        return alt(empty, full) if may_be_empty else full

    def member(self, name: str, value: Expr, *, comma: bool) -> Expr:
        """Return a declared member, with a comma before it or without."""
        key = text_of(name) + ":"
        if self._gap is None:
            return joined(Lit("," + key if comma else key), value)
        return seq(*([self.after(",")] if comma else []), Lit(key), self._gap, value)

    def optional_member(self, name: str, value: Expr, comma: Comma) -> Expr:
        """Return a declared member that may be missing, with the comma before or after it."""
        key = (name, value, comma) if type(value) in SHORT else None
        made = None if key is None else self._members.get(key)
        if made is None:
            member = self.member(name, value, comma=comma == "before")
            made = optional(member if comma == "before" else joined(member, self.after(",")))
            if key is not None:
                self._members[key] = made
        return made

    def keys(self, one: KeyClass) -> Expr:
        """Return the names of a class of undeclared members."""
        return Term(one.keys(bounded=self.bounded))

    def pair(self, key: Expr, value: Expr) -> Expr:
        """Return an undeclared member; the key ends with its colon."""
        return joined(key, value) if self._gap is None else joined(key, self._gap, value)

    def value(self, value: Any) -> Expr:
        """Return the texts of exactly this value."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            found = number_texts(value)
            return alt(*(Lit(text) for text in (found[:1] if self.canonical else found)))
        if not isinstance(value, list | dict) or (value and self._gap is None and not self.canonical):
            return Lit(text_of(value))
        brackets = "[]" if isinstance(value, list) else "{}"
        parts: list[Expr] = []
        if isinstance(value, list):
            for item in value:
                parts += [self.after(","), self.value(item)] if parts else [self.value(item)]
        else:
            for name, member in value.items():
                parts.append(self.member(name, self.value(member), comma=bool(parts)))
        return self.enclosed(brackets[0], seq(*parts) if parts else None, brackets[1], may_be_empty=False)


class Emitter(Protocol):
    """The grammar under construction, as the emitters of arrays and objects see it.

    Attributes:
        graph: the normal form.
        style: whitespace between tokens.
        guarded: guards enforce the obligations of the texts. Without guards, a schema that needs them is refused.
    """

    graph: Graph
    style: TextStyle
    guarded: bool

    def value(self, node: Node) -> Expr:
        """Return the expression of a node: a reference, or the expression itself where it is used once or short."""

    def canonical_value(self, node: Node) -> Expr:
        """Return the expression of an item that must differ from others: as `value`, in a canonical style."""

    def member_value(self, name: str, node: Node) -> Expr:
        """Return the expression of the value of a declared member."""

    def new_rule(self, expr: Expr | None) -> Ref:
        """Create a rule; None reserves a name whose expression `set_rule` provides."""

    def marked_rule(self, expr: Expr, mark: str) -> Ref:
        """Create a rule of arrays with a mark (see `obligations`)."""

    def num_values(self, node: Node, limit: int) -> int | None:
        """Return an upper bound on the number of values of a node; None if it is more than a limit."""

    def is_ordered(self, node: Node) -> bool:
        """Return whether the members of objects have one order, with keys in the schema's order."""

    def lacks_values(self, pointer: str, reason: str) -> None:
        """Record why an array that the emitter leaves out has no value."""

    def set_rule(self, ref: Ref, expr: Expr) -> None:
        """Set the expression of a reserved rule."""

    def oblige(self, obligation: Obligation) -> None:
        """Record a condition on the texts that the productions do not express."""


def joined(*parts: Expr) -> Expr:
    """Return a sequence in which neighbouring literals are merged; `NOTHING` if a part is."""
    flat: list[Expr] = []
    text = ""  # of the literals before, which are not in `flat` yet
    for part in parts:
        for piece in part.parts if type(part) is Seq else (part,):
            if type(piece) is Lit:
                text += piece.text
                continue
            if type(piece) is Alt and not piece.options:
                return NOTHING
            if text:
                flat.append(Lit(text))
                text = ""
            flat.append(piece)
    if text:
        flat.append(Lit(text))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def repeated(item: Expr, low: int, high: int | None) -> Expr:
    """Return `low` to `high` items; nothing if `high` is 0."""
    if high == 0:
        return END
    return item if low == high == 1 else Rep(item, low, high)


def check_text(text: str, pointer: str, keyword: str) -> None:
    """Raise Unsupported if the text has a lone surrogate, which UTF-8 cannot encode."""
    if not is_utf8(text):
        reason = "it has half of a surrogate pair, which is not a character"
        raise Unsupported(pointer, keyword, reason, "Write the whole pair, or leave it out.")
