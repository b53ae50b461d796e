"""`plan_messages`: a request of Anthropic's Messages API as a `ChatPlan`, in the words of `radixrt.chat`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixrt.chat.constraint import RequestedConstraint, raw_text, renamed
from radixrt.chat.dialect import Dialect
from radixrt.chat.images import image_part, instead_of, read_base64_image, read_image
from radixrt.chat.plan import ChatPlan, plan_chat
from radixrt.chat.types import (
    ChatMessage,
    ContentPart,
    Conversation,
    FunctionCall,
    FunctionDefinition,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    ToolName,
    ToolOptions,
)
from radixrt.errors import RequestError, shown, unsupported
from radixrt.server.protocol.messages_fields import (
    CountTokensRequest,
    InputMessage,
    MessageBlock,
    MessagesTool,
    MessagesToolChoice,
    OutputFormat,
    ThinkingOptions,
    check_served,
    check_tool,
)

FIELD_NAMES = {
    "prompt": "messages",
    "input_ids": "messages",
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "tool_choice.function.name": "tool_choice.name",
}
"""This API's names for the fields of the engine and of `radixrt.chat`."""

BILLING = "x-anthropic-billing-header:"
"""Beginning of a block that Claude Code puts before its system prompt. It differs in every request and says nothing to
the model; in the prompt it would keep every request from finding the prefix of the one before it."""

PARAGRAPH = "\n\n"
"""Between two turns of the same role, which become one."""

_BLOCKS = {"user": ("text", "image", "tool_result"), "assistant": ("text", "tool_use", "thinking"), "system": ("text",)}
"""Types of blocks that a message may hold, by its role."""

_RESULT_BLOCKS = ("text", "image")
"""Types of blocks that the content of a tool_result may hold."""

_INSTEAD = {
    "document": "the model reads text; send the document's text in a text block",
    "search_result": "send its text in a text block",
    "redacted_thinking": "only its author can read it; leave it out",
}


def plan_messages(
    body: CountTokensRequest, sampling: dict[str, Any], dialect: Dialect, vocab_size: int, *, allow_control_tokens: bool
) -> ChatPlan:
    """Plan a request.

    Args:
        sampling: fields of `SamplingParams` that the client gave.

    Raises:
        RequestError: naming the field that is malformed.
    """
    check_served(body)
    messages = read_messages(body.system, body.messages)
    config = body.output_config
    budget, switches = _thinking(body.thinking)
    conversation = Conversation(
        messages=messages,
        template_kwargs=switches,
        reasoning_effort=None if config is None else config.effort,
        continue_final_message=messages[-1].role == "assistant",
        thinking_token_budget=budget,
        allow_control_tokens=allow_control_tokens,
    )
    constraint = None if config is None or config.format is None else _constraint(config.format)
    tools = read_tool_options(body.tools, body.tool_choice)
    try:
        return plan_chat(conversation, tools, constraint, sampling, dialect, vocab_size, FIELD_NAMES)
    except RequestError as error:
        raise renamed(error, FIELD_NAMES) from None


# --- messages ---


def read_messages(system: str | list[MessageBlock] | None, given: Sequence[InputMessage]) -> list[ChatMessage]:
    """Return the conversation, the system prompt first. Turns of the same role that follow each other become one.

    Raises:
        RequestError: naming the message, the block and the field in it.
    """
    if not given:
        raise RequestError("messages must hold at least one message", param="messages")
    turns: list[list[ChatMessage]] = []
    parts = [part for part in _texts("system", system) if not (part.text or "").startswith(BILLING)]
    if parts:
        turns.append([ChatMessage(role="system", content=parts)])
    called: set[str] = set()
    for i, message in enumerate(given):
        for one in _turn(f"messages[{i}]", message, called):
            if turns and _is_continued(turns[-1][-1], one):
                turns[-1].append(one)
            else:
                turns.append([one])
    messages = list(map(_joined, turns))
    if given[-1].role == "assistant" and messages[-1].tool_calls:
        raise RequestError(
            f"messages[{len(given) - 1}] ends with tool_use; add a message of the user with a tool_result for each",
            param=f"messages[{len(given) - 1}].content",
        )
    return messages


