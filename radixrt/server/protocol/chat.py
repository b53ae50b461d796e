"""The typed body of /v1/chat/completions; see `radixrt.server.protocol.fields` for the rules of all routes."""

from __future__ import annotations

from typing import Any

import msgspec

from radixrt.chat.types import (
    ChatMessage,
    Conversation,
    FunctionDefinition,
    ToolChoice,
    ToolDefinition,
    ToolName,
    ToolOptions,
)
from radixrt.server.protocol.fields import OpenAIFields


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

    def conversation(self) -> Conversation:
        return Conversation(
            messages=self.messages,
            template_kwargs=self.chat_template_kwargs,
            reasoning_effort=self.reasoning_effort,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )

    def tool_options(self) -> ToolOptions:
        return ToolOptions(
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            functions=self.functions,
            function_call=self.function_call,
        )


chat_decoder = msgspec.json.Decoder(ChatRequest)
