"""Fields of POST /v1/messages and /v1/messages/count_tokens, Anthropic's Messages API, and checks of single fields."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from radixrt.errors import RequestError, shown, unsupported
from radixrt.server.protocol.fields import RoutingFields

OLDEST_VERSION = "2023-06-01"
"""First version of the API, in the header anthropic-version, with the events that are served. Later ones have added to
them and changed none."""

_VERSION = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class ImageSource(msgspec.Struct, kw_only=True):
    """Picture of an image block: base64 data, or a URL. The format is read from the picture, not from `media_type`."""

    type: str | None = None
    data: str | None = None
    url: str | None = None
    media_type: str | None = None


class MessageBlock(msgspec.Struct, kw_only=True):
    """Content block; the type determines the fields that count. Others, such as cache_control, are ignored.

    Attributes:
        detail: of an image, as in OpenAI's APIs; Anthropic's API has no such field.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[MessageBlock] | None = None
    is_error: bool | None = None
    source: ImageSource | None = None
    detail: str | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[MessageBlock]


class MessagesTool(msgspec.Struct, kw_only=True):
    """Definition of a tool that the client runs; `type` is absent or "custom"."""

    name: str
    description: str | None = None
    input_schema: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None
    type: str | None = None
    defer_loading: bool | None = None
    input_examples: list[Any] | None = None
    allowed_callers: list[str] | None = None


class MessagesToolChoice(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingOptions(msgspec.Struct, kw_only=True):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: str
    schema: msgspec.Raw = msgspec.Raw()


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class MessagesMetadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class CountTokensRequest(RoutingFields, kw_only=True):
    """POST /v1/messages/count_tokens, and what the prompt of /v1/messages follows from.

    `cache_control` changes nothing here, since every prefix is cached. Fields after it are refused by name.
    """

    messages: list[InputMessage]
    system: str | list[MessageBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    container: Any = None
    mcp_servers: Any = None
    output_format: Any = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """POST /v1/messages"""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    metadata: MessagesMetadata | None = None


messages_decoder = msgspec.json.Decoder(MessagesRequest)
count_tokens_decoder = msgspec.json.Decoder(CountTokensRequest)

_INSTEAD = {
    "container": "run the code in your client, as a tool",
    "mcp_servers": "call the MCP server in your client, and define its tools in tools",
    "output_format": "send output_config.format",
}
"""Fields that would change the answer and are not served, and what to do about each."""

_TOOL_INSTEAD = {
    "defer_loading": "leave it out, so that the tool is in the prompt",
    "input_examples": "write the examples into the description",
}


def check_version(version: str | None) -> None:
    """Refuse a version of the API before `OLDEST_VERSION`; the header may be absent.

    Raises:
        RequestError: 400.
    """
    if version is not None and not (_VERSION.fullmatch(version) and version >= OLDEST_VERSION):
        raise RequestError(
            f"anthropic-version {shown(version)} is not served; send the header 'anthropic-version: {OLDEST_VERSION}'",
            param="anthropic-version",
        )


def check_served(body: CountTokensRequest) -> None:
    """Refuse fields that would change the answer and are not served.

    Raises:
        RequestError: names the field and what to do instead.
    """
    for name, instead in _INSTEAD.items():
        if getattr(body, name):
            raise unsupported(name, instead=instead)


def check_tool(place: str, tool: MessagesTool) -> None:
    """Refuse a tool that the client does not run, or whose definition holds what is not served.

    Args:
        place: the tool's place in the request, e.g. "tools[0]".

    Raises:
        RequestError: names the field and what to do instead.
    """
    if tool.type not in (None, "custom"):
        raise unsupported(
            f"{place}.type",
            f"{place}.type {shown(tool.type)}, a tool of Anthropic's own,",
            instead="define a tool with name, description and input_schema, and run it in your client",
        )
    for name, instead in _TOOL_INSTEAD.items():
        if getattr(tool, name):
            raise unsupported(f"{place}.{name}", instead=instead)
    if tool.allowed_callers not in (None, ["direct"]):
        raise unsupported(f"{place}.allowed_callers", f'{place}.allowed_callers but ["direct"]', instead="leave it out")
    if bytes(tool.input_schema) in (b"", b"null"):
        place = f"{place}.input_schema"
        raise RequestError(f"{place} is required", param=place, code="missing_field")
