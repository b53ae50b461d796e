"""The transcript of a state: an immutable list of what was said, linked from the newest entry to the oldest.

Appending makes a new tip and changes nothing, so that a fork is one more reference to a tip.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixrt.lang.core.tools import Offer

Role = str


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Token ids of everything from the beginning of the prompt to the end of an answer.

    Attributes:
        ids: C ints.
        text: the text that they stand for, the template's included.
    """

    ids: array[int]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """What the program wrote."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Begin:
    """A message begins."""

    role: Role


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """The message that began last ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What the model wrote, or the choice that was taken.

    Attributes:
        call: id of the call.
        known: None where the backend knows no ids.
        tool_calls: that it makes, as in the OpenAI API.
    """

    text: str
    call: int
    known: Known | None
    tool_calls: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tools:
    """Tools are offered from here on; the whole conversation's prompt speaks of them."""

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
    """From the newest entry to the oldest."""
    while transcript is not None:
        yield transcript.entry
        transcript = transcript.before


@dataclass(frozen=True, slots=True)
class Message:
    """tool_calls: those that are made in it; the content is nevertheless the whole text."""

    role: Role
    content: str
    tool_calls: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A transcript as messages or, for a program without roles, as one text.

    Attributes:
        open: the last message has not ended.
        text: of a program without roles.
        tools: that are offered.
    """

    messages: tuple[Message, ...]
    open: bool
    text: str
    tools: Offer | None = None


def fold(transcript: Transcript) -> Conversation:
    """The conversation that a transcript tells."""
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


def last_call(transcript: Transcript) -> int | None:
    """Id of the newest call whose answer is in the transcript."""
    return next((entry.call for entry in backwards(transcript) if isinstance(entry, Answer)), None)
