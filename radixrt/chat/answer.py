"""`AnswerParser`: splits an answer's text into reasoning, text for the user and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.chat.channels import Channels, Part
from radixrt.chat.reasoning import THINK, Reasoning, ReasoningMarkers, ReasoningSplitter, Thinking
from radixrt.chat.tool_parser import Text, ToolCallParser
from radixrt.constrained.tags.tool_formats import ToolFormat
from radixrt.constrained.tags.tools import Tool
from radixrt.messages.client import RequestOutput


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The parts that the answers to a request can have.

    Attributes:
        tool_format: format of tool calls; None if the request allows no calls.
        tools: the tools that may be called.
        legacy: calls are reported as OpenAI's older `function_call`.
        thinking: whether reasoning comes first.
        markers: the markers of the reasoning.
        reasoning_end_id: the id of the marker after the reasoning, if it is a single token.
        channels: the format of an answer in channels, which has no tool_format.
    """

    tool_format: ToolFormat | None = None
    tools: tuple[Tool, ...] = ()
    legacy: bool = False
    thinking: Thinking = Thinking.OFF
    markers: ReasoningMarkers = THINK
    reasoning_end_id: int | None = None
    channels: Channels | None = None

    @property
    def is_plain(self) -> bool:
        """True if all of the text is for the user."""
        plain = self.tool_format is None and self.thinking is Thinking.OFF and self.channels is None
        return plain and not any(self.markers.frame)


class AnswerParser:
    """Incremental parser of one answer's text."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._token_ids: list[int] = []
        self._channels = None if form.channels is None else form.channels.parser(form.tools, form.thinking)
        self._splitter = ReasoningSplitter(form.thinking, form.markers)
        self._calls = None if form.tool_format is None else ToolCallParser(form.tool_format, form.tools)

    @property
    def has_calls(self) -> bool:
        """True if the answer holds at least one call and every call is complete."""
        calls = self._channels or self._calls
        return calls is not None and calls.complete

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens of the outputs so far that are reasoning."""
        return count_reasoning(self._token_ids, self._form)

    def take(self, output: RequestOutput) -> list[Part]:
        """Take the next output of the request; return the parts that are certain now, with its finish all of them."""
        if self._form.reasoning_end_id is not None:
            self._token_ids += output.token_ids
        parts = self.feed(output.text)
        return parts if output.finish is None else [*parts, *self.finish()]

    def feed(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are certain now."""
        if self._channels is not None:
            return self._channels.feed(text)
        return self._parts(*self._splitter.feed(text))

    def finish(self) -> list[Part]:
        """Return the parts held back until the end of the text."""
        if self._channels is not None:
            return self._channels.finish()
        parts = self._parts(*self._splitter.finish())
        return parts if self._calls is None else [*parts, *self._calls.finish()]

    def _parts(self, reasoning: str, answer: str) -> list[Part]:
        parts: list[Part] = [Reasoning(reasoning)] if reasoning else []
        if not answer:
            return parts
        return [*parts, Text(answer)] if self._calls is None else [*parts, *self._calls.feed(answer)]


def count_reasoning(token_ids: Sequence[int], form: AnswerForm) -> int:
    """Number of tokens up to and including the end marker of the reasoning; 0 if it is absent or not one token."""
    if form.thinking is Thinking.OFF or form.reasoning_end_id is None:
        return 0
    if form.channels is not None and form.channels.is_last_end:
        return max((i for i, token in enumerate(token_ids, 1) if token == form.reasoning_end_id), default=0)
    return next((i for i, token in enumerate(token_ids, 1) if token == form.reasoning_end_id), 0)
