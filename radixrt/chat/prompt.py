"""`chat_prompt`: a conversation in the form that chat templates take, with its tools and earlier calls."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from radixrt.chat.decoding import decode_text
from radixrt.chat.dialect import Dialect
from radixrt.chat.images import image_of, instead_of
from radixrt.chat.tools import OfferedTools
from radixrt.chat.types import ChatMessage, Conversation
from radixrt.constrained.tags.tool_formats import ToolFormat
from radixrt.errors import RequestError, unsupported
from radixrt.messages.parts import ChatPrompt, ImageInput

MAX_MESSAGES = 4_096

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

Message = dict[str, Any]


def chat_prompt(
    conversation: Conversation, offered: OfferedTools | None, dialect: Dialect, variables: dict[str, Any] | None = None
) -> ChatPrompt:
    """Build the prompt: contents as plain strings, the roles that models were trained on, and the tools.

    Args:
        offered: tools for the template, or for instructions to the model where the template renders no tools.
        variables: the `template_variables` of the conversation, if already known.

    Raises:
        RequestError: naming the message and the field in it.
    """
    given = conversation.messages
    if not given:
        raise RequestError("messages must hold at least one message", param="messages")
    if len(given) > MAX_MESSAGES:
        raise RequestError(f"messages holds more than {MAX_MESSAGES} messages", param="messages")
    continue_final = bool(conversation.continue_final_message)
    # No header of another turn follows a message that is continued.
    add_generation_prompt = conversation.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final
    if continue_final and add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    images: list[ImageInput] = []
    messages = [_plain_message(i, message, images, dialect) for i, message in enumerate(given)]
    if dialect.channels is not None:
        messages = dialect.channels.messages(messages, ends_open=not add_generation_prompt)
    if dialect.tool_format.call_id:
        messages = _with_ids(messages, dialect.tool_format)
    if dialect.arguments_as_text:
        messages = with_text_arguments(messages)
    tools = None if offered is None else offered.definitions
    if dialect.channels is not None and tools is not None:
        tools = dialect.channels.definitions(tools)
    if not dialect.renders_tools:
        messages = _without_calls(messages, dialect.tool_format)
        if tools is not None:
            messages = with_instructions(messages, tool_instructions(tools, dialect.tool_format), dialect.takes_system)
            tools = None
    return ChatPrompt(
        messages=msgspec.json.encode(messages),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final,
        template_kwargs=msgspec.json.encode(template_variables(conversation) if variables is None else variables),
        tools=tools,
        allow_control_tokens=conversation.allow_control_tokens,
        answer_markers=dialect.answer_markers,
        images=images,
    )


def template_variables(conversation: Conversation) -> dict[str, Any]:
    """The template variables of a conversation, with the reasoning effort under the names that templates use for it."""
    variables = dict(conversation.template_kwargs or {})
    if conversation.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", conversation.reasoning_effort)
        if conversation.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
            variables.setdefault("thinking", False)
    return variables


def _plain_message(index: int, message: ChatMessage, images: list[ImageInput], dialect: Dialect) -> Message:
    """Return a message for templates; its pictures are appended to `images`."""
    role = _ROLES.get(message.role)
    if role is None:
        raise RequestError(
            f"the role {message.role[:40]!r} is not one of {', '.join(_ROLES)}", param=f"messages[{index}].role"
        )
    plain: Message = {"role": role, "content": _plain_content(index, message, images, dialect)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value:
            plain[name] = value
    calls = _plain_calls(index, message)
    if calls:
        plain["tool_calls"] = calls
    return plain


def _plain_content(
    index: int, message: ChatMessage, images: list[ImageInput], dialect: Dialect
) -> str | list[Message] | None:
    """Return a content as a text, or, if it has pictures, as a list of parts."""
    content = message.content
    if content is None and message.role != "assistant":
        raise RequestError(
            f"messages[{index}].content is required", param=f"messages[{index}].content", code="missing_field"
        )
    if content is None or isinstance(content, str):
        return content
    parts: list[Message] = []
    before = len(images)
    for i, part in enumerate(content):
        param = f"messages[{index}].content[{i}]"
        image = image_of(part, param)
        if image is not None:
            _check_place(_ROLES[message.role], image, dialect)
            images.append(image)
            parts.append({"type": "image"})
            continue
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "refusal"):
            instead = instead_of(part.type, "image_url")
            raise unsupported(param, f"a content part of type {part.type[:40]!r}", instead=instead)
        if text is None:
            raise RequestError(f"{param}.{part.type} is required", param=f"{param}.{part.type}", code="missing_field")
        parts.append({"type": "text", "text": text})
    return parts if len(images) > before else "".join(part["text"] for part in parts)


def _check_place(role: str, image: ImageInput, dialect: Dialect) -> None:
    if role == "tool" and not dialect.takes_tool_images:
        raise RequestError(
            f"{image.param}: the chat template writes no images in results of tools; put the image into a message of "
            "the user",
            param=image.param,
        )
    if role not in ("user", "tool"):
        raise RequestError(
            f"{image.param}: images go into messages of the user and results of tools", param=image.param
        )


def _plain_calls(index: int, message: ChatMessage) -> list[Message]:
    """Return earlier calls with decoded arguments, which templates render as JSON."""
    found: list[Message] = []
    for i, call in enumerate(message.tool_calls or []):
        place = f"messages[{index}].tool_calls[{i}].function.arguments"
        function = {"name": call.function.name, "arguments": _arguments(call.function.arguments, place)}
        one: Message = {} if call.id is None else {"id": call.id}
        found.append({**one, "type": "function", "function": function})
    if message.function_call is not None:
        place = f"messages[{index}].function_call.arguments"
        function = {"name": message.function_call.name, "arguments": _arguments(message.function_call.arguments, place)}
        found.append({"type": "function", "function": function})
    return found


def _arguments(given: Any, place: str) -> Any:
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        return given
    return decode_text(given, place)


# --- for templates with rules of their own ---


def _with_ids(messages: list[Message], form: ToolFormat) -> list[Message]:
    """Return the messages with the ids of calls that the model was trained on, in the calls and in their results."""
    ids: dict[str, str] = {}
    calls = 0
    out: list[Message] = []
    for message in messages:
        if message.get("tool_calls"):
            renamed: list[Message] = []
            for call in message["tool_calls"]:
                name = form.id_of(call["function"]["name"], calls)
                ids[call.get("id", "")] = name
                renamed.append({**call, "id": name})
                calls += 1
            message = {**message, "tool_calls": renamed}
        elif message.get("tool_call_id") in ids:
            message = {**message, "tool_call_id": ids[message["tool_call_id"]]}
        out.append(message)
    return out


def with_text_arguments(messages: list[Message]) -> list[Message]:
    """Return the messages with the arguments of calls as JSON texts, as some templates expect them."""

    def as_text(call: Message) -> Message:
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}

    return [
        {**message, "tool_calls": [as_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


# --- for templates that render no tools ---


def tool_instructions(definitions: bytes, form: ToolFormat) -> str:
    """Instructions that describe the tools and the format of a call to the model."""
    functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in msgspec.json.decode(definitions)]
    style = form.arguments
    arguments = "{<arguments>}" if style.is_json else style.write({"<parameter>": "<value>"})
    example = f"{form.begin}{form.head('<name>')}{arguments}{form.tail}{form.end}"
    calls = "functions" if form.several else "a function"
    return (
        "You can call these functions:\n"
        + "\n".join(functions)
        + f"\nTo call {calls}, answer with nothing but this, filled in:\n{example}\n"
        + "If no function is needed, answer in plain text."
    )


def with_instructions(messages: list[Message], text: str, takes_system: bool) -> list[Message]:
    """Return the messages with the text in the system message, or in the first of the user if there can be none."""
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    if takes_system:
        return [{"role": "system", "content": text}, *messages]
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": text}, *messages]
    instructed = {**messages[first], "content": _joined(f"{text}\n\n", messages[first]["content"])}
    return [*messages[:first], instructed, *messages[first + 1 :]]


def _without_calls(messages: list[Message], form: ToolFormat) -> list[Message]:
    """Replace earlier calls by the text that the model wrote, and their results by messages of the user."""
    written = [
        {**message, "content": (message["content"] or "") + _written(message["tool_calls"], form)}
        if message.get("tool_calls")
        else message
        for message in messages
    ]
    return results_from_user(written)


def results_from_user(messages: list[Message]) -> list[Message]:
    """Return the messages for a template that knows no results of tools: neighbouring results become one message of the
    user, which names the function of each. `tool_calls` name the functions, and are dropped: the content of their
    message has their text already."""
    names: dict[str, str] = {}
    out: list[Message] = []
    answering = False
    for message in messages:
        if message["role"] == "tool":
            name = message.get("name") or names.get(message.get("tool_call_id", ""), "the function")
            content = _joined(f"{name} returned: ", message["content"])
            if answering:
                out[-1]["content"] = _joined(_joined(out[-1]["content"], "\n"), content)
            else:
                out.append({"role": "user", "content": content})
        else:
            calls = message.get("tool_calls") or ()
            names |= {call["id"]: call["function"]["name"] for call in calls if "id" in call}
            out.append({name: value for name, value in message.items() if name != "tool_calls"})
        answering = message["role"] == "tool"
    return out


def _joined(first: str | list[Message], second: str | list[Message]) -> str | list[Message]:
    """Return two contents as a single content, which is a list of parts if either is."""
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    first, second = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in (first, second))
    return [*first, *second]


def _written(calls: list[Message], form: ToolFormat) -> str:
    return form.write([(call["function"]["name"], call["function"]["arguments"]) for call in calls])
