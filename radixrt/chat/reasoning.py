"""Reasoning: the free text between two markers that a model writes before its answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts, often single tokens, with which a family of models marks its reasoning.

    Attributes:
        start: before the reasoning.
        end: after the reasoning; also at the start of an answer without reasoning, in some families.
        frame: texts before and after the answer that follows; empty in most families.
    """

    start: str
    end: str
    frame: tuple[str, str] = ("", "")

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.start, self.end, *filter(None, self.frame))


THINK = ReasoningMarkers("<think>", "</think>")
REASONING_MARKERS = (
    THINK,
    ReasoningMarkers("<mm:think>", "</mm:think>"),
    ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    ReasoningMarkers("<seed:think>", "</seed:think>"),
    ReasoningMarkers("[THINK]", "[/THINK]"),
    ReasoningMarkers("◁think▷", "◁/think▷"),
)
"""The markers that are known: of most families, MiniMax-M3, Cohere, Seed-OSS, Magistral and Kimi-VL."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


class Thinking(Enum):
    """State of the reasoning at the end of a request's prompt.

    OFF: the model answers at once. BEGUN: the prompt ends inside the reasoning. FREE: the model may begin it itself.
    """

    OFF = "off"
    BEGUN = "begun"
    FREE = "free"


class ReasoningSplitter:
    """Splits a model's streamed text into its reasoning and its answer.

    The markers, and whitespace next to them, belong to neither. If the model may begin the reasoning and writes no
    start marker, all of the text is the answer, but for an end marker at its start. If reasoning has begun and no end
    marker follows, all of the text is reasoning.
    """

    def __init__(self, thinking: Thinking, markers: ReasoningMarkers = THINK) -> None:
        self._start = markers.start
        self._end = markers.end
        # The frame is written around answers without reasoning too.
        self._opening, self._closing = markers.frame
        # Expect the start marker even if the prompt ends with the marker, because some models repeat it.
        self._expects_start = thinking is not Thinking.OFF
        self._inside = thinking is Thinking.BEGUN
        self._trims = thinking is not Thinking.OFF
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Take the next piece of text; return the (reasoning, answer) that are certain now."""
        if not (self._expects_start or self._inside or self._trims or self._closing):
            return "", text
        self._held += text
        if self._expects_start and not self._read_start():
            return "", ""
        if self._inside:
            return self._read_reasoning()
        return "", self._read_answer()

    def finish(self) -> tuple[str, str]:
        """Return the (reasoning, answer) held back until the end of the text."""
        held, self._held = self._held, ""
        if self._inside:
            return held.rstrip(), ""
        return "", "" if self._closing and held.startswith(self._closing) else held

    def _read_start(self) -> bool:
        """Return whether the start of the text is known to be a start marker or not."""
        begin = self._held.lstrip()
        if begin.startswith(self._start):
            self._held = begin.removeprefix(self._start)
            self._inside = True
        elif not self._inside and begin.startswith(self._end):
            self._held = begin.removeprefix(self._end)
        elif self._start.startswith(begin) or (not self._inside and self._end.startswith(begin)):
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
            sure = len(self._held) - overlap(self._held, self._end)
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
        if self._opening:
            begin = answer.lstrip()
            if begin != self._opening and self._opening.startswith(begin):
                self._held = answer
                return ""
            answer = begin.removeprefix(self._opening) if begin.startswith(self._opening) else answer
            self._opening = ""
        if self._trims:
            answer = answer.lstrip()
            self._trims = not answer
        if self._closing:
            answer, found, _ = answer.partition(self._closing)
            held = 0 if found else overlap(answer, self._closing)
            answer, self._held = answer[: len(answer) - held], found or answer[len(answer) - held :]
        return answer


def overlap(text: str, marker: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
