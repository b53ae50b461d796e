"""Items of a request to the Responses API, checked and with ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from radixrt.chat.decoding import decode_text
from radixrt.chat.images import instead_of
from radixrt.errors import RequestError, shown, unsupported
from radixrt.server.answers import response_types as types
from radixrt.server.answers.response_types import Item
from radixrt.server.answers.responses import new_id
from radixrt.server.protocol.response_fields import InputContent, InputItem

ROLES: tuple[types.Role, ...] = ("user", "assistant", "system", "developer")
TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
TEXT_TYPES = ("input_text", "output_text", "text")

_item_decoder = msgspec.json.Decoder(Item)


def read_items(
    given: str | Sequence[InputItem], find: Callable[[str], bytes | None], max_referred_bytes: int
) -> list[Item]:
    """Return the items of `input`, each with an id.

    Args:
        find: returns the JSON of the stored item of an id, to which an item_reference refers.
        max_referred_bytes: most JSON of all stored items that the input refers to.

    Raises:
        RequestError: naming the item and the field in it; 404 for a reference to an unknown item.
    """
    if isinstance(given, str):
        return _builtins([types.InputMessageItem(id=new_id("msg"), role="user", content=[types.InputText(given)])])
    items: list[types.InputItem | Item] = []
    referred = _References(find, max_referred_bytes)
    for i, item in enumerate(given):
        place = f"input[{i}]"
        if item.type == "item_reference":
            items.append(referred.read(item, place))
        else:
            items.append(_READERS.get(_type_of(item, place), _unknown)(item, place))
    return _builtins(items)


def _builtins(items: Sequence[types.InputItem | Item]) -> list[Item]:
    return msgspec.to_builtins(items)  # type: ignore[no-any-return]


def _type_of(item: InputItem, place: str) -> str:
    if item.type is None and item.role is None:
        raise RequestError(f"{place}.type is required", param=f"{place}.type", code="missing_field")
    return item.type or "message"


def _unknown(item: InputItem, place: str) -> types.InputItem:
    raise unsupported(f"{place}.type", f"an item of type {shown(item.type)}", instead=f"there are {', '.join(TYPES)}")


class _References:
    """Items that the references of one request stand for.

    A reference is a few bytes and the item perhaps megabytes. Each item is referred to once at most, and the bytes of
    all items are counted before any item is decoded.
    """

    def __init__(self, find: Callable[[str], bytes | None], max_bytes: int) -> None:
        self._find = find
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ids: set[str] = set()

    def read(self, item: InputItem, place: str) -> Item:
        field, item_id = f"{place}.id", _required(item.id, f"{place}.id")
        if item_id in self._ids:
            raise RequestError(
                f"{field}: an earlier item_reference refers to {shown(item_id)} already; refer to each item once",
                param=field, code="repeated_reference",
            )  # fmt: skip
        self._ids.add(item_id)
        found = self._find(item_id)
        if found is None:
            raise RequestError(
                f"{field}: no stored response has the item {shown(item_id)}; send the item itself",
                param=field, code="item_not_found", status=404,
            )  # fmt: skip
        self._bytes += len(found)
        if self._bytes > self._max_bytes:
            raise RequestError(
                f"{field}: the items that the input refers to are more than {self._max_bytes} bytes of JSON "
                "(max_body_bytes); refer to fewer items",
                param=field, code="references_too_large",
            )  # fmt: skip
        decoded: Item = _item_decoder.decode(found)
        return decoded


def _read_message(item: InputItem, place: str) -> types.InputItem:
    role = next((role for role in ROLES if role == item.role), None)
    if role is None:
        raise RequestError(
            f"{place}.role must be one of {', '.join(ROLES)}, not {shown(item.role)}", param=f"{place}.role"
        )
    content = _content(item.content, f"{place}.content", role)
    return types.InputMessageItem(id=item.id or new_id("msg"), role=role, content=content)


def _content(given: str | list[InputContent] | None, place: str, role: str) -> list[types.Content]:
    """Return the parts of a content: texts, refusals of the assistant, and pictures of the user and of outputs.

    Args:
        role: of the message, or "tool" for the output of a call.
    """
    if given is None:
        raise RequestError(f"{place} is required", param=place, code="missing_field")
    parts = [InputContent(type="text", text=given)] if isinstance(given, str) else given
    of_assistant = role == "assistant"
    made: list[types.Content] = []
    for i, part in enumerate(parts):
        if part.type == "input_image":
            made.append(_image(part, f"{place}[{i}]", role))
            continue
        if part.type == "refusal" and of_assistant:
            made.append(types.Refusal(_required(part.refusal, f"{place}[{i}].refusal")))
            continue
        if part.type not in TEXT_TYPES:
            instead = instead_of(part.type, "input_image") or "send its text"
            raise unsupported(f"{place}[{i}].type", f"a content part of type {shown(part.type)}", instead=instead)
        text = _required(part.text, f"{place}[{i}].text")
        made.append(types.OutputText(text) if of_assistant else types.InputText(text))
    return made


def _image(part: InputContent, place: str, role: str) -> types.InputImage:
    """Return a picture. Its URL is read with the conversation, by `response_messages.messages_of`."""
    if role not in ("user", "tool"):
        raise RequestError(f"{place}: images go into messages of the user and outputs of calls", param=place)
    if part.file_id is not None:
        raise unsupported(f"{place}.file_id", instead="send the image in image_url, as a data: URL")
    return types.InputImage(_required(part.image_url, f"{place}.image_url"), part.detail or "auto")


def _read_call(item: InputItem, place: str) -> types.InputItem:
    arguments = _required(item.arguments, f"{place}.arguments")
    if not isinstance(decode_text(arguments, f"{place}.arguments") if arguments else {}, dict):
        raise RequestError(f"{place}.arguments must be the JSON text of an object", param=f"{place}.arguments")
    return types.InputCallItem(
        id=item.id or new_id("fc"),
        call_id=_required(item.call_id, f"{place}.call_id"),
        name=_required(item.name, f"{place}.name"),
        arguments=arguments,
    )


def _read_call_output(item: InputItem, place: str) -> types.InputItem:
    call_id = _required(item.call_id, f"{place}.call_id")
    output = item.output if isinstance(item.output, str) else _content(item.output, f"{place}.output", "tool")
    return types.CallOutputItem(id=item.id or new_id("fco"), call_id=call_id, output=output)


def _read_reasoning(item: InputItem, place: str) -> types.InputItem:
    """Read reasoning with its text, in the content or else in the summary."""
    content = item.content
    if isinstance(content, str):
        content = [InputContent(type="reasoning_text", text=content)]
    read: dict[str, list[str]] = {}
    for field, parts, kind in (("content", content, "reasoning_text"), ("summary", item.summary, "summary_text")):
        for i, part in enumerate(parts or ()):
            if part.type != kind:
                raise unsupported(f"{place}.{field}[{i}].type", f"a part of type {shown(part.type)}", instead=kind)
            read.setdefault(field, []).append(_required(part.text, f"{place}.{field}[{i}].text"))
    if item.encrypted_content is not None and not read:
        raise unsupported(f"{place}.encrypted_content", instead="send the reasoning in content, or leave the item out")
    return types.InputReasoningItem(
        id=item.id or new_id("rs"),
        summary=[types.SummaryText(text) for text in read.get("summary", ())],
        content=[types.ReasoningText(text) for text in read.get("content", ())],
    )


_READERS: dict[str, Callable[[InputItem, str], types.InputItem]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_call_output,
    "reasoning": _read_reasoning,
}


def _required(value: str | None, field: str) -> str:
    if value is None:
        raise RequestError(f"{field} is required", param=field, code="missing_field")
    return value
