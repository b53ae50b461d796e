"""`Backends`: the mask libraries of a vocabulary, and the choice of the library for a constraint.

llguidance (`LIBRARY`) computes the masks of every kind of constraint. llguidance compiles in about a millisecond, has
masks of bounded cost, supports control tokens, and needs no torch. xgrammar is used only on request
(`structured.backend`): xgrammar has no symbol for a control token, and its compilation cannot be interrupted.

Measured with 49,152 tokens, processor time of compiling, median and 99th percentile; refused beyond what both refuse:

                                        llguidance           xgrammar
    MaskBench sample, 590 schemas       2.7 and 240 ms       235 and 12,109 ms, 41 refused
    400 random EBNF grammars            2 and 55 ms          1 and 446 ms, 6 refused
    EBNF and structural tags of tests   0.5 and 18 ms        1.2 and 362 ms

No grammar of these, of the JSON-Schema-Test-Suite or of the tests is enforced by xgrammar and refused by llguidance.

Compiling a grammar includes a probe, which fills masks along a shortest text and along random texts, so that a dead or
slow grammar is refused at once. A *plain* grammar (`is_plain`), whose masks cannot be slow, is neither loaded nor
probed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from radixrt.constrained.backends.lark import MAX_OPTIONS
from radixrt.constrained.backends.widening import widened
from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.constrained.matcher import LIBRARY, MAX_MASK_S, BackendName, GrammarBackend, GrammarError, Matcher
from radixrt.constrained.productions import Alt, AnyOrder, NotExpressible, Productions, Rep
from radixrt.constrained.productions.layout import ANY
from radixrt.constrained.productions.tally import Tally
from radixrt.constrained.regex import Regex, RegexTooComplex
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.regex.nodes import Complement, Intersect, Remainder, Repeat, Words, subterms
from radixrt.constrained.runtime.mask_cache import MaskCache
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import BackendChoice

SLOW_LOAD_S = 0.05
"""A grammar that took this long to load is serialized, if the library can."""
MAX_PLAIN_CHARS = 200_000
MAX_PLAIN_COUNT = 1000
MAX_PLAIN_REPEATED = 50_000
MAX_PLAIN_WORDS = 1000
MAX_PLAIN_STATES = 64
MAX_PROBED_TOKENS = 512
MAX_PROBED_MASKS = 12
RANDOM_WALKS = 2
RANDOM_STEPS = 8


@dataclass(frozen=True)
class Choice:
    """A grammar as one library takes it.

    Attributes:
        source: the grammar in the library's notation.
        why: reason for the library, for people.
        load_s: seconds that the library took to load the grammar; None for a plain grammar, which was not loaded.
        mask_s: seconds of a probed mask, on average; None for a plain grammar.
        serialized: see `XgrammarBackend`; None for llguidance and for grammars that load fast.
        is_wide: the library's grammar has more texts than the productions; see `widening`.
    """

    backend: BackendName
    source: str
    why: str
    load_s: float | None = None
    mask_s: float | None = None
    serialized: str | None = None
    is_wide: bool = False


class Backends:
    """The libraries of a vocabulary, each loaded on first use.

    Attributes:
        masks: masks and forced tokens of all grammars of this vocabulary, by parser state.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.masks = MaskCache()
        self._made: dict[BackendName, GrammarBackend] = {}

    def get(self, name: BackendName) -> GrammarBackend:
        """Return the library of this name."""
        backend = self._made.get(name)
        if backend is None:
            backend = self._made[name] = self._make(name)
        return backend

    def _make(self, name: BackendName) -> GrammarBackend:
        if name == "llguidance":
            from radixrt.constrained.backends.llguidance_backend import LlguidanceBackend

            return LlguidanceBackend(self.vocabulary)
        from radixrt.constrained.backends.xgrammar_backend import XgrammarBackend

        return XgrammarBackend(self.vocabulary)

    def choose(
        self, productions: Productions, wanted: BackendChoice, shortest: list[int], *, thorough: bool = False
    ) -> Choice:
        """Write a grammar for the wanted library, or for `LIBRARY` with "auto", and probe it unless it is plain.

        Args:
            shortest: tokens of a shortest text, to probe masks along.
            thorough: load and probe plain grammars too.

        Raises:
            GrammarError: the library cannot enforce the grammar exactly and fast enough; gives the reason.
        """
        if wanted == "auto":
            name, why = LIBRARY, "the library for all constraints: exact, quick to compile, with fast masks"
        else:
            name, why = wanted, "the caller's choice"
        backend = self.get(name)
        try:
            wide = widened(productions)
            source = backend.write(wide)
        except NotExpressible as error:
            raise GrammarError(f"{name} cannot express it: {error}") from None
        is_wide = wide is not productions
        if name == "llguidance" and not thorough and len(source) <= MAX_PLAIN_CHARS and is_plain(wide):
            return Choice(name, source, why, is_wide=is_wide)
        started = time.perf_counter()
        matcher = backend.load(source)
        load_s = time.perf_counter() - started
        mask_s = probe(matcher, self.vocabulary, shortest)
        serialized = backend.serialize(matcher) if load_s > SLOW_LOAD_S else None
        return Choice(name, source, why, load_s, mask_s, serialized, is_wide)


