"""Forms of the answers of the chat APIs, for the OpenAPI description: OpenAI's two, and Anthropic's."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from radixrt.server.openapi.answer_types import Answer, Enforcement, InputUsage, TokenReportAnswer, Usage

# --- chat completions ---


class TokenLogprob(Answer, kw_only=True):
    """Log-probability of a token; `bytes` are those of its text."""

    token: str
    logprob: float | None
    bytes: list[int]


class TokenLogprobs(TokenLogprob, kw_only=True):
    """Log-probability of an output token, and of its alternatives.

    With a constraint, `allowed` is the number of tokens that it allowed there, and `forced` says whether it determined
    the text.
    """

    top_logprobs: list[TokenLogprob]
    allowed: int | UnsetType = UNSET
    forced: bool | UnsetType = UNSET


class ChatLogprobs(Answer, kw_only=True):
    """Log-probabilities of the tokens of a choice, reasoning and calls included."""

    content: list[TokenLogprobs]
    refusal: None


class CalledFunction(Answer, kw_only=True):
    """Name and arguments of a call; the arguments are JSON text."""

    name: str
    arguments: str


class CalledTool(Answer, kw_only=True):
    """One call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Answer, kw_only=True):
    """The message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[CalledTool] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Answer, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET
    radixrt: Enforcement | UnsetType = UNSET


class ChatCompletion(TokenReportAnswer, kw_only=True):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None


class FunctionDelta(Answer, kw_only=True):
    """Name of a call, or a fragment of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolDelta(Answer, kw_only=True):
    """A call that begins, or a fragment of its arguments."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Answer, kw_only=True):
    """Part of a message that a chunk adds to it."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Answer, kw_only=True):
    """Part of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    radixrt: Enforcement | UnsetType = UNSET


class ChatChunk(TokenReportAnswer, kw_only=True):
    """Data of one event of a chat stream; the chunk with the usage has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str | None
    usage: Usage | UnsetType | None = UNSET


# --- responses ---


class InputText(Answer, tag_field="type", tag="input_text", kw_only=True):
    """Text of the user."""

    text: str


class OutputText(Answer, tag_field="type", tag="output_text", kw_only=True):
    """Text of the assistant."""

    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprobs]


class Refusal(Answer, tag_field="type", tag="refusal", kw_only=True):
    """Refusal of the assistant, in the conversation of a request."""

    refusal: str


class ReasoningText(Answer, tag_field="type", tag="reasoning_text", kw_only=True):
    """Text of the reasoning."""

    text: str


class SummaryText(Answer, tag_field="type", tag="summary_text", kw_only=True):
    """The reasoning, as a summary of itself."""

    text: str


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class MessageItem(Answer, tag_field="type", tag="message", kw_only=True):
    """A message."""

    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | OutputText | Refusal]


class CallItem(Answer, tag_field="type", tag="function_call", kw_only=True):
    """A call of a function."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Answer, tag_field="type", tag="function_call_output", kw_only=True):
    """Result of a call, which the client sent."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[InputText]


class ReasoningItem(Answer, tag_field="type", tag="reasoning", kw_only=True):
    """Reasoning of the model."""

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET


OutputItem = MessageItem | CallItem | ReasoningItem


class ResponseError(Answer, kw_only=True):
    """Error with which a response failed."""

    code: str
    message: str


class ResponseIncomplete(Answer, kw_only=True):
    """Reason for an incomplete response."""

    reason: str


class Response(Answer, kw_only=True):
    """Answer of /v1/responses; the members up to `truncation` repeat the request."""

    id: str
    object: Literal["response"]
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
    truncation: Literal["disabled"]
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    output: list[OutputItem]
    completed_at: int | None
    error: ResponseError | None
    incomplete_details: ResponseIncomplete | None
    usage: InputUsage | None
    radixrt: Enforcement | UnsetType = UNSET


class ResponseDeleted(Answer, kw_only=True):
    """A response was deleted."""

    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(Answer, kw_only=True):
    """A page of the items of a response's input."""

    object: Literal["list"]
    data: list[MessageItem | CallItem | CallOutputItem | ReasoningItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


# --- messages ---


class TextBlock(Answer, tag_field="type", tag="text", kw_only=True):
    """Text for the user."""

    text: str


class ThinkingBlock(Answer, tag_field="type", tag="thinking", kw_only=True):
    """Reasoning."""

    thinking: str
    signature: str


class ToolUseBlock(Answer, tag_field="type", tag="tool_use", kw_only=True):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class ThinkingTokens(Answer, kw_only=True):
    """Tokens of the output that are reasoning."""

    thinking_tokens: int


class MessageUsage(Answer, kw_only=True):
    """Tokens of a message."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class Message(Answer, kw_only=True):
    """Answer of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(Answer, kw_only=True):
    """Tokens of a message's prompt."""

    input_tokens: int
