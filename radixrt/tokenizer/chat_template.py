"""Chat templates: a conversation rendered to text the way transformers' `apply_chat_template` renders it.

A template comes with a model and a conversation with a request. Neither is trusted: rendering runs in the sandbox of
`template_sandbox`, and `ChatTemplate.render_parts` tells the template's own text from the conversation's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from radixrt.errors import ModelLoadError, RequestError
from radixrt.messages.parts import PromptPart
from radixrt.tokenizer.template_sandbox import Budget, BudgetExceeded, Sandbox
from radixrt.tokenizer.template_trace import ROLES, VARIABLE, Trace, traceable

MAX_RENDER_S = 5.0
MAX_RENDER_CHARS = 64 * 1024 * 1024
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
RESERVED_VARIABLES = ("messages", "tools", "add_generation_prompt")
MARKER_ROLES = ("system", "assistant")
"""Roles whose messages may hold answer markers: the model's own answers, and instructions about them."""
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marker at the end of an open message in the rendered text, which is cut there. Its last space shows whether the
template strips message contents."""


PROBE = "content of a message"
"""Text of the message that shows whether a template renders a content that is a text."""


class RenderedTooLong(RequestError):
    """Error: the rendered text is longer than the caller's limit."""


class ChatTemplate:
    """The chat templates of one model: "default" and possibly others by name, e.g. "tool_use".

    Args:
        templates: name -> Jinja source.
        special_tokens: variables that every template sees, e.g. "bos_token".

    Raises:
        ModelLoadError: a template does not compile.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._environment = Sandbox()
        self._compiled: dict[str, jinja2.Template] = {}
        self._only_parts: dict[str, bool] = {}  # whether a template renders lists of parts only, when first used
        self._traceable: dict[str, tuple[jinja2.Template, list[str]]] = {}  # compiled when first used
        for name, source in templates.items():
            try:
                self._compiled[name] = self._environment.from_string(source)
            except jinja2.TemplateError as error:
                raise ModelLoadError(
                    f"the chat template {name!r} does not compile: {error}; give another with chat_template"
                ) from error

    @property
    def sources(self) -> dict[str, str]:
        """Jinja sources of the templates by name."""
        return dict(self._sources)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        special_tokens: Mapping[str, str],
        *,
        override: str | os.PathLike[str] | None = None,
    ) -> ChatTemplate | None:
        """Load the templates of a model folder; None if it has none.

        chat_template.jinja and the files in additional_chat_templates/ take precedence over the tokenizer config.

        Args:
            config: contents of tokenizer_config.json.
            override: file with the only template to use.
        """
        if override is not None:
            templates = {"default": _read_text(Path(override))}
        else:
            files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
            if (folder / "chat_template.jinja").is_file():
                files["default"] = folder / "chat_template.jinja"
            templates = {name: _read_text(path) for name, path in files.items()} or _from_config(config)
        return cls(templates, special_tokens) if templates else None

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        max_chars: int = MAX_RENDER_CHARS,
        max_seconds: float = MAX_RENDER_S,
    ) -> str:
        """Render a conversation to text.

        Args:
            messages: plain JSON values; keys whose value is None are ignored.
            add_generation_prompt: end with the header of an assistant turn; ignored with continue_final_message.
            continue_final_message: leave the last message open at the end of its content.
            variables: additional template variables.

        Raises:
            RenderedTooLong: the text is longer than max_chars.
            RequestError: anything else (param "messages" or "chat_template_kwargs"): the template refused or failed on
                these messages, or took longer than max_seconds.
        """
        messages = _normalized(messages)
        name = self._choose(tools)
        final = self._open_final_message(messages, name) if continue_final_message else None
        values = self._special_tokens | self._checked_variables(variables)
        values |= {"messages": self._with_parts(messages, name), "tools": tools}
        values["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        text = self._rendered(self._compiled[name], values, Budget(max_seconds, max_chars))
        if final is None:
            return text
        if final.strip() not in text:
            raise _changes_final_message()
        return _cut_at_tag(text)

    def render_parts(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        answer_markers: Sequence[str] = (),
    ) -> list[PromptPart]:
        """Render a conversation to texts of the template and texts of the request (see `template_trace`).

        Their concatenation is what `render` returns, unless the template compares or measures texts that it has put
        together itself.

        Args:
            answer_markers: texts by which the model structures its own answers; in the parts, an empty list of ids cuts
                each of them that is written by anyone else than the assistant or the system.

        Raises:
            RequestError: as `render`.
        """
        trace = Trace()
        by_others = _any_of(answer_markers)

        def traced(message: dict[str, Any]) -> dict[str, Any]:
            role = message.get("role")
            if by_others is not None and role not in MARKER_ROLES:
                message = trace.cut_inside(by_others, message)
            return {**message, "role": trace.constant(role)} if isinstance(role, str) and role in ROLES else message

        name = self._choose(tools)
        messages = [traced(message) for message in _normalized(messages)]
        final = self._open_final_message(messages, name) if continue_final_message else None
        messages = self._with_parts(messages, name)
        given = {"tools": tools, **self._checked_variables(variables)}
        if by_others is not None:
            given = trace.cut_inside(by_others, given)
        if name not in self._traceable:
            self._traceable[name] = traceable(self._environment, self._sources[name])
        template, constants = self._traceable[name]
        values = {key: trace.constant(text) for key, text in self._special_tokens.items()} | given
        values |= {VARIABLE.format(i): trace.constant(text) for i, text in enumerate(constants)}
        values["messages"] = messages
        values["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        text = self._rendered(template, values, Budget(MAX_RENDER_S, MAX_RENDER_CHARS))
        try:
            return trace.parts(text if final is None else _cut_at_tag(text))
        except ValueError as error:
            raise RequestError(f"the chat template cannot be traced: {error}", param="messages") from error

    def _rendered(self, template: jinja2.Template, values: dict[str, Any], budget: Budget) -> str:
        try:
            return self._environment.render_within(template, values, budget)
        except BudgetExceeded as error:
            kind = RenderedTooLong if error.what == "characters" else RequestError
            raise kind(f"rendering the messages took more {error.what} than it may", param="messages") from error
        except Exception as error:  # a template is a program: it can fail in any way
            reason = str(error)[:500] or type(error).__name__
            raise RequestError(f"the chat template cannot render these messages: {reason}", param="messages") from error

    def _choose(self, tools: list[dict[str, Any]] | None) -> str:
        name = "tool_use" if tools is not None and "tool_use" in self._compiled else "default"
        if name not in self._compiled:
            names = ", ".join(sorted(self._compiled))
            raise RequestError(f"the model has no default chat template, only: {names}", param="messages")
        return name

    def _open_final_message(self, messages: list[dict[str, Any]], name: str) -> str:
        """Append the tag to the content of the last message, and return the content without the tag."""
        content = messages[-1].get("content")
        if isinstance(content, list):  # with pictures, of which the last one may end the message
            *before, last = [*content, {"type": "text", "text": ""}]
            if not all(isinstance(part, dict) for part in before):
                raise _not_continued()
            if before and before[-1].get("type") == "text":
                last = before.pop()
            if not isinstance(last.get("text"), str):
                raise _not_continued()
            messages[-1]["content"] = [*before, {**last, "text": last["text"] + CONTINUE_TAG}]
            return str(last["text"])
        if not isinstance(content, str):
            raise _not_continued()
        if "content" not in self._sources[name]:
            raise RequestError(
                "the chat template does not show messages' content, so none can be continued", param="messages"
            )
        messages[-1]["content"] = content + CONTINUE_TAG
        return content

    def _with_parts(self, messages: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
        """Return the messages with lists of parts in place of texts, if the template renders nothing else."""
        if name not in self._only_parts:
            self._only_parts[name] = '"text"' in self._sources[name].replace("'", '"') and self._renders_only_parts(
                name
            )
        if not self._only_parts[name]:
            return messages
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message.get("content"), str)
            else message
            for message in messages
        ]

    def _renders_only_parts(self, name: str) -> bool:
        """Return whether a template leaves out a message's content that is a text, but not one in a list of parts."""

        def shows(content: Any) -> bool:
            values = {**self._special_tokens, "messages": [{"role": "user", "content": content}], "tools": None}
            try:
                text = self._rendered(self._compiled[name], values, Budget(MAX_RENDER_S, MAX_RENDER_CHARS))
            except RequestError:
                return False
            return PROBE in text

        return not shows(PROBE) and shows([{"type": "text", "text": PROBE}])

    @staticmethod
    def _checked_variables(variables: Mapping[str, Any] | None) -> dict[str, Any]:
        for reserved in RESERVED_VARIABLES:
            if reserved in (variables or {}):
                raise RequestError(f"{reserved} cannot be set by template variables", param="chat_template_kwargs")
        return {"documents": None, **(variables or {})}


