"""Conversations of the Responses API: items as chat messages, and conversations as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat

import msgspec

from radixrt.chat.images import image_part, read_image
from radixrt.chat.types import ChatMessage, ContentPart, FunctionCall, ImageUrl, ToolCall
from radixrt.errors import RequestError, shown
from radixrt.server.answers.response_types import Item
from radixrt.vision.limits import MAX_REQUEST_BYTES

STORED_BYTES_PER_TOKEN = 32
"""Most JSON of a stored conversation for each token of the context, six times that of usual text. More fits into no
prompt, unless it is reasoning that the chat template does not write."""

STORED_IMAGE_BYTES = MAX_REQUEST_BYTES // 3 * 4 + 65_536
"""Most bytes of the URLs of all pictures of a stored conversation: those of a request, in base64."""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(list[ChatMessage])


def messages_of(
    instructions: str | None, earlier: Sequence[ChatMessage], items: Sequence[Item], own: Sequence[ChatMessage]
) -> list[ChatMessage]:
    """Return the conversation as chat messages.

    Reasoning, a message of the assistant and the calls after them become one message, as the model wrote them, so that
    the prompt of the next request begins with the tokens of this one. Incomplete calls are no calls.

    Args:
        earlier: messages of the continued conversation, as `item_messages` has made the messages.
        items: items of the request.
        own: the same as messages, by `item_messages`.

    Raises:
        RequestError: an output belongs to no call, or a picture cannot be read; names the field, which is
            previous_response_id for a picture of the continued conversation.
    """
    _check_outputs(earlier, items)
    turn = _AssistantTurn([] if instructions is None else [ChatMessage(role="system", content=instructions)])
    read_earlier = _with_images(earlier, repeat("previous_response_id"))
    for message in chain(read_earlier, _with_images(own, _image_places(items))):
        turn.add(message)
    return [_with_content(message) for message in turn.end()]


def item_messages(items: Iterable[Item]) -> list[ChatMessage]:
    """Return items as messages.

    The first and the last can be parts of a turn of the assistant, which items before and after these complete. So a
    message of the assistant without a text has no content.
    """
    turn = _AssistantTurn([])
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            turn.reason("".join(part["text"] for part in item.get("content") or item["summary"]))
        elif kind == "function_call":
            if item["status"] == "completed":
                function = FunctionCall(name=item["name"], arguments=item["arguments"])
                turn.call(ToolCall(function=function, id=item["call_id"], type="function"))
        elif kind == "function_call_output":
            turn.add(ChatMessage(role="tool", content=_parts_of(item["output"]), tool_call_id=item["call_id"]))
        elif item["role"] == "assistant":
            turn.say(_text_of(item["content"]))
        else:
            turn.add(ChatMessage(role=item["role"], content=_parts_of(item["content"])))
    return turn.end()


def _check_outputs(earlier: Iterable[ChatMessage], items: Sequence[Item]) -> None:
    called = {call.id for message in earlier for call in message.tool_calls or ()}
    for i, item in enumerate(items):
        if item["type"] == "function_call_output" and item["call_id"] not in called:
            raise RequestError(
                f"input[{i}].call_id: there is no function_call {shown(item['call_id'])} before this output; "
                "send it before, or continue its response by previous_response_id", param=f"input[{i}].call_id",
            )  # fmt: skip
        if item["type"] == "function_call" and item["status"] == "completed":
            called.add(item["call_id"])


def _text_of(content: str | list[Item]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in content)


def _parts_of(content: str | list[Item]) -> str | list[ContentPart]:
    """Return a content as a text, or, if it has pictures, as parts."""
    if isinstance(content, str) or all(part["type"] != "input_image" for part in content):
        return _text_of(content)
    return [
        ContentPart(type="image_url", image_url=ImageUrl(url=part["image_url"], detail=part["detail"]))
        if part["type"] == "input_image"
        else ContentPart(type="text", text=part["text"])
        for part in content
    ]


def _image_places(items: Sequence[Item]) -> Iterator[str]:
    """Yield the client's names of the pictures of a request, in order."""
    for i, item in enumerate(items):
        field = {"message": "content", "function_call_output": "output"}.get(item["type"], "")
        content = item.get(field, ())
        for j, part in enumerate(() if isinstance(content, str) else content):
            if part["type"] == "input_image":
                yield f"input[{i}].{field}[{j}]"


