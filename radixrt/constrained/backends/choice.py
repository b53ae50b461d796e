"""`Backends`: the mask libraries of one vocabulary, and the choice between them for one grammar.

Both execute the same productions exactly, so cost decides. llguidance comes first: it compiles in a millisecond, its
masks have a bounded cost, and it needs no torch. xgrammar, whose tables are computed ahead, is tried where llguidance
refuses a grammar or its masks are slow, and where the caller asks for it. Before a grammar is used its masks are probed
along a shortest text and along random ones.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from radixrt.constrained.backends.matcher import MAX_MASK_S, GrammarBackend, GrammarError, Matcher
from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.constrained.productions import NotExpressible, Productions
from radixrt.constrained.vocabulary import Vocabulary

BackendName = Literal["llguidance", "xgrammar"]

SLOW_MASK_S = 0.0005
"""With masks this slow on average another library is tried."""
SLOW_LOAD_S = 0.05
"""A grammar that took this long to load is serialized, if the library can."""
MAX_PROBED_TOKENS = 512
MAX_PROBED_MASKS = 12
RANDOM_WALKS = 2
RANDOM_STEPS = 8


@dataclass(frozen=True)
class Choice:
    """A grammar as one library takes it.

    Attributes:
        source: the grammar in the library's notation.
        load_s: seconds that loading it took.
        mask_s: seconds of a probed mask, on average.
        serialized: see `XgrammarBackend`; None for llguidance and for what loads fast.
    """

    backend: BackendName
    source: str
    load_s: float
    mask_s: float
    serialized: str | None = None


class Backends:
    """Each library is made when first needed.

    Args:
        can_be_killed: this process may hang: xgrammar, which compiles without a way to stop it, is tried for callers
            who did not ask for it.
        before_import, after_import: called around the import of a large library.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, can_be_killed: bool = False,
        before_import: Callable[[], None] | None = None, after_import: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.vocabulary = vocabulary
        self._can_be_killed = can_be_killed
        self._before_import = before_import
        self._after_import = after_import
        self._made: dict[BackendName, GrammarBackend] = {}

    def get(self, name: BackendName) -> GrammarBackend:
        """The library."""
        backend = self._made.get(name)
        if backend is None:
            backend = self._made[name] = self._make(name)
        return backend

    def _make(self, name: BackendName) -> GrammarBackend:
        if name == "llguidance":
            from radixrt.constrained.backends.llguidance_backend import LlguidanceBackend

            return LlguidanceBackend(self.vocabulary)
        if self._before_import is not None:
            self._before_import()
        from radixrt.constrained.backends.xgrammar_backend import XgrammarBackend

        backend = XgrammarBackend(self.vocabulary)
        if self._after_import is not None:
            self._after_import()
        return backend

    def choose(
        self, productions: Productions, wanted: Literal["auto", "llguidance", "xgrammar"], shortest: list[int]
    ) -> Choice:
        """The library for a grammar.

        Args:
            wanted: the caller's choice.
            shortest: tokens of a shortest text, to probe masks along.

        Raises:
            GrammarError: none can do it exactly and fast enough; says why.
        """
        names: list[BackendName] = ["llguidance" if wanted == "auto" else wanted]
        if wanted == "auto" and self._can_be_killed:
            names.append("xgrammar")
        best: Choice | None = None
        refused: GrammarError | None = None
        for name in names:
            try:
                choice = self._try(name, productions, shortest)
            except GrammarError as error:
                refused = refused or error
                continue
            if best is None or choice.mask_s < best.mask_s:
                best = choice
            if best.mask_s < SLOW_MASK_S:
                break
        if best is None:
            raise refused or GrammarError("no library is left to try")
        return best

    def _try(self, name: BackendName, productions: Productions, shortest: list[int]) -> Choice:
        backend = self.get(name)
        try:
            source = backend.write(productions)
        except NotExpressible as error:
            raise GrammarError(f"{name} cannot express it: {error}") from None
        started = time.perf_counter()
        matcher = backend.load(source)
        load_s = time.perf_counter() - started
        mask_s = probe(matcher, self.vocabulary, shortest)
        serialized = backend.serialize(matcher) if load_s > SLOW_LOAD_S else None
        return Choice(name, source, load_s, mask_s, serialized)


def probe(prototype: Matcher, vocabulary: Vocabulary, shortest: Sequence[int]) -> float:
    """Seconds of processor time of a mask, on average, along the shortest text and along random ones.

    Raises:
        GrammarError: a mask is too slow, or the library does not take the shortest text or what it allows itself.
    """
    times: list[float] = []
    walked = shortest[:MAX_PROBED_TOKENS]
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
    if len(walked) == len(shortest) and not matcher.may_end():
        raise GrammarError("it does not take the end of a text that is valid")
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
