"""`Piece`: a part of a text's grammar with facts about its edges, so that parts can be combined safely.

A backend splits a text into terminals by the longest match (see `lark`), so two parts may be adjacent, or be
alternatives, only where the longest match finds the right borders. Each function of this module combines parts such
that the longest match is right, if necessary by merging the parts into a single terminal. Where that cannot be done the
result is `unclear`, and the terminals of the whole have to be inferred (`unclear_borders`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from radixrt.constrained.productions import (
    Expr,
    Rep,
    Seq,
    Special,
    Term,
    alt,
    seq,
)
from radixrt.constrained.regex import (
    ANY,
    ANY_CHAR,
    CharSet,
    Regex,
    RegexTooComplex,
    alternate,
    complement,
    concat,
    derive,
    intersect,
    is_empty,
    literal,
    literals,
    repeat,
)
from radixrt.constrained.regex.charset import EVERY
from radixrt.constrained.regex.derivatives import first as first_chars
from radixrt.constrained.regex.nodes import EMPTY
from radixrt.constrained.tags.fields import refuse
from radixrt.errors import shown

MAX_STATES = 500
MAX_LEADS = 64
"""Most alternatives whose leads are compared, each with each."""
NO_CHARS = CharSet(())
NUMBER_CHARS = CharSet.of("0123456789+-.eE")


class Ambiguous(Exception):
    """The longest match does not distinguish alternatives; the message names them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a grammar and its edges.

    Attributes:
        expr: the grammar.
        first: characters with which a text can begin.
        nullable: the empty text is one.
        more: characters with which a whole text can continue, in the same terminal or with another one.
        starts: constants, each a separate terminal, with which all nonempty texts begin; None if unknown.
        then: characters that may follow any of `starts` within the piece; every character if that is unknown.
        is_start: a text may end with its constant of `starts`, so that whatever follows the piece follows the constant.
        again: constants that may stand after a whole text; their characters are not in `more`.
        regex: the language, where it is regular.
        lacks: texts that occur in none of the texts up to a mark in it.
        lead: a regular language with which all texts begin, and the grammar of what follows; None if unknown.
        unclear: what the longest match does not tell of the parts; empty if it tells them apart.
    """

    expr: Expr
    first: CharSet
    nullable: bool = False
    more: CharSet = NO_CHARS
    starts: tuple[str, ...] | None = None
    then: CharSet = EVERY
    is_start: bool = False
    again: tuple[str, ...] = ()
    regex: Regex | None = None
    lacks: tuple[str, ...] = ()
    lead: tuple[Regex, Expr] | None = None
    unclear: str = ""


NO_TEXT = Piece(Seq(()), NO_CHARS, nullable=True, regex=literal(""))


def constant(text: str) -> Piece:
    """Exactly this text, as a `Term`: a `Lit` may be cut into several terminals when it is written."""
    if not text:
        return NO_TEXT
    start = (text,)
    return Piece(
        Term(literal(text)), CharSet.of(text[0]), starts=start, then=NO_CHARS, is_start=True, regex=literal(text)
    )


def token(text: str, sign: str) -> Piece:
    """One control token of the vocabulary.

    Args:
        sign: a surrogate that represents the token at the edges, because no text contains a surrogate.
    """
    return Piece(Special(text), CharSet.of(sign), starts=(sign,), then=NO_CHARS, is_start=True)


def regular(regex: Regex) -> Piece:
    """One terminal."""
    if regex.text is not None:
        return constant(regex.text)
    return Piece(Term(regex), first_chars(regex), regex.nullable, _open_end(regex), regex=regex)


def _open_end(regex: Regex) -> CharSet:
    """Return the characters with which a string of the language can continue within the language."""
    seen = {regex}
    pending = [regex]
    found = NO_CHARS
    while pending:
        state = pending.pop()
        if state.nullable:
            found = found | first_chars(state)
        for charset in state.classes():
            target = derive(state, chr(charset.edges[0]))
            if target is not EMPTY and target not in seen:
                if len(seen) >= MAX_STATES:
                    return EVERY
                seen.add(target)
                pending.append(target)
    return found


# --- putting pieces together ---


def follow(left: Piece, right: Piece) -> Piece:
    """Left, then right."""
    if left.expr == NO_TEXT.expr or right.expr == NO_TEXT.expr:
        return right if left.expr == NO_TEXT.expr else left
    clash = bool(left.more & right.first) or not _all_apart(left.again, right)
    if left.nullable and left.first & right.first:
        excluded = left.starts is not None and all(start in right.lacks for start in left.starts)
        clash = clash or not (excluded or _starts_apart(left, right))
    unclear = left.unclear or right.unclear
    if clash and not unclear:
        if left.regex is not None and right.regex is not None:
            return regular(concat(left.regex, right.regex))
        unclear = "where the one ends and the other begins"
    if left.nullable:
        starts = None if left.starts is None or right.starts is None else left.starts + right.starts
        left = replace(left, starts=starts, then=left.then | right.then, is_start=left.is_start or right.is_start)
    elif left.expr == constant(text := left.starts[0] if left.starts else "").expr and _begins_with_token(right):
        # The token ends the constant, so constants with other continuations are told apart by the token.
        starts = tuple([text + start for start in right.starts or ()])
        left = replace(left, starts=starts, then=right.then, is_start=right.is_start)
    return Piece(
        seq(left.expr, right.expr),
        left.first | right.first if left.nullable else left.first,
        left.nullable and right.nullable,
        left.more | right.more if right.nullable else right.more,
        left.starts,
        left.then | right.first if left.is_start else left.then,
        left.is_start and right.nullable,
        left.again + right.again if right.nullable else right.again,
        concat(left.regex, right.regex) if left.regex is not None and right.regex is not None else None,
        lead=_lead(left, right),
        unclear=unclear,
    )


def _lead(left: Piece, right: Piece) -> tuple[Regex, Expr] | None:
    """Return the lead of left, then right."""
    if left.lead is not None:
        return left.lead[0], seq(left.lead[1], right.expr)
    if left.regex is None or right.regex is not None:
        return None
    return (left.regex, right.expr) if right.lead is None else (concat(left.regex, right.lead[0]), right.lead[1])


def _begins_with_token(piece: Piece) -> bool:
    return bool(piece.starts) and not piece.nullable and not piece.first & EVERY


def choose(options: Sequence[Piece], *, at_end: bool) -> Piece:
    """One of the options.

    Args:
        at_end: nothing can follow.
    """
    if any(one.unclear for one in options):
        return together(options)
    try:
        return _distinct(options, at_end=at_end)
    except Ambiguous as error:
        return replace(together(options), unclear=str(error))


def _distinct(options: Sequence[Piece], *, at_end: bool) -> Piece:
    """Return the alternation of options. Raises Ambiguous if two of them begin alike."""
    pieces = list(options)
    while True:
        alike = _alike(pieces)
        plain = [i for i in alike if pieces[i].regex is not None]
        if at_end:
            plain = [i for i in plain if not isinstance(pieces[i].expr, Term)]
            made = [_one_terminal([pieces[i]]) for i in plain]
        elif len(plain) > 1 or any(not isinstance(pieces[i].expr, Term) for i in plain):
            made = [_one_terminal([pieces[i] for i in plain])]
        else:
            break
        if not plain:
            break
        pieces = [piece for i, piece in enumerate(pieces) if i not in plain] + made
    try:
        _check_parting([pieces[i] for i in alike], at_end=at_end)
    except Ambiguous:
        leads = [pieces[i].lead for i in sorted(alike)]
        if len(alike) < len(pieces) or not _leads_part([lead[0] for lead in leads if lead is not None], len(leads)):
            raise
        # The leads are told apart as whole terminals.
        pieces = [replace(piece, expr=seq(Term(lead[0]), lead[1])) for piece in pieces if (lead := piece.lead)]
    return together(pieces)


def _leads_part(leads: Sequence[Regex], number: int) -> bool:
    """Return True if there are so many leads, and no text of a lead begins with a text of another lead."""
    if not 1 < len(leads) == number <= MAX_LEADS:
        return False
    begun = [concat(lead, ANY) for lead in leads]
    return all(is_empty(intersect(one, other)) for i, one in enumerate(begun) for other in begun[i + 1 :])


def _one_terminal(pieces: Sequence[Piece]) -> Piece:
    return regular(alternate(*(piece.regex for piece in pieces if piece.regex is not None)))


def _alike(pieces: Sequence[Piece]) -> set[int]:
    """Return the indices of pieces that can begin like another piece and are not distinguished by constants."""
    found: set[int] = set()
    unknown = NO_CHARS  # first characters of the pieces without known constants
    known = NO_CHARS
    for piece in pieces:
        if piece.starts is None:
            unknown = unknown | piece.first
        else:
            known = known | piece.first
    seen, twice = NO_CHARS, NO_CHARS
    for piece in pieces:
        if piece.starts is None:
            twice = twice | (seen & piece.first)
            seen = seen | piece.first
    for i, piece in enumerate(pieces):
        if piece.first & (unknown if piece.starts is not None else known | twice):
            found.add(i)
    ordered = sorted((start, i) for i, piece in enumerate(pieces) for start in piece.starts or ())
    prefixes: list[tuple[str, int]] = []
    for start, i in ordered:
        while prefixes and not start.startswith(prefixes[-1][0]):
            prefixes.pop()
        for shorter, j in prefixes:
            if i != j and not _parts_after(pieces[j], shorter, start):
                found |= {i, j}
        if not prefixes or prefixes[-1][0] != start:
            prefixes.append((start, i))
    return found


def _parts_after(piece: Piece, start: str, longer: str) -> bool:
    """Return True if after `start` of the piece no text continues as `longer`, which begins with `start`, does."""
    return not piece.is_start and len(longer) > len(start) and not CharSet.of(longer[len(start)]) & piece.then


def _check_parting(alike: Sequence[Piece], *, at_end: bool) -> None:
    """Raise `Ambiguous` unless the longest match distinguishes these alternatives, some of which begin alike."""
    starts: list[str] = []
    ends: list[tuple[str, Piece]] = []
    for piece in alike:
        if piece.regex is None:
            if piece.starts is None:
                raise Ambiguous("which of two alternatives a text is, because both can begin alike")
            starts += piece.starts
            ends += [(start, piece) for start in piece.starts]
    for piece in alike:
        if piece.regex is not None and not all(_diverge(piece.regex, start, at_end=at_end) for start in starts):
            raise Ambiguous("which of two alternatives a text is, because both can begin alike")
    ends.sort(key=lambda one: one[0])
    for i, (start, piece) in enumerate(ends):
        for longer, _ in ends[i + 1 :]:
            if not longer.startswith(start):
                break
            if not _parts_after(piece, start, longer):
                raise Ambiguous("which of two alternatives a text is, because both can begin alike")


def together(options: Sequence[Piece]) -> Piece:
    """Return the alternation of options that are known to be distinguishable, or of which some are unclear."""
    if len(options) == 1:
        return options[0]
    first, more = NO_CHARS, NO_CHARS
    for one in options:
        first, more = first | one.first, more | one.more
    starts = None
    if all(one.starts is not None for one in options):
        starts = tuple([start for one in options for start in one.starts or ()])
    again = tuple(dict.fromkeys(start for one in options for start in one.again))
    regexes = [one.regex for one in options if one.regex is not None]
    whole = alternate(*regexes) if len(regexes) == len(options) else None
    nullable = any(one.nullable for one in options)
    then = NO_CHARS
    for one in options:
        then = then | one.then
    is_start = any(one.is_start for one in options)
    unclear = next((one.unclear for one in options if one.unclear), "")
    expr = alt(*(one.expr for one in options))
    return Piece(expr, first, nullable, more, starts, then, is_start, again, whole, unclear=unclear)


def _diverge(regex: Regex, start: str, *, at_end: bool) -> bool:
    """Return True if no text of the language continues after `start`, nor, unless `at_end`, ends within it."""
    state = regex
    for char in start:
        if state.nullable and not at_end:
            return False
        state = derive(state, char)
        if state is EMPTY:
            return True
    try:
        return is_empty(state)
    except RegexTooComplex:
        return False


def _starts_apart(one: Piece, other: Piece) -> bool:
    return one.starts is not None and other.starts is not None and _prefix_free([*one.starts, *other.starts])


def _all_apart(literals: Sequence[str], piece: Piece) -> bool:
    """Return True if no literal can be mistaken for the beginning of the piece."""
    near = [text for text in literals if text[0] in piece.first]
    return not near or (piece.starts is not None and _prefix_free([*set(near), *set(piece.starts)]))


def _prefix_free(texts: Sequence[str]) -> bool:
    ordered = sorted(texts)
    return not any(after.startswith(before) for before, after in pairwise(ordered))


def repeated(item: Piece, low: int, high: int | None) -> Piece:
    """Return a piece of `low` to `high` consecutive items."""
    if high == 0:
        return NO_TEXT
    unclear = item.unclear
    if high != 1 and not unclear:
        if item.nullable and item.regex is None:
            unclear = "how often a part that can be empty is repeated"
        elif item.more & item.first or not _all_apart(item.again, item) or item.nullable:
            if item.regex is not None:
                return regular(repeat(item.regex, low, high))
            unclear = "where one ends and the next begins"
    again, more = item.again, item.more
    if high != 1:
        if item.starts is None:
            more = more | item.first
        else:
            again = again + item.starts
    whole = repeat(item.regex, low, high) if item.regex is not None else None
    nullable = low == 0 or item.nullable
    expr = Rep(item.expr, low, high)
    return replace(item, expr=expr, nullable=nullable, more=more, again=again, regex=whole, unclear=unclear)


# --- free text ---


Body = tuple[Piece, Piece]
"""A mark, and the text after the mark."""


def free_text(
    bodies: Sequence[Body],
    ends: Sequence[Piece] | None,
    excludes: Sequence[str],
    limit: int | None = None,
    *,
    at: str,
    lead: str = "",
) -> Piece:
    """Text up to and including the first mark and the mark's continuation, or up to the first end.

    Marks and ends are constants or tokens; the texts of both kinds do not occur in the free text.

    Args:
        ends: empty where the text ends with the output; None where another part follows, which may begin at any place.
        excludes: further texts that do not occur in it.
        limit: characters of it, at most.
        at: the JSON pointer that errors name.
        lead: text with which the free text before each mark ends.
    """
    marks = [*(begin for begin, _ in bodies), *(ends or ())]
    is_last = ends is not None and not ends
    spelled = [_spelled(mark) for mark in marks]
    _check_marks([mark.regex.text or "" for mark in marks if mark.regex is not None], at)
    text = ANY if limit is None else repeat(ANY_CHAR, 0, limit)
    free = regular(intersect(text, _without([*excludes, *spelled])))
    if isinstance(free.expr, Term) and is_last:
        free = replace(free, expr=Term(free.expr.regex, mark=""))
    # Excluded texts that a mark holds are kept out of the text before the mark alone, and all others out of both.
    held = [one for one in excludes if any(one in mark for mark in spelled)]
    text = intersect(text, _without(held)) if held else text
    kept_out = [*(one for one in excludes if one not in held), *spelled]
    before = complement(concat(ANY, literals(kept_out), ANY_CHAR, ANY))

    def up_to(mark: Piece) -> Piece:
        if mark.regex is None:
            before_mark = Term(concat(free.regex, literal(lead))) if lead and free.regex is not None else free.expr
            return Piece(seq(before_mark, mark.expr), free.first | mark.first)
        if free.regex is not None and not any(_overlaps(one, mark.regex.text or "") for one in kept_out):
            regex = concat(free.regex, mark.regex)  # the same language, quicker to read
        else:
            regex = intersect(concat(text, mark.regex), before)
        return Piece(Term(regex, mark=mark.regex.text if is_last else None), first_chars(regex), regex=regex)

    options = [follow(up_to(begin), body) for begin, body in bodies]
    options += [up_to(end) for end in ends or ()] or [free]
    # No text up to a mark is the beginning of another one, or of a free text, so these part by themselves.
    return replace(together(options), lacks=tuple(excludes))


def _overlaps(text: str, mark: str) -> bool:
    """Return whether a text can begin before a mark and end within the mark."""
    return any(mark.startswith(text[at:]) for at in range(1, len(text)))


def _without(texts: Sequence[str]) -> Regex:
    """Return the texts in which none of some other texts occurs."""
    return complement(concat(ANY, literals(texts), ANY)) if texts else ANY


def _spelled(mark: Piece) -> str:
    """The text of a constant, or of a token."""
    return (
        mark.expr.text
        if isinstance(mark.expr, Special)
        else (mark.regex.text if mark.regex is not None else None) or ""
    )


def _check_marks(marks: Sequence[str], at: str) -> None:
    for i, mark in enumerate(marks):
        inside = [other for j, other in enumerate(marks) if i != j and other in mark]
        if inside:
            refuse(at, f"{shown(inside[0])} ends free text, so {shown(mark)} can never come")
