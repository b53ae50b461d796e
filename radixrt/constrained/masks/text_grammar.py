"""`TextGrammar`: one request's constraint, made of a library's matcher and of the recognizer.

The matcher fills masks. A mask is reduced to text tokens, and end tokens, the model's and the request's own, are
allowed exactly where the text may end. The recognizer follows the same productions and finds shortest completions
(`closing`).

A mask depends on the parser state alone and is cached by it (`mask_cache`). While the text moves between cached states
the matcher is not called, and tokens are not passed to it: it catches up in `settle`, or at a state that is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from radixrt.constrained.backends.matcher import GrammarError, Matcher
from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.constrained.masks.closing import ClosingTracker, Completions, ParserState
from radixrt.constrained.masks.mask_cache import CachedState, MaskCache
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.errors import InvariantError, RequestError

T = TypeVar("T")


SLOW_FILL_S = 0.0005
"""A mask that takes longer built parts of the library's automaton, which stay in memory with the template."""


class GrammarTemplate:
    """A compiled constraint, ready for any number of requests.

    What a library builds lazily is shared by all matchers that come from one loaded grammar, up to a limit that then
    holds for all of them; `renew` loads the grammar afresh.

    Args:
        load: gives a matcher at the beginning of a text, of a grammar loaded anew.
        shortest: tokens of a shortest text.
        specials: ids of the control tokens in the grammar.
        make_completions: builds the shortest completions, when first needed.
        masks: shared with other templates of the vocabulary.

    Attributes:
        generation: how often the grammar was renewed.
        building_s: seconds of slow masks since it was loaded.
        start: entry of the parser state before the first token; the other states are in `masks`.
    """

    def __init__(
        self, load: Callable[[], Matcher], vocabulary: Vocabulary, *,
        shortest: Sequence[int], specials: Iterable[int], make_completions: Callable[[], Completions],
        masks: MaskCache | None = None,
    ) -> None:  # fmt: skip
        self.vocabulary = vocabulary
        self.masks = MaskCache() if masks is None else masks
        self.shortest = list(shortest)
        self.specials = frozenset(specials) - set(vocabulary.eos_ids)
        self.allowed_mask = vocabulary.text_mask | vocabulary.mask_of(self.specials)
        self.generation = 0
        self.building_s = 0.0
        self.start = CachedState()
        self._load = load
        self._prototype = load()
        self._make_completions = make_completions
        self._completions: Completions | None = None

    def new(self, stop_token_ids: Iterable[int] = ()) -> TextGrammar:
        """The grammar of one more request.

        Args:
            stop_token_ids: control tokens that end its output, as the model's own end tokens do.

        Raises:
            RequestError: one of them is text, or has a meaning of its own in the constraint.
        """
        vocabulary = self.vocabulary
        own = {token for token in stop_token_ids if 0 <= token < vocabulary.vocab_size} - set(vocabulary.eos_ids)
        for token in sorted(own):
            if vocabulary.table[token] or token in self.specials:
                what = "text" if vocabulary.table[token] else "a token of the constraint"
                raise RequestError(
                    f"stop_token_ids: {token} is {what} and would end the output before it is complete; beside a "
                    "constraint only other control tokens can end it",
                    param="stop_token_ids",
                )
        return TextGrammar(self, vocabulary.mask_of(own) if own else None)

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""
        return self._prototype.fork()

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


