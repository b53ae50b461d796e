"""Pieces of JSON text as expressions: punctuation with its optional whitespace, single values, separated lists."""

from __future__ import annotations

from typing import Any

from radixrt.constrained.productions import Expr, Lit, Rep, Seq, Term, alt, optional, seq
from radixrt.constrained.regex import CharSet, chars, repeat
from radixrt.constrained.schema.errors import Unsupported
from radixrt.constrained.schema.values import is_utf8, number_texts, text_of

NOTHING_MORE: Expr = Seq(())


class TextStyle:
    """How much whitespace may stand between the tokens.

    Args:
        whitespace: characters (space, newline, tab) that may stand after `{ [ , :` and before `} ]`.
    """

    def __init__(self, whitespace: int) -> None:
        self.whitespace = whitespace
        self._gap = Term(repeat(chars(CharSet.of(" \n\t")), 0, whitespace)) if whitespace else None

    def before(self, mark: str) -> Expr:
        """A closing mark with the whitespace before it."""
        return seq(self._gap, Lit(mark)) if self._gap else Lit(mark)

    def after(self, mark: str) -> Expr:
        """An opening mark or separator with the whitespace after it."""
        return seq(Lit(mark), self._gap) if self._gap else Lit(mark)

    def enclosed(self, opening: str, body: Expr | None, closing: str, *, may_be_empty: bool) -> Expr:
        """A body that is not empty between two marks; with `may_be_empty`, or nothing between them."""
        empty = seq(self.after(opening), Lit(closing))
        if body is None:
            return empty
        if self._gap is None and may_be_empty:
            return joined(Lit(opening), optional(body), Lit(closing))
        full = joined(self.after(opening), body, self.before(closing))
        return alt(empty, full) if may_be_empty else full

    def member(self, name: str, value: Expr, *, comma: bool) -> Expr:
        """A declared member, with a comma before it or without."""
        key = text_of(name) + ":"
        if self._gap is None:
            return joined(Lit("," + key if comma else key), value)
        return seq(*([self.after(",")] if comma else []), Lit(key), self._gap, value)

    def value(self, value: Any) -> Expr:
        """Exactly this value."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return alt(*(Lit(text) for text in number_texts(value)))
        if self._gap is None or not isinstance(value, list | dict) or not value:
            return Lit(text_of(value)) if value or not isinstance(value, list | dict) else self.empty(value)
        parts: list[Expr] = []
        if isinstance(value, list):
            for item in value:
                parts += [self.after(","), self.value(item)] if parts else [self.value(item)]
            return self.enclosed("[", seq(*parts), "]", may_be_empty=False)
        for name, member in value.items():
            parts.append(self.member(name, self.value(member), comma=bool(parts)))
        return self.enclosed("{", seq(*parts), "}", may_be_empty=False)

    def empty(self, value: Any) -> Expr:
        """`[]` or `{}`."""
        return (
            self.enclosed("[", None, "]", may_be_empty=True)
            if value == []
            else self.enclosed("{", None, "}", may_be_empty=True)
        )


def joined(*parts: Expr) -> Expr:
    """A sequence in which neighbouring literals are one."""
    flat: list[Expr] = []
    for part in parts:
        for piece in part.parts if isinstance(part, Seq) else (part,):
            if isinstance(piece, Lit) and flat and isinstance(flat[-1], Lit):
                flat[-1] = Lit(flat[-1].text + piece.text)
            else:
                flat.append(piece)
    return seq(*flat)


def repeated(item: Expr, low: int, high: int | None) -> Expr:
    """From low to high items; nothing if high is 0."""
    if high == 0:
        return NOTHING_MORE
    return item if low == high == 1 else Rep(item, low, high)


def check_text(text: str, pointer: str, keyword: str) -> None:
    """Raises Unsupported if the text has a lone surrogate, which no UTF-8 text can have."""
    if not is_utf8(text):
        reason = "it has half of a surrogate pair, which is not a character"
        raise Unsupported(pointer, keyword, reason, "Write the whole pair, or leave it out.")
