"""The transcript of a state: an immutable list of texts, pictures, roles and answers, linked from the newest entry to
the oldest.

Appending creates a new tip and changes no entry, so that a fork is one more reference to a tip.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from radixrt.lang.pictures import Picture

if TYPE_CHECKING:
    from radixrt.lang.core.tools import Offer

Role = str


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Token ids of everything from the beginning of the prompt to the end of an answer.

    Attributes:
        ids: token ids as C ints.
        text: the text of these ids, including the template's. A picture in it is its label, so that equal texts have
            equal pictures.
    """

    ids: array[int]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A text that the program appended."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture that the program appended."""

    picture: Picture


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


Entry = Text | Image | Begin | End | Answer | Tools


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


Parts = tuple[str | Picture, ...]
"""Content that has pictures: its texts and pictures, in order, no two texts adjacent."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        content: the whole text, including that of the `tool_calls`; a picture is its label.
        answers: the tool call, as in the OpenAI API, whose result this is; see `link_results`.
        parts: the content if it has pictures; otherwise empty.
    """

    role: Role
    content: str
    tool_calls: Sequence[dict[str, Any]] = ()
    answers: dict[str, Any] | None = None
    parts: Parts = ()

    @property
    def pictures(self) -> list[Picture]:
        """The pictures of the content, in order."""
        return pictures_of(self.parts)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A transcript as messages or, for a program without roles, as one text.

    Attributes:
        open: the last message has not ended.
        text: the text of a program without roles.
        tools: the tools that are offered.
        parts: the text of a program without roles if it has pictures; otherwise empty.
    """

    messages: tuple[Message, ...]
    open: bool
    text: str
    tools: Offer | None = None
    parts: Parts = ()

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        return [*(picture for m in self.messages for picture in m.pictures), *pictures_of(self.parts)]


def fold(transcript: Transcript) -> Conversation:
    """Convert a transcript to a conversation."""
    messages: list[Message] = []
    content: list[str | Picture] = []
    calls: list[dict[str, Any]] = []
    role: Role | None = None
    tools: Offer | None = None
    for entry in reversed(list(backwards(transcript))):
        if isinstance(entry, (Text, Answer)):
            content.append(entry.text)
            calls += entry.tool_calls if isinstance(entry, Answer) else ()
        elif isinstance(entry, Image):
            content.append(entry.picture)
        elif isinstance(entry, Begin):
            role = entry.role
        elif isinstance(entry, Tools):
            tools = entry.offer
        elif role is not None:
            messages.append(message(role, content, calls))
            content, calls, role = [], [], None
    if role is not None:
        messages.append(message(role, content, calls))
        return Conversation(tuple(messages), True, "", tools)
    return Conversation(tuple(messages), False, _text(content), tools, _parts(content))


def pictures_of(parts: Sequence[str | Picture]) -> list[Picture]:
    """Return the pictures of a content, in order."""
    return [part for part in parts if isinstance(part, Picture)]


def message(role: Role, content: Sequence[str | Picture], calls: Sequence[dict[str, Any]] = ()) -> Message:
    """Return the message of a role with texts and pictures in this order."""
    return Message(role, _text(content), tuple(calls), parts=_parts(content))


def _text(content: Sequence[str | Picture]) -> str:
    return "".join(part.label if isinstance(part, Picture) else part for part in content)


def _parts(content: Sequence[str | Picture]) -> Parts:
    """Return the parts of a content with pictures, adjacent texts joined; nothing for a content without pictures."""
    if not pictures_of(content):
        return ()
    parts: list[str | Picture] = []
    for part in content:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != "":
            parts.append(part)
    return tuple(parts)


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
