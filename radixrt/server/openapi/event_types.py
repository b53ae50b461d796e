"""Forms of the events in streams of the Responses API and the Messages API, for the OpenAPI description.

Each event is the `data` of a server-sent event, whose name is the event's `type`. Streams of the other routes have
events without names, and end with the data `[DONE]`.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from radixrt.server.openapi.answer_types import Answer, MessagesErrorDetail
from radixrt.server.openapi.chat_types import (
    Message,
    MessageUsage,
    OutputItem,
    OutputText,
    ReasoningText,
    Response,
    SummaryText,
    TextBlock,
    ThinkingBlock,
    TokenLogprobs,
    ToolUseBlock,
)

# --- messages ---


class TextDelta(Answer, tag_field="type", tag="text_delta", kw_only=True):
    """More text."""

    text: str


class ThinkingDelta(Answer, tag_field="type", tag="thinking_delta", kw_only=True):
    """More reasoning."""

    thinking: str


class SignatureDelta(Answer, tag_field="type", tag="signature_delta", kw_only=True):
    """Signature of the reasoning, which proves nothing."""

    signature: str


class InputJsonDelta(Answer, tag_field="type", tag="input_json_delta", kw_only=True):
    """More JSON text of a call's input."""

    partial_json: str


class MessageStart(Answer, tag_field="type", tag="message_start", kw_only=True):
    """The message before its content."""

    message: Message


class BlockStart(Answer, tag_field="type", tag="content_block_start", kw_only=True):
    """A block of the content begins."""

    index: int
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class BlockDelta(Answer, tag_field="type", tag="content_block_delta", kw_only=True):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(Answer, tag_field="type", tag="content_block_stop", kw_only=True):
    """A block is complete."""

    index: int


class StopDelta(Answer, kw_only=True):
    """Reason for the end of the message."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Answer, tag_field="type", tag="message_delta", kw_only=True):
    """End of the message, and its usage."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(Answer, tag_field="type", tag="message_stop", kw_only=True):
    """The last event."""


class Ping(Answer, tag_field="type", tag="ping", kw_only=True):
    """Keeps the connection open."""


class MessageErrorEvent(Answer, tag_field="type", tag="error", kw_only=True):
    """An error that ends the stream."""

    error: MessagesErrorDetail
    request_id: str


MessageEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | MessageErrorEvent
)


# --- responses ---


class ResponseEventBase(Answer, kw_only=True):
    """Member of every event: its number in the stream."""

    sequence_number: int


class WholeResponse(ResponseEventBase, kw_only=True):
    """The response as it is now."""

    response: Response


class ResponseCreated(WholeResponse, tag_field="type", tag="response.created", kw_only=True):
    """The response has begun."""


class ResponseInProgress(WholeResponse, tag_field="type", tag="response.in_progress", kw_only=True):
    """The response is being generated."""


class ResponseCompleted(WholeResponse, tag_field="type", tag="response.completed", kw_only=True):
    """The response is complete."""


class ResponseCutShort(WholeResponse, tag_field="type", tag="response.incomplete", kw_only=True):
    """The response has ended before it was complete."""


class ResponseFailed(WholeResponse, tag_field="type", tag="response.failed", kw_only=True):
    """The response has ended with an error."""


class ItemEvent(ResponseEventBase, kw_only=True):
    """An item of the output."""

    item: OutputItem
    output_index: int


class ItemAdded(ItemEvent, tag_field="type", tag="response.output_item.added", kw_only=True):
    """An item begins."""


class ItemDone(ItemEvent, tag_field="type", tag="response.output_item.done", kw_only=True):
    """An item is complete."""


class OfItem(ResponseEventBase, kw_only=True):
    """Place of the item that an event is about."""

    item_id: str
    output_index: int


class ContentEvent(OfItem, kw_only=True):
    """A part of an item's content."""

    content_index: int
    part: OutputText | ReasoningText


class ContentAdded(ContentEvent, tag_field="type", tag="response.content_part.added", kw_only=True):
    """A part of the content begins."""


class ContentDone(ContentEvent, tag_field="type", tag="response.content_part.done", kw_only=True):
    """A part of the content is complete."""


class TextAdded(OfItem, tag_field="type", tag="response.output_text.delta", kw_only=True):
    """More text."""

    content_index: int
    delta: str
    logprobs: list[TokenLogprobs]


class TextDone(OfItem, tag_field="type", tag="response.output_text.done", kw_only=True):
    """The whole text."""

    content_index: int
    text: str
    logprobs: list[TokenLogprobs]


class ReasoningAdded(OfItem, tag_field="type", tag="response.reasoning_text.delta", kw_only=True):
    """More reasoning."""

    content_index: int
    delta: str


class ReasoningDone(OfItem, tag_field="type", tag="response.reasoning_text.done", kw_only=True):
    """The whole reasoning."""

    content_index: int
    text: str


class SummaryPartEvent(OfItem, kw_only=True):
    """A part of the summary."""

    summary_index: int
    part: SummaryText


class SummaryPartAdded(SummaryPartEvent, tag_field="type", tag="response.reasoning_summary_part.added", kw_only=True):
    """A part of the summary begins."""


class SummaryPartDone(SummaryPartEvent, tag_field="type", tag="response.reasoning_summary_part.done", kw_only=True):
    """A part of the summary is complete."""


class SummaryAdded(OfItem, tag_field="type", tag="response.reasoning_summary_text.delta", kw_only=True):
    """More of the summary."""

    summary_index: int
    delta: str


class SummaryDone(OfItem, tag_field="type", tag="response.reasoning_summary_text.done", kw_only=True):
    """The whole summary."""

    summary_index: int
    text: str


class ArgumentsAdded(OfItem, tag_field="type", tag="response.function_call_arguments.delta", kw_only=True):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(OfItem, tag_field="type", tag="response.function_call_arguments.done", kw_only=True):
    """The whole arguments of a call."""

    name: str
    arguments: str


class ResponseErrorDetail(Answer, kw_only=True):
    """An error, as in the bodies of errors."""

    message: str
    type: str
    param: str | None
    code: str | None


class ResponseErrorEvent(ResponseEventBase, tag_field="type", tag="error", kw_only=True):
    """An error, before `response.failed`."""

    message: str
    code: str
    param: str | None
    error: ResponseErrorDetail | UnsetType = UNSET


ResponseEvent = (
    ResponseCreated | ResponseInProgress | ResponseCompleted | ResponseCutShort | ResponseFailed | ItemAdded | ItemDone
    | ContentAdded | ContentDone | TextAdded | TextDone | ReasoningAdded | ReasoningDone | SummaryPartAdded
    | SummaryPartDone | SummaryAdded | SummaryDone | ArgumentsAdded | ArgumentsDone | ResponseErrorEvent
)  # fmt: skip
