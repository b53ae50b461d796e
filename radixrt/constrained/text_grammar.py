"""`TextGrammar`: one request's constraint, made of a library's matcher and of the recognizer that knows the way out.

The matcher says what may come next; the tokens that it allows are cut down to those that are text, and end tokens, the
model's and the request's own, are allowed exactly where the text may end. The recognizer follows the same productions
(see `closing`).

What may come next depends on where the recognizer stands, and is remembered by that (see `mask_cache`). While the text
moves between places that are known, the matcher is not asked, and does not even hear of the tokens: it catches up in
`settle`, or when a place is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from radixrt.constrained.backends.matcher import GrammarError, Matcher
from radixrt.constrained.closing import ClosingTracker, Exit, Place
from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.constrained.mask_cache import Known, MaskCache
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.errors import RequestError

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
        specials: ids of the control tokens that the grammar asks for.
        make_exit: builds the way to an end, when first needed.
        masks: shared with other templates of the vocabulary.

    Attributes:
        generation: how often the grammar was renewed.
        building_s: seconds of slow masks since it was loaded.
        start: what is known about the place before the first token; others are in `masks`.
    """

    def __init__(
        self, load: Callable[[], Matcher], vocabulary: Vocabulary, *,
        shortest: Sequence[int], specials: Iterable[int], make_exit: Callable[[], Exit],
        masks: MaskCache | None = None,
    ) -> None:  # fmt: skip
        self.vocabulary = vocabulary
        self.masks = MaskCache() if masks is None else masks
        self.shortest = list(shortest)
        self.specials = frozenset(specials) - set(vocabulary.eos_ids)
        self.allowed_mask = vocabulary.text_mask | vocabulary.mask_of(self.specials)
        self.generation = 0
        self.building_s = 0.0
        self.start = Known()
        self._load = load
        self._prototype = load()
        self._make_exit = make_exit
        self._exit: Exit | None = None

    def new(self, stop_token_ids: Iterable[int] = ()) -> TextGrammar:
        """The grammar of one more request.

        Args:
            stop_token_ids: control tokens that end its output, as the model's own end tokens do.

        Raises:
            RequestError: one of them is text, or has a meaning of its own in the constraint.
        """
        own = set(stop_token_ids).intersection(range(self.vocabulary.vocab_size)).difference(self.vocabulary.eos_ids)
        for token in sorted(own):
            if self.vocabulary.table[token] or token in self.specials:
                what = "text" if self.vocabulary.table[token] else "a token of the constraint"
                raise RequestError(
                    f"stop_token_ids: {token} is {what} and would end the output before it is complete; beside a "
                    "constraint only other control tokens can end it",
                    param="stop_token_ids",
                )
        return TextGrammar(self, self.vocabulary.mask_of(own) if own else None)

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""
        return self._prototype.fork()

    def renew(self, generation: int) -> None:
        """Load the grammar afresh if a matcher of this generation cannot go on, and none of a later one was made."""
        if generation == self.generation:
            self._prototype = self._load()
            self.generation += 1
            self.building_s = 0.0

    @property
    def exit(self) -> Exit:
        """The ways to an end, common to all requests."""
        if self._exit is None:
            self._exit = self._make_exit()
        return self._exit


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
        self._behind = 0  # of the tokens, the last so many that the matcher has not been told of
        self._ended = False
        self._tracker: ClosingTracker | None = None
        self._place: Place | None = None  # where the text stands; None before its first token
        self._here = template.start  # what is known there

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
        """What all requests of the constraint may write here."""
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
        if self._place is None:
            self._here.remember(row)
        else:
            self._here = self._template.masks.put(self._place, row)
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
        place = self._follow().accept(token)
        self._tokens.append(token)
        self._behind += is_masked_in
        if place is not self._place:
            self._place = place
            self._here = self._template.masks.at(place)
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
        place = self._follow().rollback(num_tokens)
        self._place = place if self._tokens else None
        self._here = self._template.masks.at(place) if self._tokens else self._template.start

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
            self._tracker = ClosingTracker(self._template.exit)
        return self._tracker

    def _asking(self, question: Callable[[Matcher], T]) -> T:
        """What the matcher says once it has caught up with the text: one of a freshly loaded grammar, if the present
        one has come to its limits."""
        try:
            self._catch_up()
            return question(self._matcher)
        except GrammarError:
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
                raise GrammarError("the grammar's library refuses a token that its mask allowed")
            self._behind = 0
