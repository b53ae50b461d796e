"""What clients may send to /v1/chat/completions; see `radixrt.server.protocol` for what holds for all routes."""

from __future__ import annotations

from typing import Any

import msgspec

from radixrt.server.protocol import OpenAIFields


class ContentPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class PastFunction(msgspec.Struct, kw_only=True):
    """A call in the conversation so far; the arguments are JSON text, as clients get it, or already a value."""

    name: str
    arguments: Any = None


class PastCall(msgspec.Struct, kw_only=True):
    function: PastFunction
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    function_call: PastFunction | None = None
    reasoning_content: str | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    type: str = "function"
    function: FunctionDefinition | None = None


class ToolName(msgspec.Struct, kw_only=True):
    name: str


class ToolReference(msgspec.Struct, kw_only=True):
    function: ToolName
    type: str = "function"


class AllowedTools(msgspec.Struct, kw_only=True):
    mode: str
    tools: list[ToolReference]


class ToolChoice(msgspec.Struct, kw_only=True):
    type: str
    function: ToolName | None = None
    allowed_tools: AllowedTools | None = None


class ChatRequest(OpenAIFields, kw_only=True):
    """POST /v1/chat/completions"""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: str | ToolName | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


chat_decoder = msgspec.json.Decoder(ChatRequest)
