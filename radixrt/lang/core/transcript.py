"""The transcript of a state: an immutable list of texts, roles and answers, linked from the newest entry to the oldest.

Appending creates a new tip and changes no entry, so that a fork is one more reference to a tip.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixrt.lang.core.tools import Offer

Role = str


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Token ids of everything from the beginning of the prompt to the end of an answer.

    Attributes:
        ids: token ids as C ints.
        text: the text of these ids, including the template's.
    """

    ids: array[int]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A text that the program appended."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Begin:
    """The beginning of a message."""

    role: Role


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """The end of the open message."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The output of a call, or the choice that it took.

    Attributes:
        call: id of the call.
        known: None where the backend reports no token ids.
        tool_calls: calls in the output, as in the OpenAI API.
    """

    text: str
    call: int
    known: Known | None
    tool_calls: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tools:
    """An offer of tools. From here on the prompt of the whole conversation describes them."""

    offer: Offer


Entry = Text | Begin | End | Answer | Tools


@dataclass(frozen=True, slots=True, eq=False)
class Tip:
    """The newest entry, and the transcript before it."""

    entry: Entry
    before: Tip | None


Transcript = Tip | None


def append(transcript: Transcript, entry: Entry) -> Tip:
    return Tip(entry, transcript)


def backwards(transcript: Transcript) -> Iterator[Entry]:
    """Iterate from the newest entry to the oldest."""
    while transcript is not None:
        yield transcript.entry
        transcript = transcript.before


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        content: the whole text, including that of the `tool_calls`.
        answers: the tool call, as in the OpenAI API, whose result this is; see `link_results`.
    """

    role: Role
    content: str
    tool_calls: Sequence[dict[str, Any]] = ()
    answers: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A transcript as messages or, for a program without roles, as one text.

    Attributes:
        open: the last message has not ended.
        text: the text of a program without roles.
        tools: the tools that are offered.
    """

    messages: tuple[Message, ...]
    open: bool
    text: str
    tools: Offer | None = None


def fold(transcript: Transcript) -> Conversation:
    """Convert a transcript to a conversation."""
    messages: list[Message] = []
    content: list[str] = []
    calls: list[dict[str, Any]] = []
    role: Role | None = None
    tools: Offer | None = None
    for entry in reversed(list(backwards(transcript))):
        if isinstance(entry, (Text, Answer)):
            content.append(entry.text)
            calls += entry.tool_calls if isinstance(entry, Answer) else ()
        elif isinstance(entry, Begin):
            role = entry.role
        elif isinstance(entry, Tools):
            tools = entry.offer
        elif role is not None:
            messages.append(Message(role, "".join(content), tuple(calls)))
            content, calls, role = [], [], None
    if role is not None:
        messages.append(Message(role, "".join(content), tuple(calls)))
        return Conversation(tuple(messages), True, "", tools)
    return Conversation(tuple(messages), False, "".join(content), tools)


def link_results(messages: Sequence[Message]) -> list[Message]:
    """The messages, each result of a tool with the call that it answers: results follow their calls in the same
    order."""
    out: list[Message] = []
    waiting: list[dict[str, Any]] = []
    for m in messages:
        if m.tool_calls:
            waiting = list(m.tool_calls)
        answers = waiting.pop(0) if m.role == "tool" and waiting else None
        out.append(m if answers is None else replace(m, answers=answers))
    return out


def last_call(transcript: Transcript) -> int | None:
    """Id of the newest call whose answer is in the transcript."""
    return next((entry.call for entry in backwards(transcript) if isinstance(entry, Answer)), None)
