"""Free text with a definite end: it goes on up to the first of some marks, and no further."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.constrained.productions import Special, Term, seq
from radixrt.constrained.regex import ANY, ANY_CHAR, complement, concat, intersect, literals, repeat
from radixrt.constrained.regex.derivatives import first as first_chars
from radixrt.constrained.tags.fields import refuse
from radixrt.constrained.tags.pieces import Piece, follow, regular, together
from radixrt.errors import shown

Body = tuple[Piece, Piece]
"""A mark, and what follows it."""


def free_text(
    bodies: Sequence[Body], ends: Sequence[Piece], excludes: Sequence[str], limit: int | None = None, *, at: str
) -> Piece:
    """Text up to the first mark and what that is followed by, or up to the first end.

    Marks and ends are constants or tokens; the texts of both kinds do not occur in the free text.

    Args:
        ends: none where the text ends with the output.
        excludes: further texts that do not occur in it.
        limit: characters of it, at most.
        at: the place that errors name.
    """
    marks = [*(begin for begin, _ in bodies), *ends]
    _check_marks([mark.regex.text or "" for mark in marks if mark.regex is not None], excludes, at)
    kept_out = literals([*excludes, *map(_spelled, marks)])
    text = ANY if limit is None else repeat(ANY_CHAR, 0, limit)
    free = regular(intersect(text, complement(concat(ANY, kept_out, ANY))))
    before = complement(concat(ANY, kept_out, ANY_CHAR, ANY))

    def up_to(mark: Piece) -> Piece:
        if mark.regex is None:
            return Piece(seq(free.expr, mark.expr), free.first | mark.first)
        regex = intersect(concat(text, mark.regex), before)
        return Piece(Term(regex), first_chars(regex), regex=regex)

    options = [follow(up_to(begin), body) for begin, body in bodies]
    options += [up_to(end) for end in ends] or [free]
    # No text up to a mark is the beginning of another one, or of a free text, so these part by themselves.
    return together(options)


def _spelled(mark: Piece) -> str:
    """The text of a constant, or of a token."""
    return (
        mark.expr.text
        if isinstance(mark.expr, Special)
        else (mark.regex.text if mark.regex is not None else None) or ""
    )


def _check_marks(marks: Sequence[str], excludes: Sequence[str], at: str) -> None:
    for i, mark in enumerate(marks):
        inside = [other for j, other in enumerate(marks) if i != j and other in mark]
        inside += [text for text in excludes if text in mark]
        if inside:
            refuse(at, f"{shown(inside[0])} ends free text, or is kept out of it, so {shown(mark)} can never come")
