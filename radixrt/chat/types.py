"""Plain data of a conversation: messages, tool definitions and the choice among tools, as in the OpenAI API.

Each class is a msgspec Struct, so that one decoder checks the types of a whole request and names the wrong field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class ImageUrl(msgspec.Struct, kw_only=True):
    url: str | None = None
    detail: str | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None


class FunctionCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An earlier call. The arguments are JSON text, as clients receive them, or an already decoded value."""

    name: str
    arguments: Any = None


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    function: FunctionCall
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
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


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Messages and the options of the chat template that renders them; None stands for the default of each option.

    Attributes:
        template_kwargs: variables for the chat template.
        reasoning_effort: passed to the template under all names by which templates know the effort.
        add_generation_prompt: end the prompt with the header of an assistant's message.
        continue_final_message: end the prompt inside the last message.
        thinking_token_budget: largest number of tokens of the reasoning before the answer, if the model reasons.
        allow_control_tokens: recognize control tokens in the messages' texts, not only in the chat template's.
    """

    messages: Sequence[ChatMessage]
    template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    thinking_token_budget: int | None = None
    allow_control_tokens: bool = False


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a request and the choice among them; `functions` and `function_call` are OpenAI's older form.

    Attributes:
        flat: the client wrote each definition without the object `function` around it, as in the Responses API, and
            errors name its fields so.
        schema_field: the client's name for `parameters`.
    """

    tools: Sequence[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Sequence[FunctionDefinition] | None = None
    function_call: str | ToolName | None = None
    flat: bool = False
    schema_field: str = "parameters"
