"""Fields of POST /v1/responses: their types, and the checks that need no conversation.

Unlike the other routes, this one refuses fields that it does not know: its clients send what an answer depends on (a
built-in tool, a prompt template, a conversation) under names of their own, and would take an answer without it for one
with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from radixrt.errors import RequestError, shown, unsupported
from radixrt.server.protocol.fields import RoutingFields

MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512
LOGPROBS = "message.output_text.logprobs"
REASONING = "reasoning.encrypted_content"
INCLUDABLE = (LOGPROBS, REASONING)
"""Values of `include`. Reasoning items always have their text, with which they can be sent back, and need no encrypted
content."""


class InputContent(msgspec.Struct, kw_only=True):
    """Part of a content: of a message, of the output of a call, or of reasoning and its summary."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """Item of `input`; the type determines the fields that count. Others are ignored."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[InputContent] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputContent] | None = None
    summary: list[InputContent] | None = None
    encrypted_content: str | None = None


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Any = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Any = None
    context: Any = None
    mode: Any = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class ResponseTool(msgspec.Struct, kw_only=True):
    """Definition of a function; a tool of another type has other fields and is refused by its type."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class NamedTool(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None


class ResponseToolChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[NamedTool] | None = None


class UnsupportedResponseFields(RoutingFields, kw_only=True):
    """Fields of OpenAI's Responses API that radixrt refuses by name."""

    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    background_options: Any = None
    image: Any = None
    access_programs: Any = None


class ResponsesRequest(UnsupportedResponseFields, kw_only=True):
    """POST /v1/responses"""

    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    allow_control_tokens: bool | None = None


responses_decoder = msgspec.json.Decoder(ResponsesRequest)

INSTEAD = {
    "conversation": "continue a response by previous_response_id, or send its items in input",
    "prompt": "send the text of the template in instructions and input",
    "context_management": "send a shorter input",
    "messages": "send the conversation in input",
    "max_tokens": "it is called max_output_tokens here",
    "max_completion_tokens": "it is called max_output_tokens here",
    "response_format": "it is called text.format here",
    "reasoning_effort": "it is called reasoning.effort here",
    "logprobs": f"send include [{LOGPROBS!r}]",
    "n": "send the request n times; the prompt is computed once",
    "stop": "POST /v1/chat/completions takes stop strings",
    "functions": "send tools",
}  # fmt: skip
"""Replacements of fields that are not known here, or known and not served."""


def check_known(body: ResponsesRequest, unknown: Sequence[str]) -> None:
    """Refuse fields that are not served.

    Args:
        unknown: names of fields of the request that `ResponsesRequest` does not have.

    Raises:
        RequestError: naming the first of them.
    """
    for name in UnsupportedResponseFields.__struct_fields__:
        if name not in RoutingFields.__struct_fields__ and getattr(body, name) is not None:
            raise unsupported(name, instead=INSTEAD.get(name, "leave it out"))
    for name in unknown:
        fix = INSTEAD.get(name, "leave it out")
        raise RequestError(f"{name} is not a field of /v1/responses; {fix}", param=name, code="unknown_parameter")
    if body.truncation not in (None, "disabled"):
        raise unsupported("truncation", f"truncation {shown(body.truncation)}", instead="send a shorter input")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is only allowed with stream", param="stream_options")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise unsupported("stream_options.include_obfuscation", instead="leave it out")
    _check_background(body)
    _check_metadata(body.metadata or {})
    if body.max_tool_calls is not None and body.max_tool_calls < 1:
        raise RequestError("max_tool_calls must be at least 1", param="max_tool_calls")
    for i, name in enumerate(body.include or ()):
        check_includable(name, f"include[{i}]")


def _check_background(body: ResponsesRequest) -> None:
    if body.background and body.stream:
        raise unsupported("stream", "a stream of a background response", instead="GET /v1/responses/{id} shows it")
    if body.background and body.store is False:
        raise RequestError("a background response must be stored; leave store out", param="store")


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_METADATA:
        raise RequestError(f"metadata has at most {MAX_METADATA} pairs", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_CHARS or len(value) > MAX_METADATA_VALUE_CHARS:
            raise RequestError(
                f"metadata: a key has at most {MAX_METADATA_KEY_CHARS} characters and a value "
                f"{MAX_METADATA_VALUE_CHARS}", param="metadata",
            )  # fmt: skip


def check_includable(name: str, param: str) -> None:
    if name not in INCLUDABLE:
        raise unsupported(param, shown(name), instead=f"there are {' and '.join(INCLUDABLE)}")
