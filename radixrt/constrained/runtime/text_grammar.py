"""`TextGrammar`: the constraint of a request, made of a library's matcher and of the recognizer.

The matcher fills masks. Text tokens are masked as the matcher says, and end tokens (the model's and the request's own)
are allowed exactly where the text may end. The recognizer follows the same productions and finds shortest completions
(`closing`).

Masks and transitions depend on the parser state alone and are cached by state (`mask_cache`). While a text moves
between cached states, a token costs a lookup, and neither the matcher nor the recognizer is called. The matcher falls
behind the text, and catches up in `settle`, or when the text reaches a new state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.constrained.matcher import GrammarError, Matcher
from radixrt.constrained.runtime.closing import ParserState
from radixrt.constrained.runtime.grammar_template import GrammarTemplate
from radixrt.constrained.runtime.mask_cache import UNKNOWN, CachedState
from radixrt.constrained.runtime.narrowing import Narrowing
from radixrt.errors import InvariantError

T = TypeVar("T")

SETTLE_AFTER = 8
"""The matcher catches up, off the critical path, when it is SETTLE_AFTER to 2 * SETTLE_AFTER tokens behind. The number
differs between requests, so that the matchers of a batch do not all catch up after the same step."""

MIN_EDGES = 4
"""After this many transitions from a state, and again after each doubling, the grammar checks whether the next state
depends only on the number of a token's characters (`Runs`)."""

MAX_HEALED = 64
"""Maximum number of results of `healed` that a state stores."""


