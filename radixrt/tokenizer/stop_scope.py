"""Stop strings that are looked for in a part of the text: behind the reasoning, before tool calls, and in messages for
the user."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from radixrt.sampling_params import SamplingParams, StopScope
from radixrt.tokenizer.stop_strings import StopMatcher
from radixrt.tokenizer.tokenizer import Tokenizer


class Matcher(Protocol):
    """The interface of `StopMatcher`, which documents it."""

    @property
    def matched(self) -> str | None: ...

    def push(self, text: str, token_id: int | None = None, *, search: bool = True) -> str: ...

    def flush(self) -> str: ...


def scoped_matcher(stops: Sequence[str], sampling: SamplingParams, tokenizer: Tokenizer, *, include: bool) -> Matcher:
    """The matcher of a request's stop strings."""
    matcher = StopMatcher(stops, include=include)
    scope = sampling.stop_scope
    marker = None if sampling.constraint is None else sampling.structured.reasoning_end
    if marker is None and scope is None:
        return matcher
    if marker is None and scope is not None and scope.reasoning_end:
        marker = scope.reasoning_end
    marker_id = None if marker is None else tokenizer.control_tokens.get(marker)
    return ScopedMatcher(matcher, marker, marker_id, scope)


class _Phase(Enum):
    UNDECIDED = auto()  # at the beginning of the text, which may be that of the reasoning
    BEFORE = auto()  # in the reasoning
    START = auto()  # at the beginning of the answer, which may be that of a call
    FREE = auto()  # in free text
    BEYOND = auto()  # in a call, or in a message that is not for the user


class ScopedMatcher:
    """A stop matcher that sees free text only. What may be the beginning of a call is held back until that is known.

    Args:
        matcher: looks for the stop strings.
        marker, marker_id: text, and token, with which the reasoning ends; None where there is no reasoning.
        scope: the free text; None for everything behind the reasoning.
    """

    __slots__ = ("_held", "_marker", "_marker_id", "_matcher", "_phase", "_scope", "_search", "_start", "_tail")

    def __init__(
        self, matcher: StopMatcher, marker: str | None, marker_id: int | None, scope: StopScope | None
    ) -> None:
        self._matcher = matcher
        self._marker = marker or ""
        self._marker_id = marker_id
        self._scope = scope
        self._tail = ""  # end of the text so far that is not searched, which may be the beginning of a marker
        self._search = True
        self._held = ""  # text that has not been shown to the matcher: it may be the beginning of a call
        self._start = "" if scope is None else scope.reasoning_start
        self._phase = self._behind()
        if marker is not None:
            self._phase = _Phase.UNDECIDED if self._start else _Phase.BEFORE

    @property
    def matched(self) -> str | None:
        return self._matcher.matched

    def push(self, text: str, token_id: int | None = None, *, search: bool = True) -> str:
        """Take more text and return the text that is final; see `StopMatcher.push`."""
        self._search = search
        if self._phase is _Phase.BEFORE:
            return self._read_reasoning(text, token_id)
        if self._phase is _Phase.BEYOND:
            return self._read_beyond(text)
        self._held += text
        if self._phase is _Phase.UNDECIDED:
            return self._read_undecided()
        if self._phase is _Phase.START:
            return self._read_start()
        return self._read_free()

    def flush(self) -> str:
        """End the text and return the text that was held back."""
        held, self._held = self._held, ""
        return self._look(held) + self._matcher.flush()

    def _look(self, text: str) -> str:
        return self._matcher.push(text, search=self._search)

    def _behind(self) -> _Phase:
        return _Phase.START if self._scope is not None and self._scope.at_start else _Phase.FREE

    def _read_undecided(self) -> str:
        begun = self._held.lstrip()
        if begun != self._start and self._start.startswith(begun):
            return ""
        held, self._held = self._held, ""
        if not begun.startswith(self._start):
            self._phase = self._behind()
            return self.push(held, search=self._search)
        self._phase = _Phase.BEFORE
        end = len(held) - len(begun) + len(self._start)
        return held[:end] + self._read_reasoning(held[end:], None)

    def _read_reasoning(self, text: str, token_id: int | None) -> str:
        joined = self._tail + text
        end = len(joined) if token_id is not None and token_id == self._marker_id else joined.find(self._marker)
        if end < 0:
            self._tail = joined[max(len(joined) - len(self._marker) + 1, 0) :]
            return text
        if token_id is None or token_id != self._marker_id:
            end += len(self._marker)
        self._phase = self._behind()
        return joined[len(self._tail) : end] + self.push(joined[end:], search=self._search)

    def _read_start(self) -> str:
        assert self._scope is not None
        begun = self._scope.until
        if any(self._held.startswith(text) for text in begun):
            self._phase = _Phase.BEYOND
            held, self._held = self._held, ""
            return held
        if any(text.startswith(self._held) for text in begun):
            return ""
        self._scope = None
        self._phase = _Phase.FREE
        return self._read_free()

    def _read_free(self) -> str:
        until = () if self._scope is None else self._scope.until
        found = [at for text in until if (at := self._held.find(text)) >= 0]
        if found:
            free, rest = self._held[: min(found)], self._held[min(found) :]
            self._held = ""
            text = self._look(free)
            if self.matched is not None:
                return text
            self._phase, self._tail = _Phase.BEYOND, ""
            return text + self._matcher.flush() + self._read_beyond(rest)
        cut = len(self._held) - max((_overlap(self._held, text) for text in until), default=0)
        free, self._held = self._held[:cut], self._held[cut:]
        return self._look(free)

    def _read_beyond(self, text: str) -> str:
        """Read text that is not searched, up to the one that begins the free text again."""
        after = () if self._scope is None else self._scope.after
        if not after:
            return text
        joined = self._tail + text
        ends = [at + len(begun) for begun in after if (at := joined.find(begun)) >= 0]
        if not ends:
            self._tail = joined[max(len(joined) - max(map(len, after)) + 1, 0) :]
            return text
        end = min(ends)
        self._phase, shown = _Phase.FREE, joined[len(self._tail) : end]
        self._held = joined[end:]
        return shown + self._read_free()


def _overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `mark`."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
