"""From a `Constraint` to `CompiledConstraint`: what a scheduler needs to make grammars of it, and nothing else.

Pure functions of the constraint and the vocabulary, run by worker processes and, where there are none, in the caller's.
The constraint becomes `Productions`; a mask library is chosen; its first masks are computed, so that a grammar that
is dead, too slow or too large is refused here and not in the middle of an answer.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np

from radixrt.constrained.backends.choice import BackendName, Backends
from radixrt.constrained.backends.matcher import GrammarError, Matcher
from radixrt.constrained.closing import Exit
from radixrt.constrained.compile.kinds import meaning_of
from radixrt.constrained.grammar import bitmask_words
from radixrt.constrained.productions import Productions, Special
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.schema.errors import SchemaRefused, Unsupported
from radixrt.constrained.text_grammar import GrammarTemplate
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from radixrt.errors import RadixRTError, RequestError
from radixrt.messages.parts import FinishError

MAX_SHORTEST_CHARS = 1_000_000


class CompiledConstraint(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint after compilation; crosses processes and lies on disk as MessagePack.

    Attributes:
        backend: which library computes the masks.
        why: why that library.
        source: the grammar in its notation.
        serialized: the grammar as the library compiled it, where that is quicker to load than the source.
        productions: `Productions.encode`, for the way to an end.
        shortest: tokens of a shortest output.
        specials: ids of the control tokens in it.
        ignored: what is not enforced because the caller said so, "pointer: keyword" each.
        compile_s: seconds of all this.
        load_s: seconds of them that the library took for the source; None if it is plain and was not loaded.
        mask_s: seconds of a mask, on average; None likewise.
    """

    backend: BackendName
    why: str
    source: str
    serialized: str | None
    productions: bytes
    shortest: list[int]
    specials: list[int]
    ignored: list[str]
    compile_s: float
    load_s: float | None
    mask_s: float | None

    @property
    def min_tokens(self) -> int:
        """Tokens of a shortest output."""
        return len(self.shortest)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.source) + len(self.serialized or "") + len(self.productions) + 8 * len(self.shortest)


def compile_constraint(
    constraint: Constraint, backends: Backends, deadline: float | None = None, *, thorough: bool = False
) -> CompiledConstraint:
    """Compile.

    Args:
        deadline: on `time.monotonic`, by which to give up.
        thorough: load and probe what is plain too; for looking at it.

    Raises:
        RequestError: the constraint is malformed, unsatisfiable, not enforceable or too expensive; names the place.
    """
    started = time.perf_counter()
    vocabulary = backends.vocabulary
    kind = constraint.kind
    meaning = meaning_of(constraint, vocabulary, deadline)
    productions = meaning.productions
    if productions.shortest[productions.start] > MAX_SHORTEST_CHARS:
        raise RequestError(
            f"{kind}: the shortest output has {productions.shortest[productions.start]} characters, more than any "
            "context holds",
            param=kind,
            code="too_complex",
        )
    exit = make_exit(productions, vocabulary)
    shortest = exit.closing(exit.start)
    try:
        choice = backends.choose(productions, constraint.options.backend, shortest, thorough=thorough)
    except GrammarError as error:
        raise RequestError(f"{kind} cannot be enforced: {error}", param=kind, code="grammar_too_complex") from None
    specials = {expr.text for expr in productions.layout.order if isinstance(expr, Special)}
    return CompiledConstraint(
        backend=choice.backend,
        why=choice.why,
        source=choice.source,
        serialized=choice.serialized,
        productions=productions.encode(),
        shortest=shortest,
        specials=sorted(vocabulary.control_tokens[text] for text in specials),
        ignored=list(meaning.ignored),
        compile_s=time.perf_counter() - started,
        load_s=choice.load_s,
        mask_s=choice.mask_s,
    )


def load(compiled: CompiledConstraint, backends: Backends) -> GrammarTemplate:
    """A template for the requests of this process.

    Raises:
        GrammarError: the library refuses what it took when the constraint was compiled.
    """
    vocabulary = backends.vocabulary
    backend = backends.get(compiled.backend)

    def prototype() -> Matcher:
        matcher = backend.load(compiled.source, compiled.serialized)
        matcher.fill(np.empty(bitmask_words(vocabulary.vocab_size), np.uint32))  # forks find it computed
        return matcher

    return GrammarTemplate(
        prototype,
        vocabulary,
        shortest=compiled.shortest,
        specials=compiled.specials,
        make_exit=lambda: make_exit(Productions.decode(compiled.productions), vocabulary),
        masks=backends.masks,
    )


def make_exit(productions: Productions, vocabulary: Vocabulary) -> Exit:
    """The ways to an end of a grammar."""
    return Exit(Recognizer(productions, vocabulary.control_tokens), vocabulary)


def refusal(error: RadixRTError, constraint: Constraint) -> tuple[FinishError, str]:
    """The error that a request ends with, and the keyword at fault for the metrics."""
    if not isinstance(error, RequestError):
        error = RequestError(f"{constraint.kind}: {error}", param=constraint.kind, code="grammar_too_complex")
    keyword: str = constraint.kind
    if isinstance(error, SchemaRefused) and error.errors:
        keyword = error.errors[0].keyword
    elif isinstance(error, Unsupported):
        keyword = error.keyword
    finish = FinishError(error.message, param=error.param or constraint.kind, code=error.code, status=error.status)
    return finish, keyword
