"""`OpaqueGrammar`: the constraint of a request whose grammar only llguidance can read.

There are no productions, and so no recognizer: outputs are not closed when tokens run out, nothing is known about the
length of a shortest one, and every mask is computed. Equal masks are the same array, so that each is sent once. The
library allows every token of the output.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.constrained.runtime.closing import Completions
from radixrt.constrained.runtime.grammar_template import GrammarTemplate
from radixrt.errors import InvariantError

MAX_KEPT = 64
"""Masks of one grammar that are kept."""


def no_completions() -> Completions:
    """Shortest completions of a grammar that has none; raises InvariantError."""
    raise InvariantError("a grammar without productions has no shortest completions")


class OpaqueTemplate(GrammarTemplate):
    """Template of grammars without productions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._kept: OrderedDict[bytes, Bitmask] = OrderedDict()

    def kept(self, row: Bitmask) -> Bitmask:
        """The array of this content that was returned before, or `row` itself, which is read-only from now on."""
        content = row.tobytes()
        found = self._kept.get(content)
        if found is not None:
            self._kept.move_to_end(content)
            return found
        if len(self._kept) >= MAX_KEPT:
            self._kept.popitem(last=False)
        row.flags.writeable = False
        self._kept[content] = row
        return row

    def new(self, stop_token_ids: Iterable[int] = ()) -> OpaqueGrammar:
        return OpaqueGrammar(self, self.own_ends.of(stop_token_ids))


class OpaqueGrammar(Grammar):
    """See the module's docstring. Made by `OpaqueTemplate.new`.

    Args:
        own_ends: mask of the request's own end tokens (`stop_token_ids`); None without any.
    """

    def __init__(self, template: OpaqueTemplate, own_ends: Bitmask | None) -> None:
        self._template = template
        self._own_ends = own_ends
        self._vocabulary = template.vocabulary
        self._matcher = template.matcher()
        self._ended = False

    def mask(self) -> Bitmask:
        if self._ended:
            return self._vocabulary.eos_mask
        row, may_end = self._template.mask_of(self._matcher)
        row = self._template.kept(row)
        return self._template.own_ends.join(row, self._own_ends) if may_end and self._own_ends is not None else row

    def accept(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._vocabulary.eos_ids or self._is_own_end(token):
            self._ended = self._matcher.may_end()
            return self._ended
        if not 0 <= token < self._vocabulary.vocab_size:
            return False
        is_known = bool(self._vocabulary.table[token]) or token in self._template.specials
        return is_known and self._matcher.accept(token)

    def _is_own_end(self, token: int) -> bool:
        ends = self._own_ends
        return ends is not None and 0 <= token < 32 * len(ends) and bool(ends[token // 32] >> (token % 32) & 1)

    def is_terminated(self) -> bool:
        return self._ended or self._matcher.must_end()

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def forced_continuation(self) -> list[int]:
        return [] if self._ended else self._matcher.forced()

    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        return self._vocabulary.healed(last, forced)

    def fits(self, token: int, remaining: int) -> bool:
        return True

    @property
    def closes(self) -> bool:
        return False

    def closing(self) -> list[int]:
        return []
