"""A constraint with stop strings: its text, and then an end of its own or one of them.

A stop string ends the text where it is complete first, wherever that is. So that what is left in front of it is always
a whole text of the constraint, no text may be written in which one is complete any sooner than behind such a text.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.constrained.productions import Lit, Productions, Ref, Special, Term, alt, optional, seq
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
)
from radixrt.constrained.regex import optional as optionally
from radixrt.errors import RequestError, shown


def regex_with_stops(regex: Regex, stops: Sequence[str]) -> Regex:
    """The texts of `regex` that a stop string may follow, with it or without one.

    Raises:
        RequestError: each of them has a stop string in it.
    """
    if _is_apart(regex, stops):
        return concat(regex, optionally(literals(_reachable(stops))))
    any_stop = literals(stops)
    sooner = complement(concat(ANY, any_stop, ANY_CHAR, ANY))
    options = [intersect(regex, complement(concat(ANY, any_stop, ANY)))]
    for stop in stops:
        longer = [other for other in stops if other != stop and other.endswith(stop)]  # of two, the longer is taken
        options.append(intersect(concat(regex, literal(stop)), sooner, complement(concat(ANY, literals(longer)))))
    made = alternate(*options)
    if made.is_empty() and not regex.is_empty():
        raise RequestError(
            "each text of the regex has a stop string in it; a stop string comes behind the text, so leave it out of "
            "the regex or of stop",
            param="stop",
        )
    return made


def grammar_with_stops(productions: Productions, stops: Sequence[str]) -> Productions:
    """The texts of a grammar, with a stop string behind them or without one.

    Raises:
        RequestError: a stop string could begin inside of the grammar's text.
    """
    for expr in productions.layout.order:
        regex = expr.regex if isinstance(expr, Term) else None
        if isinstance(expr, Lit | Special):
            regex = literal(expr.text)
        if regex is not None and not _is_apart(regex, stops):
            listed = ", ".join(shown(stop) for stop in stops)
            raise RequestError(
                f"stop: what the grammar describes may have the first character of a stop string ({listed}) in it; end "
                "the grammar with that text, and leave stop out",
                param="stop",
            )
    end = optional(alt(*(Lit(stop) for stop in _reachable(stops))))
    rules = dict(productions.rules)
    start = productions.start
    while start in rules:
        start += "_"
    return Productions({start: seq(Ref(productions.start), end), **rules}, start)


def _is_apart(regex: Regex, stops: Sequence[str]) -> bool:
    """Whether no text of the regex has a character that a stop string begins with."""
    first = chars(CharSet.of({stop[0] for stop in stops}))
    try:
        return intersect(regex, concat(ANY, first, ANY)).is_empty()
    except RegexTooComplex:
        return False


def _reachable(stops: Sequence[str]) -> list[str]:
    """Without those that have another one in them, which is complete sooner."""
    return [stop for stop in stops if not any(other in stop[:-1] for other in stops)]
