"""`GuardedGrammar`: a grammar whose texts must also meet obligations, which depend on earlier parts of the text.

The mask is the grammar's, without the tokens behind which every completion would break an obligation. So the mask is
never empty, and forced text needs no other treatment: where the grammar leaves no choice, some completion begins with
the forced text. While no used key or item begins with the one that is being written, the mask is the grammar's own
array.

Completions depend on the tokens of the text alone: where and how an answer is cut short does not depend on other
requests or on restarts. Each follows the completion of a beginning of the text as far as possible, because a search for
each of many units after each token would take long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import isqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.constrained.guards.completion import Completion, completion_of
from radixrt.constrained.guards.json_position import DISTINCT, Position, next_member
from radixrt.constrained.guards.scanner import Scanner, start_of
from radixrt.constrained.guards.search import Completer, Effort, many_for
from radixrt.constrained.guards.tables import tables_of
from radixrt.constrained.obligations import Obligation
from radixrt.constrained.runtime.closing import ParserState
from radixrt.constrained.runtime.text_grammar import TextGrammar, TextTemplate

MAX_KEPT: Final = 256
"""Maximum number of masks with bans that are cached, and of masks whose opening tokens are."""
MAX_CANDIDATES: Final = 20_000
"""Maximum number of used texts whose candidates for bans are cached."""
NO_TOKENS: Final[frozenset[int]] = frozenset()
KEPT_POSITIONS: Final = 128
"""Number of last positions that a grammar keeps: each may hold all units of the text. An earlier one is computed again
from the text if it is asked for."""
SPARE_TOKENS: Final = 256
"""A completion needs no search to be known to fit (`Guard.room`) only where more tokens than this remain."""


class GuardedTemplate(TextTemplate):
    """Template of the grammars of a constraint with obligations; made like a `TextTemplate`."""

    def __init__(self, *args: Any, obligations: Sequence[Obligation], **options: Any) -> None:
        super().__init__(*args, **options)
        self.guard = Guard(self, obligations)

    def new(self, stop_token_ids: Iterable[int] = ()) -> GuardedGrammar:  # type: ignore[override]
        return GuardedGrammar(super().new(stop_token_ids), self.guard)


class Guard:
    """The obligations of a constraint; caches results for all of its grammars.

    Attributes:
        counts: a shortest completion may contain several units that must differ.
        start: the position before a text.
        tables: tokens by their bytes.
    """

    def __init__(self, template: TextTemplate, obligations: Sequence[Obligation]) -> None:
        self._template = template
        self._obligations = obligations
        self._ordered = all(one.ordered for one in obligations)
        self.counts = any(one.counts for one in obligations)
        self._finite = any(one.finite for one in obligations)
        self._arrays = any(one.kind != "keys" for one in obligations)
        self.start = start_of(obligations)
        self.tables = tables_of(template.vocabulary)
        self._along: dict[tuple[ParserState, bytes, int | None], tuple[int, ...]] = {}
        self._joined: dict[tuple[int, frozenset[int], bool], tuple[Bitmask, Bitmask]] = {}
        self._spare = SPARE_TOKENS + len(template.shortest)
        self._some: dict[tuple[int, str], tuple[Bitmask, list[int]]] = {}

    @cached_property
    def scanner(self) -> Scanner:
        """Follows texts."""
        return Scanner(self._template.completions.recognizer, self._obligations)

    @cached_property
    def completer(self) -> Completer:
        """Searches for completions."""
        return Completer(self._template.completions.recognizer, self._template.vocabulary, self.scanner)

    @cached_property
    def shortest(self) -> Completion:
        """The completion of the empty text."""
        template = self._template
        return completion_of(template.shortest, template.completions.start[0], template.vocabulary)

    @cached_property
    def _growth(self) -> int:
        """Characters by which a unit that may not repeat another is longer than the next shorter one, at most: each
        time that a part of the unit is repeated, a shortest text of a rule is added."""
        return 1 + self._template.completions.recognizer.longest_rule

    def room(self, position: Position, size: int, remaining: int) -> int:
        """Return a length such that, if the grammar's own completion has at most so many tokens, a completion that
        meets the obligations has at most `remaining`. Negative if a search has to say.

        Units that must differ may have to grow one after the other (`[]`, `[1]`, `[1,1]`), so that n units have up to
        n * n / 2 times `_growth` characters, while the completion of the grammar may have as few as n tokens. Long
        units have about three characters to a token.

        Args:
            size: bytes of the text.
        """
        left = remaining - self._spare
        longer = 0
        scope = position.scope
        while scope is not None and (scope.alive or scope.repeating):
            if scope.kind > DISTINCT and not scope.used:
                # The first item may have to be written again.
                left = (left - (size - scope.start if scope.start >= 0 else 0)) // 2 - 1
            elif scope.kind > DISTINCT and not scope.is_last:
                longer += 1 + min(map(len, scope.used))
            else:
                # A unit leaves the used texts behind the end of the longest one, or is equal to it.
                longer += max(map(len, scope.live), default=scope.matched) - scope.matched
            scope = scope.parent
        left -= longer
        # The largest length with factor * length ** 2 + 8 * length <= left.
        factor = -(-self._growth // 6)
        return -1 if left < 0 else (isqrt(16 + factor * left) - 4) // factor

    def after(self, position: Position, place: ParserState, text: bytearray, token: int) -> Position | None:
        """Return the position after a token; None if the token breaks an obligation."""
        return self.scanner.advance(position, place, text, b"", self._template.vocabulary.table[token])

    def bans(self, position: Position, place: ParserState, text: bytearray, row: Bitmask) -> frozenset[int]:
        """Return tokens of a mask behind which no completion keeps the obligations."""
        scope = position.scope
        barely = self._finite or position.repeating
        opening = self.tables.opening(position.mode, barely=barely, arrays=self._arrays)
        tokens = set(self._allowed(row, *opening))
        if position.repeating:
            tokens.update(self._allowed(row, *self.tables.ending(position.mode)))
        many = many_for(position)
        while scope is not None and scope.alive:
            matched = scope.matched
            for used in scope.live if scope.kind == DISTINCT else ():
                if matched < len(used):
                    tokens.update(self._candidates(place, used[matched:] if matched else used, many))
                else:
                    tokens.update(self._allowed(row, "delimiters", self.tables.delimiters))
            scope = scope.parent
        if not tokens:
            return NO_TOKENS
        effort = Effort()
        return frozenset(
            token
            for token in tokens
            if row[token >> 5] >> (token & 31) & 1 and not self.takes(position, place, text, token, effort)
        )

    def kept(self, position: Position, place: ParserState, text: bytearray, row: Bitmask) -> frozenset[int]:
        """Return the tokens of a mask that leave a completion, where an item must repeat another."""
        scope = position.scope
        while scope is not None and not scope.is_last:
            scope = scope.parent
        assert scope is not None
        tokens = set[int]()
        if scope.start < 0:
            tokens.update(self._allowed(row, "spaces", self.tables.spaces))
        for used in scope.live:
            if scope.matched < len(used):
                tokens.update(self._candidates(place, used[scope.matched :], None))
            else:
                tokens.update(self._allowed(row, "delimiters", self.tables.delimiters))
        effort = Effort()
        return frozenset(
            token
            for token in tokens
            if row[token >> 5] >> (token & 31) & 1 and self.takes(position, place, text, token, effort)
        )

    def _candidates(self, place: ParserState, rest: bytes, many: int | None) -> tuple[int, ...]:
        """Return the tokens that may have to be banned because of a used text.

        Args:
            rest: the used text behind the unit's text so far.
            many: see `many_for`.
        """
        key = place, rest, many
        known = self._along.get(key)
        if known is None:
            if len(self._along) >= MAX_CANDIDATES:
                self._along.clear()
            known = self._along[key] = tuple(self._find_candidates(place, rest, many))
        return known

    def _find_candidates(self, place: ParserState, rest: bytes, many: int | None) -> Iterator[int]:
        # Members in another order are followed by all tokens that go beyond the place where a member may begin.
        part = rest if self._ordered else rest[: next_member(rest)]
        found = list(self.tables.along(part))
        # A token that ends before a point with many ways to go on leaves a completion. A token may end inside of a
        # character, which few characters complete.
        state, pending = place
        last = None
        if found and many is not None and not pending:
            last = self.completer.last_choice(state, part, many, max(end for _, end in found))
        vocabulary = self._template.vocabulary
        for token, end in found:
            is_short = last is not None and len(vocabulary.table[token]) == end <= last
            if not is_short or vocabulary.split(token)[1]:
                yield token

    def _allowed(self, row: Bitmask, name: str, ids: npt.NDArray[np.int64]) -> list[int]:
        """Return the tokens among some that a mask allows.

        Args:
            name: identifies the tokens.
        """
        if not len(ids):
            return []
        key = id(row), name
        known = self._some.get(key)
        if known is None:
            if len(self._some) >= MAX_KEPT:
                self._some.clear()
            allowed = ids[(row[ids >> 5] >> (ids & 31).astype(np.uint32) & 1).astype(bool)]
            known = self._some[key] = row, allowed.tolist()  # the row is kept alive, because the key is its id
        return known[1]

    def takes(
        self, position: Position, place: ParserState, text: bytearray, token: int, effort: Effort | None = None
    ) -> bool:
        """Return whether a token that the grammar allows leaves a completion that keeps the obligations.

        Args:
            effort: that of the mask which the token is of.

        Raises:
            GrammarError: the search takes too many steps.
        """
        after = self.after(position, place, text, token)
        if after is None:
            return False
        if not after.alive:
            return True
        state = self._template.completions.advance(place, token)
        if state is None:
            return False
        return self.completer.exists(state, after, text, self._template.vocabulary.table[token], effort or Effort())

    def changed(self, row: Bitmask, tokens: frozenset[int], *, keep: bool) -> Bitmask:
        """Return a mask with these of its tokens alone, or without them. Equal arguments give the same read-only
        array."""
        key = id(row), tokens, keep
        known = self._joined.get(key)
        if known is None:
            if len(self._joined) >= MAX_KEPT:
                self._joined.clear()
            mask = self._template.vocabulary.mask_of(tokens)
            joined = row & mask if keep else row & ~mask
            joined.flags.writeable = False
            known = self._joined[key] = row, joined
        return known[1]


class GuardedGrammar(Grammar):
    """See the module's docstring. Made by `GuardedTemplate.new`.

    Args:
        inner: the grammar of the same texts without obligations, at the beginning of a text.
    """

    def __init__(self, inner: TextGrammar, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard
        self._inert = guard.tables.inert
        self._table = inner.template.vocabulary.table
        self._text = bytearray()
        self._here = guard.start
        self._positions: list[Position | None] = [guard.start]  # before the first token, and after each; some of them
        self._ends = [0]  # length of the text at each position
        self._ahead: tuple[int, Position] | None = None  # the last token that was followed, and the position after it
        self._bans: frozenset[int] | None = None  # of the present position; None if the mask was not asked for
        self._completions: dict[int, Completion] = {}  # of beginnings of the text, by their numbers of tokens
        self._closing_ahead: tuple[int, Completion] | None = None  # of the text and a token that may be accepted next

    def mask(self) -> Bitmask:
        row = self._inner.mask()
        if self._here.must_repeat:
            kept = self._guard.kept(self._here, self._place, self._text, row)
            return self._guard.changed(row, kept, keep=True)
        if self._bans is None:
            self._bans = self._guard.bans(self._here, self._place, self._text, row)
        return self._guard.changed(row, self._bans, keep=False) if self._bans else row

    @property
    def _place(self) -> ParserState:
        return self._inner.template.parser_state(self._inner.here)

    def accept(self, token: int) -> bool:
        after = self._after(token)
        if after is None:
            return False
        if self._bans is not None:
            if token in self._bans:
                return False
        elif after.alive and not self._guard.takes(self._here, self._place, self._text, token):
            return False
        if not self._inner.accept(token):
            return False
        self._push(token, after)
        return True

    def accept_freely(self, token: int, remaining: int) -> bool:
        here = self._here
        inert = None if here.followed else self._inert.get(here.mode)
        after: Position | None
        if inert is not None and 0 <= token < len(inert) and inert[token]:
            after = here
        else:
            after = self._after(token)
            if after is None or after.alive:
                return False
        if self._guard.counts:
            remaining = self._guard.room(after, len(self._text) + len(self._table[token]), remaining)
        if not self._inner.accept_freely(token, remaining):
            return False
        self._push(token, after)
        return True

    def _after(self, token: int) -> Position | None:
        """Return the position after a token; None if the token repeats a unit, or is no token of the grammar."""
        if self._ahead is not None and self._ahead[0] == token:
            return self._ahead[1]
        here = self._here
        if not 0 <= token < len(self._table):
            return None
        if not self._table[token]:
            return here
        after = self._guard.after(here, self._place, self._text, token)
        if after is not None:
            self._ahead = token, after
        return after

    def _push(self, token: int, after: Position) -> None:
        self._text += self._table[token]
        self._here = after
        self._positions.append(after)
        if len(self._positions) > KEPT_POSITIONS:
            self._positions[-KEPT_POSITIONS] = None
        self._ends.append(len(self._text))
        ahead, self._closing_ahead = self._closing_ahead, None
        if ahead is not None and ahead[0] == token:
            self._remember(len(self._ends) - 1, ahead[1])
        self._ahead = None
        self._bans = None

    def is_terminated(self) -> bool:
        return self._inner.is_terminated()

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._inner.rollback(num_tokens)
            del self._positions[-num_tokens:]
            del self._ends[-num_tokens:]
            del self._text[self._ends[-1] :]
            self._here = self._position_at(len(self._ends) - 1)
            self._completions = {at: one for at, one in self._completions.items() if at < len(self._ends)}
            self._closing_ahead = None
            self._ahead = None
            self._bans = None

    def forced_continuation(self) -> list[int]:
        return self._inner.forced_continuation()

    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        return self._inner.healed(last, forced)

    def fits(self, token: int, remaining: int) -> bool:
        if not self._inner.fits(token, remaining):
            return False
        after = self._after(token)
        if after is None:
            return True
        if not after.alive and not self._guard.counts:
            return True
        room = self._guard.room(after, len(self._text) + len(self._table[token]), remaining)
        if room > 0 and self._inner.fits(token, room):
            return True
        place = self._inner.template.completions.advance(self._place, token)
        if place is None or not self._table[token]:
            return True
        completion = self._complete(len(self._ends), place, after, self._text + self._table[token])
        self._closing_ahead = token, completion
        return completion.fits(remaining, self._inner.template.vocabulary)

    def closing(self) -> list[int]:
        if self._inner.is_ended or not (self._guard.counts or self._here.alive):
            return self._inner.closing()
        return list(self._completion_at(len(self._ends) - 1).tokens(self._inner.template.vocabulary))

    def _completion_at(self, index: int) -> Completion:
        """Return the completion of the first `index` tokens. It depends on these tokens alone."""
        if not index:
            return self._guard.shortest
        known = self._completions.get(index)
        if known is None:
            place = self._inner.parser_state_at(index)
            known = self._complete(index, place, self._position_at(index), self._text[: self._ends[index]])
            self._remember(index, known)
        return known

    def _complete(self, index: int, place: ParserState, position: Position, text: bytearray) -> Completion:
        """Return the completion of a text of `index` tokens.

        Where units count, it is guided by the completion of the first tokens: as many as are left when the last binary
        digit 1 of their number becomes 0. So a text has few such beginnings, whatever its length, and most are near.
        """
        guide = self._completion_at(index & (index - 1)) if self._guard.counts else None
        return self._guard.completer.complete(place, position, text, guide)

    def _remember(self, index: int, completion: Completion) -> None:
        """Keep the completion of the first `index` tokens, and of the beginnings that guide to later ones."""
        guides, at = set[int](), index
        while at := at & (at - 1):
            guides.add(at)
        known = {at: one for at, one in self._completions.items() if at in guides}
        self._completions = known | {index: completion}

    def _position_at(self, index: int) -> Position:
        """Return the position after the first `index` tokens."""
        found = self._positions[index]
        if found is not None:
            return found
        start = index
        while start and self._positions[start] is None:
            start -= 1
        position = self._positions[start] or self._guard.start
        text = self._text[: self._ends[start]]
        for at in range(start, index):
            data = bytes(self._text[self._ends[at] : self._ends[at + 1]])
            if data:
                after = self._guard.scanner.advance(position, self._inner.parser_state_at(at), text, b"", data)
                assert after is not None
                position = after
                text += data
        self._positions[index] = position
        return position

    def ahead(self) -> Grammar:
        return self._inner.ahead()

    def settle(self) -> None:
        self._inner.settle()

    def copy(self) -> GuardedGrammar:
        """Return an independent grammar in the same state."""
        copied = GuardedGrammar(self._inner.copy(), self._guard)
        copied._text, copied._positions, copied._ends = self._text.copy(), self._positions.copy(), self._ends.copy()
        copied._here, copied._completions = self._here, self._completions
        return copied