class TextGrammar(Grammar):
    """See the module's docstring. Made by `GrammarTemplate.new`.

    Args:
        own_ends: mask of tokens that end this request's text, where it may end, beside the model's end tokens.
    """

    def __init__(self, template: GrammarTemplate, own_ends: Bitmask | None = None) -> None:
        self._own_ends = own_ends
        self._template = template
        self._vocabulary = template.vocabulary
        self._matcher = template.matcher()
        self._generation = template.generation
        self._tokens: list[int] = []
        self._behind = 0  # how many of the last tokens the matcher has not consumed
        self._ended = False
        self._tracker: ClosingTracker | None = None
        self._state: ParserState | None = None  # None before the first token
        self._here = template.start  # its entry

    def mask(self) -> Bitmask:
        if self._ended:
            return self._vocabulary.eos_mask
        row = self._here.row
        if row is None:
            row = self._compute_mask()
        if self._own_ends is not None and self._may_end():
            return row | self._own_ends
        return row

    def _compute_mask(self) -> Bitmask:
        """The mask of this parser state, common to all requests of the constraint."""
        row = np.full_like(self._vocabulary.eos_mask, 0xFFFFFFFF)
        started = time.perf_counter()
        self._asking(lambda matcher: matcher.fill(row))
        taken = time.perf_counter() - started
        if taken > SLOW_FILL_S:
            self._template.building_s += taken
        np.bitwise_and(row, self._template.allowed_mask, out=row)
        if self._may_end():
            np.bitwise_or(row, self._vocabulary.eos_mask, out=row)
        elif not np.count_nonzero(row):
            raise GrammarError("no token of this model can go on with the text as the constraint asks")
        if self._state is None:
            self._here.remember(row)
        else:
            self._here = self._template.masks.put(self._state, row)
        return row

    def accept(self, token: int) -> bool:
        if self._ended:
            return False
        if self._is_end(token):
            self._ended = self._may_end()
            return self._ended
        if not 0 <= token < self._vocabulary.vocab_size:
            return False
        row = self._here.row
        is_masked_in = row is not None and bool(row[token >> 5] >> (token & 31) & 1)
        if not is_masked_in:  # the library may still take it: where text is forced it masks all but one way to write it
            if not (self._vocabulary.table[token] or token in self._template.specials):
                return False
            if not self._asking(lambda matcher: matcher.accept(token)):
                return False
        state = self._follow().accept(token)
        self._tokens.append(token)
        self._behind += is_masked_in
        if state is not self._state:
            self._state = state
            self._here = self._template.masks.at(state)
        return True

    def settle(self) -> None:
        if self._behind:
            self._asking(lambda matcher: None)

    def _is_end(self, token: int) -> bool:
        if token in self._vocabulary.eos_ids:
            return True
        ends = self._own_ends
        return ends is not None and 0 <= token < 32 * len(ends) and bool(ends[token // 32] >> (token % 32) & 1)

    def is_terminated(self) -> bool:
        if self._ended:
            return True
        here = self._here
        if here.must_end is None:
            here.must_end = self._asking(lambda matcher: matcher.must_end())
        return here.must_end

    def _may_end(self) -> bool:
        here = self._here
        if here.may_end is None:
            here.may_end = self._asking(lambda matcher: matcher.may_end())
        return here.may_end

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if not num_tokens:
            return
        unseen = min(num_tokens, self._behind)
        self._behind -= unseen
        if num_tokens > unseen:
            self._matcher.rollback(num_tokens - unseen)
        del self._tokens[-num_tokens:]
        state = self._follow().rollback(num_tokens)
        self._state = state if self._tokens else None
        self._here = self._template.masks.at(state) if self._tokens else self._template.start

    def forced_continuation(self) -> list[int]:
        if self._ended:
            return []
        here = self._here
        if here.forced is None:
            here.forced = self._asking(lambda matcher: matcher.forced())
        return list(here.forced)

    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        table = self._vocabulary.table
        if not (forced and table[last] and all(table[token] for token in forced)):
            return None
        tokens = self._vocabulary.encode_bytes(self._vocabulary.decode([last, *forced]))
        return None if tokens[0] == last or len(tokens) > 1 + len(forced) else tokens

    def fits(self, token: int, remaining: int) -> bool:
        if self._ended or self._is_end(token):
            return True
        return self._follow().fits(token, remaining)

    def closing(self) -> list[int]:
        if self._ended:
            return []
        return self._follow().closing() if self._tokens else list(self._template.shortest)

    def _follow(self) -> ClosingTracker:
        if self._tracker is None:
            self._tracker = ClosingTracker(self._template.completions)
        return self._tracker

    def _asking(self, question: Callable[[Matcher], T]) -> T:
        """The matcher's answer once it has consumed the whole text.

        A matcher that has reached its limits is replaced by one of the grammar loaded anew.
        """
        try:
            self._catch_up()
            return question(self._matcher)
        except (GrammarError, InvariantError):
            self._template.renew(self._generation)
            self._generation = self._template.generation
            self._matcher = self._template.matcher()
            if not all(map(self._matcher.accept, self._tokens)):
                raise
            self._behind = 0
            return question(self._matcher)

    def _catch_up(self) -> None:
        if self._behind:
            if not all(map(self._matcher.accept, self._tokens[-self._behind :])):
                raise InvariantError("the grammar's library refuses a token that its mask allowed")
            self._behind = 0