def _is_continued(last: ChatMessage, new: ChatMessage) -> bool:
    return last.role == new.role and last.role in ("user", "assistant") and not last.tool_calls


def _joined(turns: list[ChatMessage]) -> ChatMessage:
    """Return neighbouring turns of one role as one message, in a time that grows with their length."""
    if len(turns) == 1:
        return turns[0]
    parts: list[ContentPart] = []
    for turn in turns:
        if parts and turn.content:
            parts.append(ContentPart(type="text", text=PARAGRAPH))
        parts.extend(turn.content or ())  # type: ignore[arg-type]  # no turn has its text as a string
    reasoning = PARAGRAPH.join(filter(None, (turn.reasoning_content for turn in turns))) or None
    return ChatMessage(role=turns[0].role, content=parts, reasoning_content=reasoning, tool_calls=turns[-1].tool_calls)


def _turn(place: str, message: InputMessage, called: set[str]) -> list[ChatMessage]:
    """Return the messages of one turn: a user's turn is split at the results of tools.

    Args:
        called: ids of the tool_use blocks so far; those of this turn are added.
    """
    if message.role not in _BLOCKS:
        raise RequestError(
            f"{place}.role must be user, assistant or system, not {shown(message.role)}", param=f"{place}.role"
        )
    if message.role != "user":
        return [_assistant(place, message, called) if message.role == "assistant" else _system(place, message)]
    turn: list[ChatMessage] = []
    parts: list[ContentPart] = []
    for where, block in _blocks(f"{place}.content", _BLOCKS[message.role], message.content):
        if block.type != "tool_result":
            parts.append(_part(where, block))
            continue
        if parts:
            turn.append(ChatMessage(role="user", content=parts))
            parts = []
        turn.append(_result(where, block, called))
    if parts or not turn:
        turn.append(ChatMessage(role="user", content=parts))
    return turn


def _system(place: str, message: InputMessage) -> ChatMessage:
    return ChatMessage(role="system", content=_texts(f"{place}.content", message.content))


def _assistant(place: str, message: InputMessage, called: set[str]) -> ChatMessage:
    texts: list[ContentPart] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for where, block in _blocks(f"{place}.content", _BLOCKS[message.role], message.content):
        if block.type == "text":
            texts.append(_text(where, block))
        elif block.type == "thinking":
            reasoning.append(_required(where, "thinking", block.thinking))
        else:
            name, id_ = _required(where, "name", block.name), _required(where, "id", block.id)
            arguments = {} if block.input is None else block.input
            calls.append(ToolCall(id=id_, type="function", function=FunctionCall(name=name, arguments=arguments)))
            called.add(id_)
    return ChatMessage(
        role="assistant",
        content=texts or None,
        reasoning_content=PARAGRAPH.join(reasoning) or None,
        tool_calls=calls or None,
    )


def _result(where: str, block: MessageBlock, called: set[str]) -> ChatMessage:
    id_ = _required(where, "tool_use_id", block.tool_use_id)
    if id_ not in called:
        raise RequestError(
            f"{where}.tool_use_id: no tool_use block before it has the id {shown(id_)}", param=f"{where}.tool_use_id"
        )
    parts = [_part(*found) for found in _blocks(f"{where}.content", _RESULT_BLOCKS, block.content)]
    if block.is_error:
        parts.insert(0, ContentPart(type="text", text="Error: "))
    return ChatMessage(role="tool", tool_call_id=id_, content=parts)


def _texts(place: str, content: str | list[MessageBlock] | None) -> list[ContentPart]:
    """Return the parts of a content that holds text alone."""
    return [_text(where, block) for where, block in _blocks(place, _BLOCKS["system"], content)]


def _blocks(
    place: str, allowed: Sequence[str], content: str | list[MessageBlock] | None
) -> list[tuple[str, MessageBlock]]:
    """Return the blocks of a content, each with its place in the request.

    Raises:
        RequestError: a block of a type that is not allowed here.
    """
    if content is None or isinstance(content, str):
        return [(place, MessageBlock(type="text", text=content))] if content else []
    found = [(f"{place}[{i}]", block) for i, block in enumerate(content)]
    for where, block in found:
        if block.type in allowed:
            continue
        if any(block.type in known for known in _BLOCKS.values()):
            raise RequestError(
                f"{where}: there can be no {block.type} here; it goes with {', '.join(allowed)}",
                param=f"{where}.type",
            )
        own = "it is of Anthropic's own services; send text, tool_use and tool_result"
        instead = instead_of(block.type, "image") or _INSTEAD.get(block.type, own)
        raise unsupported(f"{where}.type", f"{where}.type {shown(block.type)}", instead=instead)
    return found


