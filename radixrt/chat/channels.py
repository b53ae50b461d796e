"""`Channels`: a format in which every answer consists of marked blocks for reasoning, text and calls.

`harmony` and `kimi_k3` are such formats. The chat template opens the first block, and nothing outside of the blocks is
text for the user.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from radixrt.chat.reasoning import Reasoning, Thinking
from radixrt.chat.tool_parser import CallArguments, CallBegin, Text
from radixrt.constrained.tags.tools import Tool
from radixrt.sampling_params import StopScope

Part = Text | Reasoning | CallBegin | CallArguments


class ChannelParser(Protocol):
    """Incremental parser of one answer. No marker, and no part of one, is returned as text.

    Attributes:
        complete: the answer holds at least one call, and every call is complete.
    """

    @property
    def complete(self) -> bool: ...

    def feed(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are certain now."""

    def finish(self) -> list[Part]:
        """Return the parts held back until the end of the text."""


@dataclass(frozen=True, slots=True)
class ChannelTools:
    """The calls of a constrained answer.

    Attributes:
        tools: tools that may be called; none for an answer without calls.
        required: calls come, and no answer.
        parallel: several calls are allowed, if the format can express several calls.
    """

    tools: Sequence[Tool] = ()
    required: bool = False
    parallel: bool = True


class Channels(Protocol):
    """A format of answers.

    Attributes:
        name: for `/server_info`.
        markers: texts that are single tokens in the vocabularies of models that were trained on the format.
        reasoning_end: the marker with which the reasoning ends.
        is_last_end: the last of these markers ends the reasoning, not the first.
        efforts: values of `reasoning_effort` that the model was trained on.
    """

    name: str
    markers: tuple[str, ...]
    reasoning_end: str
    is_last_end: bool
    efforts: tuple[str, ...]

    def is_shown(self, shown: str, tool: str) -> bool:
        """Return whether a template that has rendered a call of a tool has done so in this format."""

    def thinking(self, header: str) -> Thinking:
        """Return whether an answer reasons first.

        Args:
            header: the end of the prompt, which opens the answer.
        """

    def free_text(self, thinking: Thinking) -> StopScope:
        """Return the part of an answer that is text for the user, in which stop strings are looked for."""

    def parser(self, tools: Sequence[Tool], thinking: Thinking) -> ChannelParser:
        """Return a parser of an answer that may call these tools."""

    def constraint(
        self, calls: ChannelTools, response: dict[str, Any] | None, tokens: Collection[str], thinking: Thinking
    ) -> str:
        """Return the structural tag, as JSON text, of an answer.

        Args:
            response: a format of a structural tag for the text for the user; None for free text.
            tokens: markers that are single tokens of the vocabulary; they come as those and never as text.
        """

    def messages(self, messages: Sequence[dict[str, Any]], *, ends_open: bool) -> list[dict[str, Any]]:
        """Bring messages into the form that templates of this format expect.

        Args:
            ends_open: the last message is the answer, which is continued.
        """

    def definitions(self, tools: bytes) -> bytes:
        """Bring tool definitions, JSON, into the form that templates of this format expect."""
