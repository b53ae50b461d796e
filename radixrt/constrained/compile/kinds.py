"""Each kind of constraint as `Productions`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from radixrt.constrained.productions import EmptyLanguage, Productions, Special, Term
from radixrt.constrained.regex import RegexTooComplex, literals
from radixrt.constrained.stops import grammar_with_stops, regex_with_stops
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constrained.well_formed import read_json, read_regex
from radixrt.constraint import Constraint
from radixrt.errors import RequestError


@dataclass(frozen=True)
class Meaning:
    """What a constraint says.

    Attributes:
        ignored: what is left out of it because the caller said so, "pointer: keyword" each.
    """

    productions: Productions
    ignored: tuple[str, ...] = ()


def meaning_of(constraint: Constraint, vocabulary: Vocabulary, deadline: float | None = None) -> Meaning:
    """The pruned productions of a constraint.

    Args:
        deadline: on `time.monotonic`, by which to give up.

    Raises:
        RequestError: it is malformed, nothing satisfies it, or it cannot be enforced; names the place.
    """
    kind = constraint.kind
    try:
        meaning = _READERS[kind](constraint, deadline)
        productions = meaning.productions.prune()
    except EmptyLanguage as error:
        raise RequestError(error.message, param=error.param or kind, code=error.code) from None
    except RegexTooComplex as error:
        raise RequestError(f"{kind} is too complex: {error}", param=kind, code="too_complex") from None
    except RecursionError:
        raise RequestError(f"{kind} is nested too deeply", param=kind, code="too_complex") from None
    for expr in productions.layout.order:
        if isinstance(expr, Special) and expr.text not in vocabulary.control_tokens:
            raise RequestError(
                f"{kind} asks for the control token {expr.text!r}, which this model does not have", param=kind
            )
    return replace(meaning, productions=productions)


def _json_schema(constraint: Constraint, deadline: float | None) -> Meaning:
    from radixrt.constrained.schema import normalize
    from radixrt.constrained.schema.limits import Limits

    limits = Limits() if deadline is None else Limits(seconds=max(deadline - time.monotonic(), 0.001))
    options = constraint.options
    normal = normalize(
        read_json(constraint.source, "json_schema"),
        on_unsupported=options.on_unsupported,
        closed=options.closed,
        formats=options.formats,
        limits=limits,
    )
    ignored = tuple(f"{one.pointer}: {one.keyword}" for one in normal.ignored)
    return Meaning(normal.productions(whitespace=options.whitespace), ignored=ignored)


def _regex(constraint: Constraint, deadline: float | None) -> Meaning:
    regex = read_regex(constraint.source)
    return Meaning(Productions({"start": Term(regex_with_stops(regex, constraint.stop) if constraint.stop else regex)}))


def _ebnf(constraint: Constraint, deadline: float | None) -> Meaning:
    from radixrt.constrained.productions.ebnf import parse_ebnf

    productions = parse_ebnf(constraint.source)
    return Meaning(grammar_with_stops(productions.prune(), constraint.stop) if constraint.stop else productions)


def _choices(constraint: Constraint, deadline: float | None) -> Meaning:
    return Meaning(Productions({"start": Term(literals(read_json(constraint.source, "choices")))}))


def _structural_tag(constraint: Constraint, deadline: float | None) -> Meaning:
    from radixrt.constrained.tags.structural_tag import read_structural_tag

    productions, ignored = read_structural_tag(constraint.source, constraint.options, deadline)
    return Meaning(productions, ignored=tuple(ignored))


_READERS: dict[str, Callable[[Constraint, float | None], Meaning]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "ebnf": _ebnf,
    "choices": _choices,
    "structural_tag": _structural_tag,
}