def _part(where: str, block: MessageBlock) -> ContentPart:
    return _image(where, block) if block.type == "image" else _text(where, block)


def _text(where: str, block: MessageBlock) -> ContentPart:
    return ContentPart(type="text", text=_required(where, "text", block.text))


def _image(where: str, block: MessageBlock) -> ContentPart:
    source = block.source
    if source is None:
        raise RequestError(f"{where}.source is required", param=f"{where}.source", code="missing_field")
    kind = _required(f"{where}.source", "type", source.type)
    if kind == "base64":
        return image_part(read_base64_image(_required(f"{where}.source", "data", source.data), block.detail, where))
    if kind == "url":
        return image_part(read_image(source.url, block.detail, where, "source.url"))
    raise unsupported(f"{where}.source.type", f"{where}.source.type {shown(kind)}", instead="send base64 or url")


def _required(where: str, name: str, value: str | None) -> str:
    if value is None:
        raise RequestError(f"{where}.{name} is required", param=f"{where}.{name}", code="missing_field")
    return value


# --- options ---


def read_tool_options(tools: list[MessagesTool] | None, choice: MessagesToolChoice | None) -> ToolOptions:
    """Return the tools of a request and the choice among them.

    Raises:
        RequestError: naming the field that is malformed or not served.
    """
    for i, tool in enumerate(tools or ()):
        check_tool(f"tools[{i}]", tool)
    definitions = [
        ToolDefinition(
            function=FunctionDefinition(
                name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
            )
        )
        for tool in tools or ()
    ]
    parallel = (
        None if choice is None or choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use
    )
    return ToolOptions(
        tools=definitions,
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=parallel,
        flat=True,
        schema_field="input_schema",
    )


def _tool_choice(choice: MessagesToolChoice) -> str | ToolChoice:
    if choice.type == "tool":
        if choice.name is None:
            raise RequestError("tool_choice.name is required", param="tool_choice.name", code="missing_field")
        return ToolChoice(type="function", function=ToolName(name=choice.name))
    known = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type not in known:
        raise RequestError(
            f"tool_choice.type must be auto, any, tool or none, not {shown(choice.type)}", param="tool_choice.type"
        )
    return known[choice.type]


def _thinking(given: ThinkingOptions | None) -> tuple[int | None, dict[str, Any] | None]:
    """Return the largest number of tokens of the reasoning, and the variables that switch templates to it or from it.

    Without `thinking` the model's template decides.
    """
    if given is None:
        return None, None
    if given.type not in ("enabled", "adaptive", "disabled"):
        raise RequestError(
            f"thinking.type must be enabled, adaptive or disabled, not {shown(given.type)}", param="thinking.type"
        )
    if given.display not in (None, "summarized", "omitted"):
        raise RequestError(
            f"thinking.display must be summarized or omitted, not {shown(given.display)}", param="thinking.display"
        )
    if given.type == "enabled" and given.budget_tokens is None:
        raise RequestError("thinking.budget_tokens is required", param="thinking.budget_tokens", code="missing_field")
    reasons = given.type != "disabled"
    return given.budget_tokens if reasons else None, {"enable_thinking": reasons, "thinking": reasons}


def _constraint(given: OutputFormat) -> RequestedConstraint:
    field = "output_config.format"
    if given.type != "json_schema":
        raise RequestError(f"{field}.type must be json_schema, not {shown(given.type)}", param=f"{field}.type")
    schema = raw_text(given.schema, f"{field}.schema")
    if schema is None:
        raise RequestError(f"{field}.schema is required", param=f"{field}.schema", code="missing_field")
    return RequestedConstraint("json_schema", schema, f"{field}.schema", {"closed": True})
