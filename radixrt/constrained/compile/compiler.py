"""Compiles a `Constraint` into a `CompiledConstraint`, from which a scheduler makes grammars.

Pure functions of the constraint and the vocabulary, run by worker processes and, where there are none, in the caller's.
The constraint becomes `Productions`; a mask library is chosen; its first masks are computed, so that a grammar that
is dead, too slow or too large is refused here and not in the middle of an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from radixrt.constrained.backends.choice import Backends, probe
from radixrt.constrained.compile.compiled import CompiledConstraint
from radixrt.constrained.guards.guarded_grammar import GuardedTemplate
from radixrt.constrained.guards.scanner import Scanner
from radixrt.constrained.guards.search import Completer
from radixrt.constrained.lark_input.syntax import NotTranslated
from radixrt.constrained.matcher import GrammarError
from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import EmptyLanguage, Productions, Term
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.regex import RegexTooComplex, literals
from radixrt.constrained.runtime.closing import Completions
from radixrt.constrained.runtime.grammar_template import GrammarTemplate
from radixrt.constrained.runtime.opaque_grammar import OpaqueTemplate, no_completions
from radixrt.constrained.runtime.text_grammar import TextTemplate
from radixrt.constrained.schema.errors import SchemaRefused, Unsupported
from radixrt.constrained.stop_strings import grammar_with_stops, regex_with_stops
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constrained.well_formed import read_json, read_regex
from radixrt.constraint import Constraint
from radixrt.errors import InvariantError, RadixRTError, RequestError
from radixrt.messages.parts import FinishError

logger = logging.getLogger(__name__)

MAX_SHORTEST_CHARS = 1_000_000


def compile_constraint(
    constraint: Constraint, backends: Backends, deadline: float | None = None, *, thorough: bool = False
) -> CompiledConstraint:
    """Compile a constraint: parse it into productions, find the shortest output, and choose the library.

    Args:
        deadline: time on `time.thread_time` at which to give up.
        thorough: load and probe plain grammars (`backends.choice.is_plain`) too, for inspection.

    Raises:
        RequestError: the constraint is malformed, unsatisfiable, not enforceable or too expensive; the message names
            the position.
    """
    started = time.perf_counter()
    vocabulary = backends.vocabulary
    kind = constraint.kind
    # Lark grammars without a translation go to llguidance unchanged.
    try:
        parsed = parse_constraint(constraint, vocabulary, deadline)
    except NotTranslated as reason:
        return _compile_opaque(constraint, backends, str(reason), started)
    productions = parsed.productions
    if productions.shortest[productions.start] > MAX_SHORTEST_CHARS:
        raise RequestError(
            f"{kind}: the shortest output has {productions.shortest[productions.start]} characters, more than any "
            "context holds",
            param=kind,
            code="too_complex",
        )
    # The shortest output, in tokens, is the least `max_tokens` of a request, and the text with which libraries are
    # probed.
    exit = make_completions(productions, vocabulary)
    # The shortest output of the whole may do without the JSON that counts.
    rules = dict.fromkeys(one.rule for one in parsed.obligations if one.rule in productions.rules)
    for rule in rules:
        if deadline is not None and time.thread_time() > deadline:
            message = f"{kind} is too complex: the shortest JSON whose keys and items differ takes too long to find"
            raise RequestError(message, param=kind, code="too_complex")
        part = Productions(productions.rules, rule).prune()
        same = [one for one in parsed.obligations if one.rule == rule]
        _shortest(make_completions(part, vocabulary), vocabulary, same)
    shortest = _shortest(exit, vocabulary, parsed.obligations)
    try:
        choice = backends.choose(productions, constraint.options.backend, shortest, thorough=thorough)
    except GrammarError as error:
        raise RequestError(f"{kind} cannot be enforced: {error}", param=kind, code="grammar_too_complex") from None
    specials = productions.specials
    return CompiledConstraint(
        backend=choice.backend,
        why=choice.why,
        source=choice.source,
        serialized=choice.serialized,
        productions=productions.encode(),
        shortest=shortest,
        specials=sorted(vocabulary.control_tokens[text] for text in specials),
        ignored=list(parsed.ignored),
        compile_s=time.perf_counter() - started,
        load_s=choice.load_s,
        mask_s=choice.mask_s,
        obligations=parsed.obligations,
        is_wide=choice.is_wide,
    )


def load(compiled: CompiledConstraint, backends: Backends) -> GrammarTemplate:
    """Load a compiled constraint as a template for the requests of this process.

    Raises:
        GrammarError: the library refuses or fails to load a grammar that it accepted when the constraint was compiled.
    """
    vocabulary = backends.vocabulary
    backend = backends.get(compiled.backend)
    if not compiled.productions:
        return OpaqueTemplate(
            lambda: backend.load(compiled.source),
            vocabulary,
            shortest=(),
            specials=compiled.specials,
            make_completions=no_completions,
        )
    make = partial(GuardedTemplate, obligations=compiled.obligations) if compiled.obligations else TextTemplate
    return make(
        lambda: backend.load(compiled.source, compiled.serialized),
        vocabulary,
        shortest=compiled.shortest,
        specials=compiled.specials,
        make_completions=lambda: make_completions(Productions.decode(compiled.productions), vocabulary),
        masks=backends.masks,
        is_wide=compiled.is_wide,
    )


def _shortest(exit: Completions, vocabulary: Vocabulary, obligations: Sequence[Obligation]) -> list[int]:
    """Return the tokens of a shortest output. Raises RequestError if there is none because of an obligation."""
    counted = [one for one in obligations if one.counts]
    if not counted:
        return exit.closing(exit.start)
    scanner = Scanner(exit.recognizer, obligations)
    try:
        completer = Completer(exit.recognizer, vocabulary, scanner)
        return completer.complete(exit.start, scanner.start, bytearray()).tokens(vocabulary)
    except GrammarError:
        found = next((one for one in counted if one.kind == "items"), None)
        if found is None:
            raise
        reason = "no array of different items was found that is as long as minItems asks"
        refused = Unsupported(found.pointer, "uniqueItems", reason, "Lower minItems, or allow more values.")
        refused.param = found.param or refused.param
        raise refused from None


def _compile_opaque(constraint: Constraint, backends: Backends, reason: str, started: float) -> CompiledConstraint:
    """Compile a Lark grammar without translation: llguidance gets the grammar unchanged. Limits on the time of masks
    hold; everything that needs productions is missing.

    Args:
        reason: why the grammar has no translation.

    Raises:
        RequestError: llguidance refuses the grammar, or the request has an option that needs productions.
    """
    kind, vocabulary = constraint.kind, backends.vocabulary
    as_it_is = f"this Lark grammar is given to llguidance as it is, because it cannot be translated ({reason})"
    if constraint.stop:
        raise RequestError(f"stop: {as_it_is}, and may produce a stop string; leave stop out", param="stop")
    if constraint.options.backend == "xgrammar":
        raise RequestError(f"{as_it_is}; leave the backend xgrammar out", param="backend")
    try:
        loading = time.perf_counter()
        matcher = backends.get("llguidance").load(constraint.source)
        load_s = time.perf_counter() - loading
        mask_s = probe(matcher, vocabulary, None)
    except GrammarError as error:
        raise RequestError(f"{kind}, read as Lark: {error} ({reason})", param=kind, code="invalid_ebnf") from None
    return CompiledConstraint(
        backend="llguidance",
        why="the library whose notation the grammar is written in",
        source=constraint.source,
        serialized=None,
        productions=b"",
        shortest=[],
        specials=sorted(id for text, id in vocabulary.control_tokens.items() if text in constraint.source),
        ignored=[f"not guaranteed: a complete output when max_tokens is reached; {as_it_is}"],
        compile_s=time.perf_counter() - started,
        load_s=load_s,
        mask_s=mask_s,
    )


def make_completions(productions: Productions, vocabulary: Vocabulary) -> Completions:
    """Return the shortest completions of a grammar."""
    return Completions(Recognizer(productions, vocabulary.control_tokens), vocabulary)


def refusal(error: Exception, constraint: Constraint) -> tuple[FinishError, str]:
    """Return the error that a request ends with, and the keyword at fault for the metrics.

    Whatever a constraint makes a library or Python refuse is the client's to mend (400). Anything else is a defect of
    radixrt, which is logged and named as one (500).
    """
    kind = constraint.kind
    if isinstance(error, RequestError):
        refused = error
    elif isinstance(error, MemoryError):
        refused = RequestError(f"{kind} takes too much memory to compile; make it smaller", code="too_complex")
    elif isinstance(error, RecursionError):
        refused = RequestError(f"{kind} is nested too deeply", code="too_complex")
    elif isinstance(error, RadixRTError) and not isinstance(error, InvariantError):
        refused = RequestError(f"{kind} cannot be enforced: {error}", code="grammar_too_complex")
    else:
        logger.error("a constraint of kind %s could not be compiled", kind, exc_info=error)
        reason = f"{kind} could not be compiled, because of a defect of radixrt ({type(error).__name__})"
        refused = RequestError(reason, code="constraint_failed", status=500)
    keyword: str = kind
    if isinstance(error, SchemaRefused) and error.errors:
        keyword = error.errors[0].keyword
    elif isinstance(error, Unsupported):
        keyword = error.keyword
    finish = FinishError(refused.message, param=refused.param or kind, code=refused.code, status=refused.status)
    return finish, keyword


# --- productions of each kind of constraint ---


@dataclass(frozen=True)
class ParsedConstraint:
    """A constraint as productions.

    Attributes:
        ignored: keywords that are dropped because the caller asked for that, "pointer: keyword" each, and misspelt
            ones.
        obligations: see `CompiledConstraint`.
    """

    productions: Productions
    ignored: tuple[str, ...] = ()
    obligations: tuple[Obligation, ...] = ()


def parse_constraint(constraint: Constraint, vocabulary: Vocabulary, deadline: float | None = None) -> ParsedConstraint:
    """The pruned productions of a constraint.

    Args:
        deadline: time on `time.thread_time` at which to give up.

    Raises:
        RequestError: the constraint is malformed or unsatisfiable, or cannot be enforced; the message names the
            position.
        NotTranslated: the constraint is a Lark grammar that is malformed or has no translation.
    """
    kind = constraint.kind
    try:
        parsed = _READERS[kind](constraint, vocabulary, deadline)
        productions = parsed.productions.prune()
    except EmptyLanguage as error:
        raise RequestError(error.message, param=error.param or kind, code=error.code) from None
    except RegexTooComplex as error:
        raise RequestError(f"{kind} is too complex: {error}", param=kind, code="too_complex") from None
    except RecursionError:
        raise RequestError(f"{kind} is nested too deeply", param=kind, code="too_complex") from None
    for special in productions.specials:
        if special not in vocabulary.control_tokens:
            raise RequestError(
                f"{kind} asks for the control token {special!r}, which this model does not have", param=kind
            )
    return replace(parsed, productions=productions)


def _json_schema(constraint: Constraint, vocabulary: Vocabulary, deadline: float | None) -> ParsedConstraint:
    from radixrt.constrained.schema import normalize
    from radixrt.constrained.schema.limits import Limits

    limits = Limits() if deadline is None else Limits(seconds=max(deadline - time.thread_time(), 0.001))
    options = constraint.options
    normal = normalize(
        read_json(constraint.source, "json_schema"),
        on_unsupported=options.on_unsupported,
        closed=bool(options.closed),
        formats=options.formats,
        bounded=options.bounded,
        key_order=options.key_order,
        max_digits=options.max_digits,
        limits=limits,
    )
    ignored = tuple(normal.remarks())
    return ParsedConstraint(normal.productions(whitespace=options.whitespace), ignored, normal.obligations)


def _regex(constraint: Constraint, vocabulary: Vocabulary, deadline: float | None) -> ParsedConstraint:
    regex = read_regex(constraint.source)
    return ParsedConstraint(
        Productions({"start": Term(regex_with_stops(regex, constraint.stop) if constraint.stop else regex)})
    )


def _ebnf(constraint: Constraint, vocabulary: Vocabulary, deadline: float | None) -> ParsedConstraint:
    from radixrt.constrained.user_grammar import read_grammar

    productions = read_grammar(constraint.source)
    return ParsedConstraint(
        grammar_with_stops(productions.prune(), constraint.stop) if constraint.stop else productions
    )


def _choices(constraint: Constraint, vocabulary: Vocabulary, deadline: float | None) -> ParsedConstraint:
    return ParsedConstraint(Productions({"start": Term(literals(read_json(constraint.source, "choices")))}))


def _structural_tag(constraint: Constraint, vocabulary: Vocabulary, deadline: float | None) -> ParsedConstraint:
    from radixrt.constrained.tags.structural_tag import read_structural_tag

    productions, ignored, obligations = read_structural_tag(
        constraint.source, constraint.options, deadline, vocabulary.control_tokens, constraint.stop
    )
    return ParsedConstraint(productions, tuple(ignored), obligations)


_READERS: dict[str, Callable[[Constraint, Vocabulary, float | None], ParsedConstraint]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "ebnf": _ebnf,
    "choices": _choices,
    "structural_tag": _structural_tag,
}
