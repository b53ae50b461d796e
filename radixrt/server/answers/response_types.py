"""Types of the Responses API: responses, their items, and the events of their streams."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from radixrt.server.answers.base import Answer
from radixrt.server.answers.errors import ErrorDetail
from radixrt.server.answers.parts import Enforcement, InputUsage, TokenLogprobs

# --- parts of items ---


class InputText(Answer, tag_field="type", tag="input_text"):
    """Text of the user."""

    text: str


class OutputText(Answer, tag_field="type", tag="output_text"):
    """Text of the assistant."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprobs] = []


class Refusal(Answer, tag_field="type", tag="refusal"):
    """Refusal of the assistant, in the conversation of a request."""

    refusal: str


class InputImage(Answer, tag_field="type", tag="input_image"):
    """Picture of the user: a data: URL, or an https URL that is fetched for each answer."""

    image_url: str
    detail: str = "auto"


Content = InputText | InputImage | OutputText | Refusal


class ReasoningText(Answer, tag_field="type", tag="reasoning_text"):
    """Text of the reasoning."""

    text: str


class SummaryText(Answer, tag_field="type", tag="summary_text"):
    """The reasoning, as a summary of itself."""

    text: str


# --- items of the output ---

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class MessageItem(Answer):
    """A message of the assistant."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class CallItem(Answer):
    """A call of a function."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningItem(Answer):
    """Reasoning of the model; the text is in the content, or, for clients that read only summaries, in the summary."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET


OutputItem = MessageItem | CallItem | ReasoningItem

# --- items of the input ---

Role = Literal["user", "assistant", "system", "developer"]


class InputMessageItem(Answer, kw_only=True):
    """A message of a request."""

    id: str
    type: Literal["message"] = "message"
    role: Role
    status: ItemStatus = "completed"
    content: list[Content]


class InputCallItem(Answer, kw_only=True):
    """A call of a function, which the client repeats."""

    id: str
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class CallOutputItem(Answer, kw_only=True):
    """Result of a call, which the client sent."""

    id: str
    type: Literal["function_call_output"] = "function_call_output"
    call_id: str
    output: str | list[Content]
    status: ItemStatus = "completed"


class InputReasoningItem(Answer, kw_only=True):
    """Reasoning of the model, which the client repeats."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    summary: list[SummaryText]
    content: list[ReasoningText]
    status: ItemStatus = "completed"


InputItem = InputMessageItem | InputCallItem | CallOutputItem | InputReasoningItem

Item = dict[str, Any]
"""An item of the input or the output, decoded."""

# --- responses ---

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseError(Answer):
    """Error with which a response failed."""

    code: str
    message: str


class ResponseIncomplete(Answer):
    """Reason for an incomplete response."""

    reason: str


class Response(Answer, kw_only=True):
    """Answer of /v1/responses; the members up to `truncation` repeat the request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    store: bool
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    status: ResponseStatus = "queued"
    output: list[OutputItem] = []
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: ResponseIncomplete | None = None
    usage: InputUsage | None = None
    radixrt: Enforcement | UnsetType = UNSET


class ResponseDeleted(Answer, kw_only=True):
    """A response was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItems(Answer, kw_only=True):
    """A page of the items of a response's input."""

    object: Literal["list"] = "list"
    data: list[InputItem | OutputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


# --- events ---


class ResponseEvent(Answer, kw_only=True, tag_field="type"):
    """Member of every event: its number in the stream, which comes last."""

    sequence_number: int = 0


class ResponseCreated(ResponseEvent, tag="response.created"):
    """The response has begun."""

    response: Response


class ResponseInProgress(ResponseCreated, tag="response.in_progress"):
    """The response is being generated."""


class ResponseCompleted(ResponseCreated, tag="response.completed"):
    """The response is complete."""


class ResponseCutShort(ResponseCreated, tag="response.incomplete"):
    """The response has ended before it was complete."""


class ResponseFailed(ResponseCreated, tag="response.failed"):
    """The response has ended with an error."""


class ItemAdded(ResponseEvent, tag="response.output_item.added"):
    """An item of the output begins."""

    item: OutputItem
    output_index: int


class ItemDone(ItemAdded, tag="response.output_item.done"):
    """An item of the output is complete."""


class OfItem(ResponseEvent, tag=""):
    """Place of the item that an event is about."""

    item_id: str
    output_index: int


class ContentAdded(OfItem, tag="response.content_part.added"):
    """A part of the content begins."""

    content_index: int
    part: OutputText | ReasoningText


class ContentDone(ContentAdded, tag="response.content_part.done"):
    """A part of the content is complete."""


class TextAdded(OfItem, tag="response.output_text.delta"):
    """More text."""

    content_index: int
    delta: str
    logprobs: list[TokenLogprobs]


class TextDone(OfItem, tag="response.output_text.done"):
    """The whole text."""

    content_index: int
    text: str
    logprobs: list[TokenLogprobs]


class ReasoningAdded(OfItem, tag="response.reasoning_text.delta"):
    """More reasoning."""

    content_index: int
    delta: str


class ReasoningDone(OfItem, tag="response.reasoning_text.done"):
    """The whole reasoning."""

    content_index: int
    text: str


class SummaryPartAdded(OfItem, tag="response.reasoning_summary_part.added"):
    """A part of the summary begins."""

    summary_index: int
    part: SummaryText


class SummaryPartDone(SummaryPartAdded, tag="response.reasoning_summary_part.done"):
    """A part of the summary is complete."""


class SummaryAdded(OfItem, tag="response.reasoning_summary_text.delta"):
    """More of the summary."""

    summary_index: int
    delta: str


class SummaryDone(OfItem, tag="response.reasoning_summary_text.done"):
    """The whole summary."""

    summary_index: int
    text: str


class ArgumentsAdded(OfItem, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(OfItem, tag="response.function_call_arguments.done"):
    """The whole arguments of a call."""

    name: str
    arguments: str


class ResponseErrorEvent(ResponseEvent, tag="error"):
    """An error, before `response.failed`.

    OpenAI's documentation has the members themselves, its service has them in `error`; clients read either.
    """

    message: str
    param: str | None
    code: str
    error: ErrorDetail


AnyResponseEvent = (
    ResponseCreated | ResponseInProgress | ResponseCompleted | ResponseCutShort | ResponseFailed | ItemAdded | ItemDone
    | ContentAdded | ContentDone | TextAdded | TextDone | ReasoningAdded | ReasoningDone | SummaryPartAdded
    | SummaryPartDone | SummaryAdded | SummaryDone | ArgumentsAdded | ArgumentsDone | ResponseErrorEvent
)  # fmt: skip