def is_plain(productions: Productions) -> bool:
    """Return True if no mask of a grammar can be slow in llguidance, whatever the size of the grammar.

    In a plain grammar, counted repetitions repeat small items or single characters. Terminals are not intersections,
    unless their automaton is small, and only listed words may be excluded from a terminal. The number of items in a row
    of llguidance's parser is bounded: every option of a choice, and every other rule, may be an item of the same row.
    """
    layout = productions.layout
    items = sum(layout.kinds[row] != ANY for row in layout.distinct(productions.start).values())
    for expr in layout.order:
        if type(expr) is Alt:
            items += len(expr.options)
        elif type(expr) is AnyOrder:
            tally = Tally.of(expr)
            items += 2 * (2 * len(expr.parts) + sum(tally.caps) + tally.extra_cap)
        elif type(expr) is Rep and (expr.low > MAX_PLAIN_COUNT or (expr.high or 0) > MAX_PLAIN_COUNT):
            return False
        if items > MAX_OPTIONS:
            return False
    return all(map(_is_plain_regex, layout.terms))


@lru_cache(maxsize=4096)
def _is_plain_regex(regex: Regex) -> bool:
    for part in subterms(regex):
        if isinstance(part, Repeat):
            most = max(part.low, part.high or 0)
            if most > 1 and (part.item.max_length is None or part.item.max_length * most > MAX_PLAIN_REPEATED):
                return False
        elif isinstance(part, Words):
            if len(part.words) > MAX_PLAIN_WORDS:
                return False
        elif isinstance(part, Intersect):
            several = sum(not isinstance(item, Complement) for item in part.items) != 1
            if several and not _is_small(part):
                return False
        elif isinstance(part, Remainder) or (isinstance(part, Complement) and part.item.max_length is None):
            return False
    return True


def _is_small(regex: Regex) -> bool:
    try:
        return Dfa.of(regex, MAX_PLAIN_STATES) is not None
    except RegexTooComplex:
        return False


def probe(prototype: Matcher, vocabulary: Vocabulary, shortest: Sequence[int] | None) -> float:
    """Measure masks along a shortest text and along random texts.

    Args:
        shortest: tokens of a shortest text; None if unknown.

    Returns:
        Mean processor time of a mask, in seconds.

    Raises:
        GrammarError: a mask is too slow; or the library refuses the shortest text, or a token that its mask allows.
    """
    # Along the shortest text, fill a mask every `stride` tokens, and keep the parser state there.
    times: list[float] = []
    walked = (shortest or ())[:MAX_PROBED_TOKENS]
    stride = 1 + len(walked) // MAX_PROBED_MASKS
    row = np.empty(bitmask_words(vocabulary.vocab_size), np.uint32)
    matcher = prototype.fork()
    _timed_fill(matcher, row, times)
    forks = [matcher.fork()]
    for i, token in enumerate(walked):
        if i and i % stride == 0:
            _timed_fill(matcher, row, times)
            forks.append(matcher.fork())
        if not matcher.accept(token):
            raise GrammarError("it does not take a text that is valid")
    if shortest is not None and len(walked) == len(shortest) and not matcher.may_end():
        raise GrammarError("it does not take the end of a text that is valid")
    # Random walks leave the shortest text at those parser states. The seed is fixed, so that a grammar is always
    # accepted or always refused.
    generator = random.Random(0)
    for _ in range(RANDOM_WALKS):
        walker = generator.choice(forks)
        for _ in range(RANDOM_STEPS):
            _timed_fill(walker, row, times)
            chosen = _any_token(row & vocabulary.text_mask, generator)
            if chosen is None:
                break  # only control tokens, or the end
            if not walker.accept(chosen):
                raise GrammarError("it does not take a token that its mask allows")
    return sum(times) / len(times)


def _any_token(row: Bitmask, generator: random.Random) -> int | None:
    words = np.flatnonzero(row)
    if not len(words):
        return None
    index = int(words[generator.randrange(len(words))])
    word = int(row[index])
    return index * 32 + generator.choice([bit for bit in range(32) if word >> bit & 1])


def _timed_fill(matcher: Matcher, row: Bitmask, times: list[float]) -> None:
    started = time.thread_time()
    matcher.fill(row)
    taken = time.thread_time() - started
    if taken > MAX_MASK_S:
        raise GrammarError(f"one mask takes {taken * 1000:.0f} ms; at most {MAX_MASK_S * 1000:.0f} are allowed")
    times.append(taken)
