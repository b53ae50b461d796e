"""`chat_input`: a conversation of Python objects, pictures among them, as the input of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, get_args

import msgspec

from radixrt.errors import RequestError, shown
from radixrt.messages.parts import ChatPrompt, Detail, ImageInput
from radixrt.vision.encode import picture_bytes
from radixrt.vision.fetch import is_data_url

Messages = Sequence[Mapping[str, Any]]
"""Conversation, which the model's chat template renders: {"role", "content"} objects. A content is a text or a list of
parts: {"type": "text", "text"}, {"type": "image", "image"} with a picture as `picture_bytes` takes it, or
{"type": "image_url", "image_url"} with a data: URL."""


def is_messages(prompt: object) -> TypeGuard[Messages]:
    """Whether a prompt is a conversation, by its first element."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], Mapping)


def chat_input(messages: Messages) -> ChatPrompt:
    """Return the input for a conversation, which ends with the header of an answer.

    Raises:
        RequestError: naming the message, or the part of its content.
    """
    images: list[ImageInput] = []
    plain = [_message(message, f"messages[{i}]", images) for i, message in enumerate(messages)]
    try:
        encoded = msgspec.json.encode(plain)
    except (TypeError, ValueError) as error:
        raise RequestError(f"messages must hold JSON values beside pictures: {error}", param="messages") from None
    return ChatPrompt(encoded, images=images)


def read_images(pictures: object) -> list[ImageInput]:
    """Return the pictures of a call; raises RequestError naming `images`, or a picture in the list."""
    if not isinstance(pictures, (list, tuple)) or not pictures:
        raise RequestError(f"images must be a list of at least one picture, not {shown(pictures)}", param="images")
    return [ImageInput(picture_bytes(each, f"images[{i}]"), "auto", f"images[{i}]") for i, each in enumerate(pictures)]


def text_about(images: list[ImageInput], text: object) -> ChatPrompt:
    """Return the input for a text about pictures, a message of the user; raises RequestError for another prompt."""
    if not isinstance(text, str):
        raise RequestError("images come with a prompt that is a text; put them into the messages", param="images")
    content = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
    return ChatPrompt(msgspec.json.encode([{"role": "user", "content": content}]), images=images)


def _message(message: object, param: str, images: list[ImageInput]) -> dict[str, Any]:
    """Return a message for the template; its pictures are appended to `images`."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"{param} must be a message with a role, not {shown(message)}", param=param)
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": content}
    param = f"{param}.content"
    if not isinstance(content, (list, tuple)):
        raise RequestError(f"{param} must be a text or a list of parts, not {shown(content)}", param=param)
    before = len(images)
    parts = [_part(part, f"{param}[{i}]", images) for i, part in enumerate(content)]
    if len(images) == before:
        return {**message, "content": "".join(part["text"] for part in parts)}
    if message["role"] != "user":
        place = images[before].param
        raise RequestError(f"{place}: images go into messages of the user", param=place)
    return {**message, "content": parts}


def _part(part: object, param: str, images: list[ImageInput]) -> dict[str, str]:
    """Return a part for the template; its picture is appended to `images`."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if isinstance(part, Mapping) and kind in ("image", "image_url"):
        given = part.get(kind)
        if isinstance(given, Mapping):
            part, given = given, given.get("url")
        if kind == "image_url" and not (isinstance(given, str) and is_data_url(given)):
            raise RequestError(
                f'{param}.image_url must hold a data: URL; for a path or bytes, send {{"type": "image", "image": ...}}',
                param=f"{param}.image_url",
            )
        data = picture_bytes(given, f"{param}.{kind}")
        images.append(ImageInput(data, _detail(part.get("detail"), param), f"{param}.{kind}"))
        return {"type": "image"}
    raise RequestError(
        f'{param} must be {{"type": "text", "text": ...}} or {{"type": "image", "image": ...}}, not {shown(part)}',
        param=param,
    )


def _detail(given: object, param: str) -> Detail:
    found: Detail | None = next((each for each in get_args(Detail) if each == (given or "auto")), None)
    if found is None:
        choices = ", ".join(get_args(Detail))
        raise RequestError(f"{param}.detail must be {choices}, not {shown(given)}", param=f"{param}.detail")
    return found