def _any_of(texts: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"the chat template {path} cannot be read: {error}") from error


def _from_config(config: Mapping[str, Any]) -> dict[str, str]:
    entry = config.get("chat_template")
    if isinstance(entry, str):
        return {"default": entry}
    if isinstance(entry, list):
        entry = {one.get("name"): one.get("template") for one in entry if isinstance(one, dict)}
    if not isinstance(entry, dict):
        return {}
    if not all(isinstance(text, str) for pair in entry.items() for text in pair):
        raise ModelLoadError("chat_template in tokenizer_config.json must be a text or a list of named texts")
    return entry


def _normalized(messages: Any) -> list[dict[str, Any]]:
    """Copy messages without keys whose value is None, and with their reasoning under each of its field names."""
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    result = []
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise RequestError(f"messages[{i}] must be an object with a role", param="messages")
        kept = {key: value for key, value in message.items() if value is not None}
        reasoning = next((kept[field] for field in REASONING_FIELDS if field in kept), None)
        if reasoning is not None:
            kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
        result.append(kept)
    return result


def _cut_at_tag(text: str) -> str:
    tag = CONTINUE_TAG.strip()
    if tag not in text:
        raise _changes_final_message()
    at = text.rindex(tag)
    if text.startswith(CONTINUE_TAG, at):
        return text[:at]
    return text[:at].rstrip()  # the template strips contents, so the text before the tag may end in what it would strip


def _not_continued() -> RequestError:
    return RequestError(
        "continue_final_message needs a last message whose content is a text, or a list of parts such as "
        '{"type": "text", "text": "..."}',
        param="messages",
    )


def _changes_final_message() -> RequestError:
    return RequestError("the chat template changes the final message, so it cannot be continued", param="messages")
