"""`Composer`: the prompt of a call, from the transcript of its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from radixrt.chat.prompt import results_from_user, tool_instructions, with_instructions
from radixrt.errors import RequestError
from radixrt.lang.backends.base import Prompt, Unsupported
from radixrt.lang.core.chat_format import ChatFormat, Piece
from radixrt.lang.core.transcript import (
    Answer,
    Conversation,
    Known,
    Message,
    Transcript,
    backwards,
    fold,
    link_results,
    message,
)
from radixrt.lang.pictures import Picture
from radixrt.messages.parts import TemplateText
from radixrt.tasks.prompts import Part

if TYPE_CHECKING:
    from radixrt.chat.dialect import Dialect
    from radixrt.lang.core.tools import Offer


NO_PICTURES = Unsupported("rt.image: this backend takes no pictures")
"""Refusal of a backend that says nothing about pictures."""


@dataclass(frozen=True, slots=True)
class Composed:
    """A prompt ready to be sent.

    Attributes:
        text: text of the parts, in which a picture is its label; where only messages are sent, the messages as lines.
        rerendered: the template rewrote earlier text, so that known token ids could not be used.
        known: number of prompt tokens that are sent as ids.
    """

    prompt: Prompt
    text: str
    rerendered: bool
    known: int


class Composer:
    """See the module's docstring.

    Args:
        chat_format: None where the model has no chat template, or the backend works on messages.
        tokens: the backend works on token ids.
        dialect: format of tool calls of the model.
        image_token: text that the template writes for a picture; the refusal of a model that reads no pictures.
    """

    def __init__(
        self,
        chat_format: ChatFormat | None,
        *,
        tokens: bool,
        dialect: Dialect | None = None,
        image_token: str | Unsupported = NO_PICTURES,
    ) -> None:
        self._chat_format = chat_format
        self._tokens = tokens
        self._dialect = dialect
        self._image_token = image_token

    @property
    def dialect(self) -> Dialect | None:
        """The tool dialect; None where the backend writes tools into the prompt."""
        return self._dialect if self._tokens else None

    def check_picture(self, *, in_message: bool) -> None:
        """Check that a prompt can have a picture, in a message or in the text of a program without roles.

        Raises:
            Unsupported: it cannot; the error names the model or the backend, and the fix.
        """
        if isinstance(self._image_token, Unsupported):
            raise Unsupported(str(self._image_token))
        if not in_message and self._plain_text is None:
            raise Unsupported(
                "rt.image: the chat template shows no place for a picture in text without roles; put the picture and "
                "its question into rt.user(...)"
            )

    def compose(self, transcript: Transcript) -> Composed:
        """The prompt that continues a transcript.

        Output of the model is sent as the token ids that it generated, as long as the text before it is unchanged.

        Raises:
            RequestError: the transcript has no text, or the template refuses the conversation.
        """
        conversation = fold(transcript)
        pictures = conversation.pictures
        if pictures:
            self.check_picture(in_message=bool(conversation.messages))
        # Messages with pictures have the files in base64, which a backend that works on tokens does not read.
        messages = None if self._tokens and pictures else as_messages(conversation.messages) or None
        if not self._tokens:
            parts: list[Part] = [conversation.text] if conversation.text else []
            return Composed(Prompt(parts, messages, conversation.open, pictures), self.text(transcript), False, 0)
        pieces = self._pieces(conversation)
        text = "".join(piece.shown for piece in pieces)
        if not text:
            raise RequestError("there is no text yet to go on from; append some before the first call", param="prompt")
        known, rerendered = _known(transcript, text)
        parts = [] if known is None else [known.ids]
        parts += _parts(pieces, 0 if known is None else len(known.text))
        if known is None and conversation.parts and pieces[0].template:
            parts.insert(0, "")  # so that the engine writes the tokens that begin a text before the picture
        prompt = Prompt(parts, messages, conversation.open, pictures)
        return Composed(prompt, text, rerendered, 0 if known is None else len(known.ids))

    def text(self, transcript: Transcript) -> str:
        """The whole text as the model sees it; without a template, messages as "role: content" lines.

        Raises:
            RequestError: the template refuses the conversation.
        """
        conversation = fold(transcript)
        if self._chat_format is None and conversation.messages:
            return "\n".join(f"{m.role}: {m.content}" for m in conversation.messages)
        return "".join(piece.shown for piece in self._pieces(conversation))

    def _pieces(self, conversation: Conversation) -> list[Piece]:
        return self._with_pictures(self._rendered(conversation), conversation.pictures)

    def _rendered(self, conversation: Conversation) -> list[Piece]:
        if not conversation.messages:
            if conversation.parts:
                return [
                    Piece(part, False) if isinstance(part, str) else Piece(self._plain_text or "", True)
                    for part in conversation.parts
                ]
            return [Piece(conversation.text, False)] if conversation.text else []
        if self._chat_format is None:
            raise RequestError(
                "the model has no chat template, so there are no roles; write a program without them, or start the "
                "engine with chat_template",
                param="messages",
            )
        messages, tools = link_results(conversation.messages), conversation.tools
        if self._dialect is not None and not self._dialect.renders_tools:
            return self._chat_format.render(_without_tools(messages, tools, self._dialect), open=conversation.open)
        definitions = () if tools is None else tools.definitions
        return self._chat_format.render(messages, open=conversation.open, tools=definitions)

    @cached_property
    def _plain_text(self) -> str | None:
        """Text of a picture outside of messages, with one image token; None if there is none."""
        if self._chat_format is None or isinstance(self._image_token, Unsupported):
            return None
        try:
            text = self._chat_format.picture_text()
        except RequestError:
            return None
        return text if text is not None and self._image_token and text.count(self._image_token) == 1 else None

    def _with_pictures(self, pieces: list[Piece], pictures: Sequence[Picture]) -> list[Piece]:
        """The pieces, with a piece for each picture.

        Raises:
            RequestError: the template has not written one image token for each picture.
        """
        if not pictures or isinstance(self._image_token, Unsupported) or not self._image_token:
            return pieces
        token, rest = self._image_token, iter(pictures)
        found = sum(piece.text.count(token) for piece in pieces if piece.template)
        if found != len(pictures):
            raise RequestError(
                f"image: the chat template writes {found} images, and the conversation has {len(pictures)}; put images "
                "into rt.user(...), or use the model's own template",
                param="image",
            )
        out: list[Piece] = []
        for piece in pieces:
            if not piece.template:
                out.append(piece)
                continue
            first, *others = piece.text.split(token)
            out.append(Piece(first, True))
            for text in others:
                out += [Piece(token, True, next(rest)), Piece(text, True)]
        return [piece for piece in out if piece.text]


def as_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as in the OpenAI API: tool calls apart from content, each tool result with the id of its call, and
    pictures as data: URLs."""
    out: list[dict[str, Any]] = []
    for m in link_results(messages):
        one: dict[str, Any] = {"role": m.role, "content": m.content}
        if m.parts:
            one["content"] = [
                {"type": "text", "text": part} if isinstance(part, str) else part.content_part for part in m.parts
            ]
        if m.tool_calls:
            one = {"role": m.role, "content": None, "tool_calls": list(m.tool_calls)}
        elif m.answers is not None:
            one["tool_call_id"] = m.answers["id"]
        out.append(one)
    return out


