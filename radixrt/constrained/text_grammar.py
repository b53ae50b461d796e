"""`TextGrammar`: one request's constraint, made of a library's matcher and of the recognizer that knows the way out.

The matcher says what may come next; the tokens that it allows are cut down to those that are text, and end tokens, the
model's and the request's own, are allowed exactly where the text may end. The recognizer follows the same productions
(see `closing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from radixrt.constrained.backends.matcher import GrammarError, Matcher
from radixrt.constrained.closing import ClosingTracker, Exit
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
        self._ended = False
        self._tracker: ClosingTracker | None = None

    def fill(self, row: Bitmask) -> None:
        if self._ended:
            np.copyto(row, self._vocabulary.eos_mask)
            return
        self._fill(row)
        if self._own_ends is not None and self._matcher.may_end():
            np.bitwise_or(row, self._own_ends, out=row)

    def _fill(self, row: Bitmask) -> None:
        """What all requests of the constraint may write here."""
        known = self._known()
        if known is not None:
            np.copyto(row, known.row)
            return
        started = time.perf_counter()
        self._retrying(lambda: self._matcher.fill(row))
        taken = time.perf_counter() - started
        if taken > SLOW_FILL_S:
            self._template.building_s += taken
        np.bitwise_and(row, self._template.allowed_mask, out=row)
        if self._matcher.may_end():
            np.bitwise_or(row, self._vocabulary.eos_mask, out=row)
        elif not np.count_nonzero(row):
            raise GrammarError("no token of this model can go on with the text as the constraint asks")
        if self._tracker is not None:
            self._template.masks.put(self._tracker.place, row)

    def accept(self, token: int) -> bool:
        if self._ended:
            return False
        if self._is_end(token):
            self._ended = self._matcher.may_end()
            return self._ended
        if not self._is_allowed(token) or not self._retrying(lambda: self._matcher.accept(token)):
            return False
        self._follow().accept(token)
        self._tokens.append(token)
        return True

    def _is_end(self, token: int) -> bool:
        if token in self._vocabulary.eos_ids:
            return True
        ends = self._own_ends
        return ends is not None and 0 <= token < 32 * len(ends) and bool(ends[token // 32] >> (token % 32) & 1)

    def _is_allowed(self, token: int) -> bool:
        if not 0 <= token < self._vocabulary.vocab_size:
            return False
        return bool(self._vocabulary.table[token]) or token in self._template.specials

    def is_terminated(self) -> bool:
        return self._ended or self._matcher.must_end()

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._follow().rollback(num_tokens)
            del self._tokens[-num_tokens:]

    def forced_continuation(self) -> list[int]:
        if self._ended:
            return []
        known = self._known()
        if known is None:
            return self._retrying(lambda: self._matcher.forced())
        if known.forced is None:
            known.forced = self._retrying(lambda: self._matcher.forced())
        return list(known.forced)

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

    def _known(self) -> Known | None:
        """What was worked out for the place where the text stands; nothing before its first token."""
        return None if self._tracker is None else self._template.masks.get(self._tracker.place)

    def _follow(self) -> ClosingTracker:
        if self._tracker is None:
            self._tracker = ClosingTracker(self._template.exit)
        return self._tracker

    def _retrying(self, call: Callable[[], T]) -> T:
        """The call's result, with a matcher of a freshly loaded grammar if the present one has come to its limits."""
        try:
            return call()
        except GrammarError:
            self._template.renew(self._generation)
            self._generation = self._template.generation
            self._matcher = self._template.matcher()
            if not all(map(self._matcher.accept, self._tokens)):
                raise
            return call()