def _with_images(messages: Iterable[ChatMessage], places: Iterator[str]) -> Iterator[ChatMessage]:
    """Yield messages with their pictures read from the URLs.

    Args:
        places: the client's names of the pictures, for errors.
    """
    for message in messages:
        if isinstance(message.content, list):
            parts = [
                image_part(read_image(part.image_url.url, part.image_url.detail, next(places), "image_url"))
                if isinstance(part.image_url, ImageUrl)
                else part
                for part in message.content
            ]
            message = msgspec.structs.replace(message, content=parts)
        yield message


def _with_content(message: ChatMessage) -> ChatMessage:
    if message.role != "assistant" or message.content is not None or message.tool_calls:
        return message
    return msgspec.structs.replace(message, content="")


class _AssistantTurn:
    """Collects the parts of one message of the assistant: reasoning, then text, then calls."""

    def __init__(self, messages: list[ChatMessage]) -> None:
        self._messages = messages
        self._reasoning: list[str] = []
        self._text: str | None = None
        self._calls: list[ToolCall] = []

    def reason(self, text: str) -> None:
        if self._text is not None or self._calls:
            self.end()
        self._reasoning.append(text)

    def say(self, text: str) -> None:
        if self._text is not None or self._calls:
            self.end()
        self._text = text

    def call(self, call: ToolCall) -> None:
        self._calls.append(call)

    def add(self, message: ChatMessage) -> None:
        """Add a message: the parts of the assistant's, or another message, which ends the turn."""
        if message.role != "assistant":
            self.end().append(message)
            return
        if message.reasoning_content is not None:
            self.reason(message.reasoning_content)
        if isinstance(message.content, str):
            self.say(message.content)
        for call in message.tool_calls or ():
            self.call(call)

    def end(self) -> list[ChatMessage]:
        """Append the message, if there is one; return all messages."""
        reasoning = "".join(self._reasoning) or None
        if self._text is not None or self._calls or reasoning:
            self._messages.append(
                ChatMessage(
                    role="assistant", content=self._text, tool_calls=self._calls or None, reasoning_content=reasoning
                )
            )
        self._reasoning, self._text, self._calls = [], None, []
        return self._messages


# --- stored conversations ---

StoredConversation = tuple[bytes, ...]
"""A conversation: JSON arrays of messages, which it shares with the conversations that it continues."""


def encode_messages(messages: Sequence[ChatMessage]) -> bytes:
    """Return messages as a part of a stored conversation."""
    return _encode(messages)


def decode_messages(conversation: StoredConversation) -> list[ChatMessage]:
    return [message for part in conversation for message in _decoder.decode(part)]


def num_image_bytes(messages: Iterable[ChatMessage]) -> int:
    """Return the number of bytes of the URLs of all pictures of messages."""
    parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
    return sum(len(part.image_url.url or "") for part in parts if isinstance(part.image_url, ImageUrl))


def bounded(
    conversation: StoredConversation, max_bytes: int, image_bytes: int, keeps_reasoning: Callable[[], bool]
) -> StoredConversation | None:
    """Return a conversation as it is stored: one of more than `max_bytes` loses the reasoning that no prompt shows.

    Args:
        max_bytes: most JSON without the URLs of pictures.
        image_bytes: of the URLs of all its pictures.
        keeps_reasoning: the chat template writes reasoning that stands before the last message of the user.

    Returns:
        None if the conversation is too long all the same.
    """
    if image_bytes > STORED_IMAGE_BYTES:
        return None
    max_bytes += image_bytes
    if sum(map(len, conversation)) <= max_bytes:
        return conversation
    if keeps_reasoning():
        return None
    messages = decode_messages(conversation)
    last = max((i for i, message in enumerate(messages) if message.role == "user"), default=0)
    messages[:last] = [
        _with_content(msgspec.structs.replace(message, reasoning_content=None)) for message in messages[:last]
    ]
    shorter = _encode(messages)
    return (shorter,) if len(shorter) <= max_bytes else None