def _without_tools(messages: Sequence[Message], offer: Offer | None, dialect: Dialect) -> list[Message]:
    """The conversation for a template that renders no tools, as a chat request has it: instructions to the model
    describe them, and their results are messages of the user."""
    plain = []
    for m in messages:
        name = {} if m.answers is None else {"name": m.answers["function"]["name"]}
        plain.append({"role": m.role, "content": list(m.parts) or m.content, **name})
    out = results_from_user(plain)
    if offer is not None:
        text = tool_instructions(offer.read.definitions, dialect.tool_format)
        out = with_instructions(out, text, dialect.takes_system)
    return [message(m["role"], list(map(_text_or_picture, _as_list(m["content"])))) for m in out]


def _as_list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]


def _text_or_picture(part: Any) -> str | Picture:
    """The part of a content, which is a text of the chat API if an instruction was written before a picture."""
    found: str | Picture = part["text"] if isinstance(part, dict) else part
    return found


def _known(transcript: Transcript, text: str) -> tuple[Known | None, bool]:
    """The longest prefix of a prompt's text with known token ids, and whether a longer one no longer fits the text."""
    passed = False
    for entry in backwards(transcript):
        if isinstance(entry, Answer) and entry.known is not None:
            if text.startswith(entry.known.text):
                return entry.known, passed
            passed = True
    return None, passed


def _parts(pieces: Sequence[Piece], start: int) -> list[Part]:
    """Parts of the text behind the first `start` characters as shown, neighbours of one kind joined."""
    rest: list[Piece] = []
    for piece in pieces:
        if start < len(piece.shown):
            rest.append(Piece(piece.text[start:], piece.template))  # a picture is never cut
        start = max(0, start - len(piece.shown))
    parts: list[Part] = []
    for template, group in groupby(rest, key=lambda piece: piece.template):
        text = "".join(piece.text for piece in group)
        parts.append(TemplateText(text) if template else text)
    return parts
