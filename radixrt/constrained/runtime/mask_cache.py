"""`MaskCache`: masks, forced tokens and transitions by parser state, shared by all requests that reach the state.

The continuations of a text depend on its parser state alone. Requests with the same schema, and the characters of a
long string, reach the same few states again and again. A mask then costs a lookup instead of a walk through the
vocabulary, all rows in a state share an array, and a token that was followed before costs another lookup.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.runtime.closing import ParserState
from radixrt.constrained.vocabulary import TokenSet

MAX_BYTES = 64 * 1024 * 1024
STATE_BYTES = 512
"""Approximate size of a state without its mask."""
MAX_EDGES = 200_000
"""Maximum number of transitions of all states, some 20 MB. When it is reached, all transitions are dropped."""
UNKNOWN = 1 << 62


class Runs:
    """Transitions from a state by number of characters, as within a counted repetition.

    Attributes:
        tokens: text tokens; any two allowed tokens of the set with equally many characters lead to the same state.
        num_chars: number of characters of each token of the vocabulary (`Vocabulary.num_chars`).
        after: the state by number of characters, for the numbers that have been followed.
    """

    __slots__ = ("after", "num_chars", "tokens")

    def __init__(self, tokens: TokenSet, num_chars: bytes) -> None:
        self.tokens = tokens
        self.num_chars = num_chars
        self.after: dict[int, CachedState] = {}


class CachedState:
    """Results for one parser state; None where nothing was computed yet. Compare by identity.

    Attributes:
        state: the parser state; None at the beginning of a text.
        row: the mask, read only.
        row_bytes: size of the mask; 0 where the mask belongs to another state.
        forced: the tokens that the grammar forces.
        may_end, must_end: see `Matcher`.
        safe: with this many remaining tokens or more the text can be completed; an upper bound until `is_exact`.
        after: the state after each token that some text has followed from here.
        healed: results of `Grammar.healed` for `forced`, by the token before.
        loops: the text tokens that the mask allows and that lead back to this state.
        runs: transitions by number of characters; see `Runs`.
        is_claimed: `LookAhead` has queued or explored this state.
    """

    __slots__ = (
        "after",
        "forced",
        "healed",
        "is_claimed",
        "is_exact",
        "loops",
        "may_end",
        "must_end",
        "row",
        "row_bytes",
        "runs",
        "safe",
        "state",
    )

    def __init__(self, state: ParserState | None) -> None:
        self.state = state
        self.row: Bitmask | None = None
        self.row_bytes = 0
        self.forced: list[int] | None = None
        self.may_end: bool | None = None
        self.must_end: bool | None = None
        self.safe = UNKNOWN
        self.is_exact = self.is_claimed = False
        self.after: dict[int, CachedState] = {}
        self.healed: dict[int, list[int] | None] = {}
        self.loops: TokenSet | None = None
        self.runs: Runs | None = None

    def follow(self, token: int) -> CachedState | None:
        """Return the state after an allowed token; None if the transition is unknown."""
        after = self.after.get(token)
        if after is not None or token < 0:
            return after
        if self.loops is not None and token < len(self.loops) and self.loops[token]:
            return self
        runs = self.runs
        if runs is not None and token < len(runs.tokens) and runs.tokens[token] and self.allows(token):
            return runs.after.get(runs.num_chars[token])
        return None

    def allows(self, token: int) -> bool:
        """The mask allows a token of the vocabulary; False while there is no mask."""
        return self.row is not None and bool(self.row[token >> 5] >> (token & 31) & 1)

    def remember(self, row: Bitmask) -> None:
        """Store the mask, which is read-only from now on."""
        row.flags.writeable = False
        self.row = row


class MaskCache:
    """LRU cache of the parser states of all grammars of a vocabulary. Used by the scheduler's thread only.

    Args:
        max_bytes: approximate maximum size of all states. The last used state is kept, whatever its size.
        max_edges: maximum number of transitions.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_edges: int = MAX_EDGES) -> None:
        self._max_bytes = max_bytes
        self._max_edges = max_edges
        self._known: OrderedDict[ParserState, CachedState] = OrderedDict()
        self._num_bytes = 0
        self._with_edges: list[CachedState] = []
        self._num_edges = 0
        self._users: dict[TokenSet, int] = {}  # states with `runs` of these tokens

    def at(self, state: ParserState) -> CachedState:
        """Return the entry of a parser state, created if necessary. States of different recognizers are different."""
        known = self._known.get(state)
        if known is not None:
            self._known.move_to_end(state)
            return known
        known = self._known[state] = CachedState(state)
        self._num_bytes += STATE_BYTES
        self._shrink()
        return known

    def put(self, state: ParserState, row: Bitmask) -> CachedState:
        """Store the mask of a parser state; return the state's entry."""
        known = self.at(state)
        if known.row is None:
            known.row_bytes = row.nbytes
            self._num_bytes += row.nbytes
        known.remember(row)
        self._shrink()
        return known

    def share(self, state: CachedState, other: CachedState) -> None:
        """Set the mask of a state to the mask of another state that allows the same tokens."""
        assert other.row is not None
        state.remember(other.row)
        state.may_end = other.may_end

    def connect(self, state: CachedState, token: int, after: CachedState) -> None:
        """Store the transition from a state over a token, which the mask or the library allows."""
        # Transitions keep evicted states alive, and dropping single transitions would need an order of use, so all are
        # dropped together.
        if self._num_edges >= self._max_edges:
            for each in self._with_edges:
                each.after.clear()
                each.is_claimed = False
                self._drop_runs(each)
            self._with_edges.clear()
            self._num_edges = 0
        if not state.after:
            self._with_edges.append(state)
        state.after[token] = after
        self._num_edges += 1

    def connect_run(
        self, state: CachedState, token: int, tokens: TokenSet, num_chars: bytes, after: CachedState
    ) -> None:
        """Store the state after all tokens of a set with as many characters as `token`, which the mask allows.

        Args:
            tokens, num_chars: see `Runs`. A state has a single set; calls with another set are ignored.
        """
        runs = state.runs
        if runs is None and state.state is not None and self._known.get(state.state) is state:
            runs = state.runs = Runs(tokens, num_chars)
            users = self._users[tokens] = self._users.get(tokens, 0) + 1
            self._num_bytes += len(tokens) if users == 1 else 0
        if runs is not None and runs.tokens is tokens and num_chars[token]:
            runs.after[num_chars[token]] = after
            self._num_edges += 1
        self._shrink()

    def _drop_runs(self, state: CachedState) -> None:
        if state.runs is not None:
            tokens = state.runs.tokens
            self._users[tokens] -= 1
            if not self._users[tokens]:
                del self._users[tokens]
                self._num_bytes -= len(tokens)
            state.runs = None

    def put_loops(self, state: CachedState, tokens: TokenSet) -> None:
        """Store the tokens that the state's mask allows, out of tokens that lead from the state back to itself."""
        assert state.row is not None
        allowed = np.unpackbits(state.row.view(np.uint8), count=len(tokens), bitorder="little")
        state.loops = (np.frombuffer(tokens, np.uint8) & allowed).tobytes()
        if state.state is not None and self._known.get(state.state) is state:
            self._num_bytes += len(tokens)
            self._shrink()

    def _shrink(self) -> None:
        while self._num_bytes > self._max_bytes and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= STATE_BYTES + oldest.row_bytes
            self._num_bytes -= 0 if oldest.loops is None else len(oldest.loops)
            self._drop_runs(oldest)
            oldest.row = oldest.loops = None  # transitions may keep the evicted entry alive for some time
            oldest.row_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Approximate size of all entries, without their transitions."""
        return self._num_bytes