class TextTemplate(GrammarTemplate):
    """Template of grammars that have productions and therefore a recognizer.

    Args:
        is_wide: the library's grammar has more texts than the productions, so that its masks are narrowed.
    """

    def __init__(self, *args: Any, is_wide: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self._num_made = 0
        self._narrowing: Narrowing | None = None
        if is_wide:
            self._narrowing = Narrowing(self.vocabulary, self.completions)
            row, self.start.may_end = self.mask_at(self.start, self._prototype)
            self.start.remember(row)

    def mask_at(self, here: CachedState, matcher: Matcher) -> tuple[Bitmask, bool]:
        """Return the mask of a parser state, and whether the text may end there.

        Args:
            matcher: in the same state.

        Raises:
            GrammarError: see `mask_of`.
        """
        row, may_end = self.mask_of(matcher)
        return (row, may_end) if self._narrowing is None else self._narrowing.narrowed(row, self.parser_state(here))

    def new(self, stop_token_ids: Iterable[int] = ()) -> TextGrammar:
        own_ends = self.own_ends.of(stop_token_ids)
        self._num_made += 1
        return TextGrammar(self, own_ends, SETTLE_AFTER + self._num_made % SETTLE_AFTER)


class TextGrammar(Grammar):
    """See the module's docstring. Made by `TextTemplate.new`.

    Args:
        own_ends: mask of the request's own end tokens (`stop_token_ids`); None without any.
        settle_at: number of tokens that the matcher must be behind for `settle` to make it catch up.
        matcher: matcher at the beginning of the text; default: a new one.
    """

    def __init__(
        self, template: TextTemplate, own_ends: Bitmask | None, settle_at: int, matcher: Matcher | None = None
    ) -> None:
        self._own_ends = own_ends
        self._settle_at = settle_at
        self.template = template
        self._vocabulary = template.vocabulary
        self._matcher = template.matcher() if matcher is None else matcher
        self._generation = template.generation
        self._tokens: list[int] = []
        self._path = [template.start]  # len(tokens) + 1 states: before the first token, and after each
        self._behind = 0  # number of last tokens that the matcher has not consumed
        self._ended = False
        self._to_settle: list[tuple[CachedState, int, CachedState]] = []  # new transitions (state, token, next state)
        self._ahead: tuple[int, CachedState] | None = None  # token and next state of the last `fits`

    def mask(self) -> Bitmask:
        if self._ended:
            return self._vocabulary.eos_mask
        row = self._path[-1].row
        if row is None:
            row = self._find_mask()
        if self._own_ends is not None and self._may_end():
            return self.template.own_ends.join(row, self._own_ends)
        return row

    def _find_mask(self) -> Bitmask:
        """Return the mask of the parser state, which all requests of the constraint share."""
        template, state = self.template, self._path[-1].state
        if state is None:
            here = self._path[-1]
            row, here.may_end = self._asking(partial(template.mask_at, here))
            here.remember(row)
            return row
        known = self._path[-1] = template.masks.at(state)  # the entry on the path may have been evicted
        if known.row is None:
            # Inside of a long counted repetition, many states have the same mask: compute it once, for the state with
            # the smallest equivalent count.
            small = template.completions.with_small_counts(state)
            common = known if small is state else template.masks.at(small)
            if common.row is None:
                row, common.may_end = self._asking(partial(template.mask_at, known))
                common = template.masks.put(small, row)
            if common is not known:
                template.masks.share(known, common)
        assert known.row is not None
        return known.row

    def accept(self, token: int) -> bool:
        if self._ended:
            return False
        here = self._path[-1]
        after = here.follow(token)
        if after is None:
            if self._is_end(token):
                self._ended = self._may_end()
                return self._ended
            return self._accept_new(here, token)
        self._push(token, after)
        self._behind += 1
        return True

    def accept_freely(self, token: int, remaining: int) -> bool:
        if self._ended:
            return False
        after = self._path[-1].follow(token) or self._find_after(token)
        if after is None or remaining < after.safe or after.must_end is not False or after.forced != []:
            return False
        self._push(token, after)
        self._behind += 1
        return True

    def _accept_new(self, here: CachedState, token: int) -> bool:
        """Accept a token without a cached transition, and cache the transition."""
        if not 0 <= token < self._vocabulary.vocab_size:
            return False
        after = self._find_after(token)
        if after is not None:
            self._push(token, after)
            self._behind += 1
            return True
        # The library may still accept the token: forced tokens are accepted before a mask is computed, and where text
        # is forced, the mask allows a single tokenization.
        if not (self._vocabulary.table[token] or token in self.template.specials):
            return False
        after = self._state_after(token)
        if after is None or not self._asking(lambda matcher: matcher.accept(token)):
            return False
        self.template.masks.connect(here, token, after)
        self._push(token, after)
        return True

    def _find_after(self, token: int) -> CachedState | None:
        """Compute and cache the state after a token without a cached transition. None for end tokens, and for tokens
        that the mask does not allow."""
        here = self._path[-1]
        if not 0 <= token < self._vocabulary.vocab_size or not here.allows(token) or self._is_end(token):
            return None
        after = self._state_after(token)
        if after is None:
            raise InvariantError("the recognizer refuses a token that the masks allow")
        # Searching for other tokens with the same transition is deferred to `settle`.
        masks = self.template.masks
        if after is here and here.loops is None and here.state is not None:
            self._to_settle.append((here, token, after))
            return after
        masks.connect(here, token, after)
        edges = len(here.after)
        if here.state is not None and (here.runs is not None or (edges >= MIN_EDGES and edges & (edges - 1) == 0)):
            self._to_settle.append((here, token, after))
        return after

    def _find_others(self, here: CachedState, token: int, after: CachedState) -> None:
        """Cache further tokens with the same transition, if the recognizer knows any. Needs the mask of `here`."""
        completions, masks = self.template.completions, self.template.masks
        if here.state is None or here.row is None:
            return
        if after is here:
            if here.loops is None:
                masks.put_loops(here, completions.looping_tokens(here.state))
            return
        tokens = completions.uniform_tokens(here.state, token)
        if tokens is not None:
            masks.connect_run(here, token, tokens, self._vocabulary.num_chars, after)

    def _push(self, token: int, after: CachedState) -> None:
        self._tokens.append(token)
        self._path.append(after)
        self._ahead = None

    def _state_after(self, token: int) -> CachedState | None:
        """Return the state after a token that is no end token; None if the recognizer refuses the token."""
        if self._ahead is not None and self._ahead[0] == token:
            return self._ahead[1]
        here = self._path[-1]
        state = self.template.completions.advance(self.template.parser_state(here), token)
        if state is None:
            return None
        return here if state is here.state else self.template.masks.at(state)

    def copy(self) -> TextGrammar:
        """Return an independent grammar in the same state."""
        copied = TextGrammar(self.template, self._own_ends, self._settle_at, self._matcher.fork())
        copied._generation, copied._behind, copied._ended = self._generation, self._behind, self._ended
        copied._tokens, copied._path = self._tokens.copy(), self._path.copy()
        return copied

    @property
    def here(self) -> CachedState:
        """Cache entry of the current parser state."""
        return self._path[-1]

    def parser_state_at(self, index: int) -> ParserState:
        """Return the parser state after the first `index` tokens."""
        return self.template.parser_state(self._path[index])

    @property
    def is_ended(self) -> bool:
        """An end token was accepted."""
        return self._ended

    def settle(self) -> None:
        for here, token, after in self._to_settle:
            self._find_others(here, token, after)
        self._to_settle.clear()
        if self._behind >= self._settle_at:
            self._asking(lambda matcher: None)

    def _is_end(self, token: int) -> bool:
        if token in self._vocabulary.eos_ids:
            return True
        ends = self._own_ends
        return ends is not None and 0 <= token < 32 * len(ends) and bool(ends[token // 32] >> (token % 32) & 1)

    def is_terminated(self) -> bool:
        if self._ended:
            return True
        here = self._path[-1]
        if here.must_end is None:
            may_end = here.state is None or self.template.completions.may_end(here.state)
            here.must_end = may_end and self._asking(lambda matcher: matcher.must_end())
        return here.must_end

    def _may_end(self) -> bool:
        here = self._path[-1]
        if here.may_end is None:
            here.may_end = self.template.completions.may_end(self.template.parser_state(here))
        return here.may_end

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if not num_tokens:
            return
        # Tokens that the matcher has not consumed yet are simply dropped.
        unseen = min(num_tokens, self._behind)
        self._behind -= unseen
        if num_tokens > unseen:
            self._matcher.rollback(num_tokens - unseen)
        del self._tokens[-num_tokens:]
        del self._path[-num_tokens:]
        self._ahead = None

    def forced_continuation(self) -> list[int]:
        if self._ended:
            return []
        here = self._path[-1]
        if here.forced is None:
            here.forced = self._asking(lambda matcher: matcher.forced())
        return list(here.forced)

    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        here = self._path[-1]
        if forced != here.forced:
            return self._vocabulary.healed(last, forced)
        if last not in here.healed:
            if len(here.healed) >= MAX_HEALED:
                here.healed.clear()
            here.healed[last] = self._vocabulary.healed(last, forced)
        return here.healed[last]

    def fits(self, token: int, remaining: int) -> bool:
        if self._ended:
            return True
        after = self._path[-1].follow(token)
        if after is None:
            if self._is_end(token):
                return True
            self._ahead = None
            after = self._state_after(token)
            if after is None:
                return True
            self._ahead = token, after
        return remaining >= after.safe or self._fits_exactly(after, remaining)

    def _fits_exactly(self, after: CachedState, remaining: int) -> bool:
        """Like `fits`, for a state whose upper bound on the shortest completion is unknown or exceeds `remaining`."""
        if after.is_exact:
            return False
        # Tighten the bound in steps, the cheap ones first: characters, bytes, and finally the tokens themselves.
        completions, state = self.template.completions, self.template.parser_state(after)
        if after.safe == UNKNOWN:
            bound = completions.bound(state)
            after.safe = UNKNOWN if bound is None else bound
        if remaining < after.safe:
            after.safe = completions.byte_bound(state)
        if remaining < after.safe:
            after.safe, after.is_exact = len(completions.closing(state)), True
        return remaining >= after.safe

    def closing(self) -> list[int]:
        state = self._path[-1].state
        if self._ended:
            return []
        return list(self.template.shortest if state is None else self.template.completions.closing(state))

    def _asking(self, question: Callable[[Matcher], T]) -> T:
        """Return the matcher's answer after it has consumed the whole text.

        A matcher that has reached a limit of its library is replaced by a matcher of the grammar loaded again.
        """
        try:
            self._catch_up()
            return question(self._matcher)
        except (GrammarError, InvariantError):
            self.template.renew(self._generation)
            self._generation = self.template.generation
            self._matcher = self.template.matcher()
            if not self._matcher.accept_all(self._tokens):
                raise
            self._behind = 0
            return question(self._matcher)

    def _catch_up(self) -> None:
        if self._behind:
            if not self._matcher.accept_all(self._tokens[-self._behind :]):
                raise InvariantError("the grammar's library refuses a token that its mask allowed")
            self._behind = 0
