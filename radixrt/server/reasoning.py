"""Reasoning: the free text, between two markers, in which a model thinks before it answers."""

from __future__ import annotations

from enum import Enum

THINK_START = "<think>"
THINK_END = "</think>"


class Thinking(Enum):
    """What a request's prompt says about reasoning.

    OFF: the model answers at once. BEGUN: the prompt ends inside the reasoning. FREE: the model begins it itself.
    """

    OFF = "off"
    BEGUN = "begun"
    FREE = "free"


class ReasoningSplitter:
    """A model's text, in pieces as they come, into its reasoning and its answer.

    The markers, and whitespace next to them, belong to neither. Without the start marker, where the model was free to
    write it, everything is the answer; without the end marker, where it has begun, everything is reasoning.
    """

    def __init__(self, thinking: Thinking, start: str = THINK_START, end: str = THINK_END) -> None:
        self._start = start
        self._end = end
        self._expects_start = thinking is not Thinking.OFF  # also where the prompt has it: some models repeat it
        self._inside = thinking is Thinking.BEGUN
        self._trims = thinking is not Thinking.OFF
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) that are certain now."""
        if not (self._expects_start or self._inside or self._trims):
            return "", text
        self._held += text
        if self._expects_start and not self._read_start():
            return "", ""
        if self._inside:
            return self._read_reasoning()
        return "", self._read_answer()

    def finish(self) -> tuple[str, str]:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        if self._inside:
            return held.rstrip(), ""
        return "", held if self._expects_start else ""

    def _read_start(self) -> bool:
        """Whether it is known how the text begins."""
        begin = self._held.lstrip()
        if begin.startswith(self._start):
            self._held = begin.removeprefix(self._start)
            self._inside = True
        elif self._start.startswith(begin):
            return False
        elif not self._inside:
            self._trims = False
        self._expects_start = False
        return True

    def _read_reasoning(self) -> tuple[str, str]:
        if self._trims:
            self._held = self._held.lstrip()
            self._trims = not self._held
        found = self._held.find(self._end)
        if found < 0:
            sure = len(self._held) - _overlap(self._held, self._end)
            reasoning = self._held[:sure].rstrip()
            self._held = self._held[len(reasoning) :]
            return reasoning, ""
        reasoning = self._held[:found].rstrip()
        self._held = self._held[found + len(self._end) :]
        self._inside = False
        self._trims = True
        return reasoning, self._read_answer()

    def _read_answer(self) -> str:
        answer, self._held = self._held, ""
        if self._trims:
            answer = answer.lstrip()
            self._trims = not answer
        return answer


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` with which `marker` begins, short of all of it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
