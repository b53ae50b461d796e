"""`GrammarTemplate`: a compiled constraint, from which the grammars of requests are made.

Each subclass is defined beside the grammar of its requests: `TextTemplate` beside `TextGrammar`, `OpaqueTemplate`
beside `OpaqueGrammar`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.constrained.matcher import GrammarError, Matcher
from radixrt.constrained.runtime.closing import Completions, ParserState
from radixrt.constrained.runtime.mask_cache import CachedState, MaskCache
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.errors import RequestError

SLOW_FILL_S = 0.0005
"""A mask that takes longer built parts of the library's automaton, which stay in memory with the template."""
MAX_KEPT = 64
"""Maximum number of sets of end tokens, and of masks joined with end tokens, that are cached."""


class GrammarTemplate(ABC):
    """A compiled constraint, ready for any number of requests.

    All matchers of a loaded grammar share the automaton that the library builds lazily, and the library's limit on the
    automaton holds for all of them together. `renew` loads the grammar again, with an empty automaton.

    Args:
        load: loads the grammar and returns a matcher at the beginning of a text.
        shortest: tokens of a shortest text.
        specials: ids of the control tokens in the grammar.
        make_completions: builds the shortest completions, when first needed.
        masks: shared with other templates of the vocabulary.

    Attributes:
        generation: number of times that the grammar was loaded again.
        building_s: seconds spent on slow masks since the grammar was loaded.
        own_ends: masks of the end tokens that requests bring.
        looks_ahead: `LookAhead` may compute states of this grammar, because none has taken too long so far.
        start: entry of the parser state before the first token, with its mask; the other states are in `masks`.

    Raises:
        GrammarError: no token can begin a text, or the library gave up on this grammar.
    """

    def __init__(
        self,
        load: Callable[[], Matcher],
        vocabulary: Vocabulary,
        *,
        shortest: Sequence[int],
        specials: Iterable[int],
        make_completions: Callable[[], Completions],
        masks: MaskCache | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.masks = MaskCache() if masks is None else masks
        self.shortest = list(shortest)
        self.specials = frozenset(specials) - set(vocabulary.eos_ids)
        self._allowed_mask = vocabulary.text_mask
        if self.specials:
            self._allowed_mask = vocabulary.text_mask | vocabulary.mask_of(self.specials)
        self.generation = 0
        self.building_s = 0.0
        self.start = CachedState(None)
        self.own_ends = OwnEnds(vocabulary, self.specials)
        self.looks_ahead = True
        self._load = load
        self._prototype = load()
        row, self.start.may_end = self.mask_of(self._prototype)
        self.start.remember(row)
        self._make_completions = make_completions
        self._completions: Completions | None = None

    @abstractmethod
    def new(self, stop_token_ids: Iterable[int] = ()) -> Grammar:
        """Return the grammar of one more request.

        Args:
            stop_token_ids: control tokens that end its output, as the model's own end tokens do.

        Raises:
            RequestError: one of them is text, or has a meaning of its own in the constraint.
        """

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""
        return self._prototype.fork()

    def mask_of(self, matcher: Matcher) -> tuple[Bitmask, bool]:
        """The mask of a matcher's parser state, and whether the text may end there.

        Raises:
            GrammarError: the library gave up on this grammar, or no token can continue the text.
        """
        row = np.full_like(self.vocabulary.eos_mask, 0xFFFFFFFF)
        started = time.perf_counter()
        matcher.fill(row)
        taken = time.perf_counter() - started
        if taken > SLOW_FILL_S:
            self.building_s += taken
        np.bitwise_and(row, self._allowed_mask, out=row)
        may_end = matcher.may_end()
        if may_end:
            np.bitwise_or(row, self.vocabulary.eos_mask, out=row)
        elif not np.count_nonzero(row):
            raise GrammarError("no token of this model can go on with the text as the constraint asks")
        return row, may_end

    def renew(self, generation: int) -> None:
        """Load the grammar afresh if a matcher of this generation cannot continue, and none of a later one was made."""
        if generation == self.generation:
            self._prototype = self._load()
            self.generation += 1
            self.building_s = 0.0

    @property
    def completions(self) -> Completions:
        """Shortest completions, common to all requests."""
        if self._completions is None:
            self._completions = self._make_completions()
        return self._completions

    def parser_state(self, entry: CachedState) -> ParserState:
        """The parser state of an entry, also of `start`."""
        return self.completions.start if entry.state is None else entry.state


class OwnEnds:
    """Masks of end tokens that requests bring (`stop_token_ids`).

    Equal arguments give the same read-only arrays, because a mask is identified by its array and then sent once.

    Args:
        specials: ids of the control tokens in the grammar.
    """

    def __init__(self, vocabulary: Vocabulary, specials: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._specials = specials
        self._sets: dict[tuple[int, ...], Bitmask] = {}
        self._joined: dict[tuple[int, int], tuple[Bitmask, Bitmask, Bitmask]] = {}

    def of(self, stop_token_ids: Iterable[int]) -> Bitmask | None:
        """The mask of a request's own end tokens; None without any.

        Raises:
            RequestError: one of them is text, or has a meaning of its own in the constraint.
        """
        vocabulary = self._vocabulary
        own = {token for token in stop_token_ids if 0 <= token < vocabulary.vocab_size} - set(vocabulary.eos_ids)
        key = tuple(sorted(own))
        for token in key:
            if vocabulary.table[token] or token in self._specials:
                what = "text" if vocabulary.table[token] else "a token of the constraint"
                raise RequestError(
                    f"stop_token_ids: {token} is {what} and would end the output before it is complete; beside a "
                    "constraint only other control tokens can end it",
                    param="stop_token_ids",
                )
        if not key:
            return None
        if key not in self._sets:
            if len(self._sets) >= MAX_KEPT:
                self._sets.clear()
            self._sets[key] = vocabulary.mask_of(key)
        return self._sets[key]

    def join(self, row: Bitmask, ends: Bitmask) -> Bitmask:
        """A mask with end tokens, which `of` returned."""
        key = id(row), id(ends)
        found = self._joined.get(key)
        if found is None:
            if len(self._joined) >= MAX_KEPT:
                self._joined.clear()
            joined = row | ends
            joined.flags.writeable = False
            # Keep the arrays alive, because the key consists of their ids.
            found = self._joined[key] = row, ends, joined
        return found[2]
