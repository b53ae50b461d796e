"""`Dialect`: the support of a model's chat template and vocabulary for tools and reasoning.

The template is probed rather than parsed: it renders a small conversation with a tool, a call and a result, and the
output shows whether the template offers tools to the model and in which format it writes calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from radixrt.chat.channels import Channels
from radixrt.chat.harmony import HARMONY
from radixrt.chat.kimi_k3 import KIMI_K3
from radixrt.chat.reasoning import REASONING_MARKERS, THINK, ReasoningMarkers, Thinking
from radixrt.config import Config
from radixrt.constrained.tags.tool_formats import GENERIC_JSON, TOOL_FORMATS, ToolFormat, formats_of_architecture
from radixrt.errors import RequestError
from radixrt.tokenizer.chat_template import ChatTemplate

PROBE_S = 0.1
PROBE_CHARS = 100_000
MAX_SWITCH_CHARS = 32
MAX_CACHED = 256
"""Most sets of template variables whose effect on reasoning is cached."""

_TOOL = "get_probe"
_QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "question"}]
_SYSTEM: list[dict[str, Any]] = [{"role": "system", "content": "s"}]
_TOOLS = [{"type": "function", "function": {"name": _TOOL, "description": "d", "parameters": {"type": "object"}}}]
_ID = "call00000"
_ARGUMENTS = {"x": 1, "text": "a b\nc"}


def _called(call_id: str = _ID, arguments: Any = _ARGUMENTS) -> list[dict[str, Any]]:
    """Return a conversation with a call and its result."""
    call = {"id": call_id, "type": "function", "function": {"name": _TOOL, "arguments": arguments}}
    return [
        *_QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": _TOOL, "tool_call_id": call_id, "content": "result"},
    ]


_CALLED = _called()


CHANNELS: tuple[Channels, ...] = (HARMONY, KIMI_K3)
"""The formats of answers in channels."""
REASONING = "reasoning_content"
_REASONING_FIELDS = (REASONING, "reasoning", "thinking")
"""The members of a message in which templates look for its reasoning."""
_THOUGHT = "thought-probe"

T = TypeVar("T")


@dataclass(frozen=True)
class Dialect:
    """Support of one model for tools and reasoning. The default is a model that supports neither.

    Attributes:
        tool_format: format in which the model writes calls.
        renders_tools: the template writes tools, calls and results in that format; otherwise `radixrt.chat.prompt` adds
            them to the messages as text.
        arguments_as_text: the template takes the arguments of calls as JSON texts.
        takes_system: the template accepts a system message.
        shows_tool_images: the template writes the images of results.
        tokens: text -> id of the added tokens of the vocabulary.
        special_tokens: the added tokens that `skip_special_tokens` removes from the text.
        reasons: the model writes its reasoning between markers, or in a channel.
        reasoning: the markers.
        reasons_by_system: the model reasons where the system message asks for it: the template writes the markers in
            its own system message alone, which a system message of the client replaces.
        channels: the format of answers in channels, if the model writes such.
        closed_tools: arguments of tools have the declared properties alone, where a request does not say.
        template: the template that `thinking` probes.
    """

    tool_format: ToolFormat = GENERIC_JSON
    renders_tools: bool = False
    arguments_as_text: bool = False
    takes_system: bool = True
    shows_tool_images: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)
    special_tokens: frozenset[str] = frozenset()
    reasons: bool = False
    reasoning: ReasoningMarkers = THINK
    reasons_by_system: bool = False
    channels: Channels | None = None
    closed_tools: bool = True
    template: ChatTemplate | None = None
    _cached: dict[bytes, Thinking] = field(default_factory=dict)
    _cached_keeps: dict[bytes, bool] = field(default_factory=dict)

    @property
    def format_name(self) -> str:
        """Name of the format of calls, or of channels."""
        return self.tool_format.name if self.channels is None else self.channels.name

    @property
    def answer_markers(self) -> list[str]:
        """Texts of the control tokens that the model writes within answers, for reasoning and tool calls. The templates
        of channels write all of them themselves."""
        return [] if self.channels is not None else [*self.reasoning.texts, *self.tool_format.markers]

    @property
    def takes_tool_images(self) -> bool:
        """Whether the result of a tool may hold images. Results that the template does not render are messages of the
        user, whose images every template of a vision model writes."""
        return self.shows_tool_images or not self.renders_tools

    def thinking(self, variables: Mapping[str, Any], messages: bytes | None = None) -> Thinking:
        """Return whether a request with these template variables makes the model reason first.

        Args:
            messages: `ChatPrompt.messages` of the request; default: a question without a system message.
        """
        if not self.reasons or self.template is None:
            return Thinking.OFF
        if self.reasons_by_system and messages is not None:
            first = msgspec.json.decode(messages)[0]
            if first["role"] == "system" and self.reasoning.start not in str(first["content"]):
                return Thinking.OFF
        probe = partial(_thinking, channels=self.channels, markers=self.reasoning)
        return _probed(self._cached, probe, self.template, variables)

    def keeps_reasoning(self, variables: Mapping[str, Any]) -> bool:
        """Return whether a prompt with these template variables shows reasoning from before the last message of the
        user."""
        if self.template is None:
            return False
        probe = partial(_keeps_reasoning, channels=self.channels)
        return _probed(self._cached_keeps, probe, self.template, variables)


def _probed(
    cached: dict[bytes, T], probe: Callable[[ChatTemplate, Mapping[str, Any]], T], template: ChatTemplate,
    variables: Mapping[str, Any],
) -> T:  # fmt: skip
    """Probe the template with the switches among the variables, or return the earlier result."""
    switches = {name: value for name, value in variables.items() if _is_switch(value)}
    key = msgspec.json.encode(switches)
    if key in cached:
        return cached[key]
    found = probe(template, switches)
    if len(cached) < MAX_CACHED:
        cached[key] = found
    return found


def read_dialect(config: Config, folder: str) -> Dialect:
    """Detect the dialect of the model in a folder. Configured options override the detected values.

    Raises:
        ModelLoadError: a chat template cannot be read.
    """
    if config.model.skip_tokenizer_init:
        return Dialect()
    path = Path(config.model.tokenizer or folder)
    home = path.parent if path.is_file() else path
    settings = _read(home / "tokenizer_config.json", _TokenizerConfig)
    added = _read(path if path.is_file() else path / "tokenizer.json", _TokenizerFile).added_tokens
    added += [
        _Token(content=token.content, special=token.special, id=int(number))
        for number, token in settings.added_tokens_decoder.items()
    ]
    raw = _read(home / "tokenizer_config.json", dict[str, Any])
    named = {name: _named(raw.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    template = ChatTemplate.from_folder(
        home, raw, {name: text for name, text in named.items() if text}, override=config.model.chat_template
    )
    return make_dialect(
        template,
        tokens={token.content: token.id for token in added},
        special_tokens=frozenset(token.content for token in added if token.special),
        tool_format=config.server.tool_call_format,
        architectures=_read(Path(folder) / "config.json", _ModelConfig).architectures,
        reasoning_parser=config.server.reasoning_parser,
        closed_tools=config.constrained.closed_tools,
    )


def make_dialect(
    template: ChatTemplate | None,
    *,
    tokens: Mapping[str, int] | None = None,
    special_tokens: frozenset[str] = frozenset(),
    tool_format: str = "auto",
    architectures: Sequence[str] = (),
    reasoning_parser: str = "auto",
    closed_tools: bool = True,
) -> Dialect:
    """Build a dialect by probing the template. Arguments are the same as of `Dialect`; "auto" is replaced by the
    detected value.

    Args:
        architectures: of the model's config.json, by which a format is found that the template does not show.
    """
    if template is None:
        return Dialect(closed_tools=closed_tools)
    shown = _render(template, _CALLED, tools=_TOOLS) or ""
    written, as_text = _find_format(template, shown)
    native = formats_of_architecture(architectures, tokens or ())
    form = written or (native[0] if native else GENERIC_JSON)
    if tool_format != "auto":
        form = TOOL_FORMATS[tool_format]
    offered = _TOOL in (_render(template, _QUESTION, tools=_TOOLS) or "")
    channels = None
    if tool_format == reasoning_parser == "auto":
        channels = next((one for one in CHANNELS if one.is_shown(shown, _TOOL)), None)
    markers = None if channels is not None or reasoning_parser == "none" else _find_markers(template)
    reasons = channels is not None or reasoning_parser == "think" or markers is not None
    by_system = reasoning_parser == "auto" and markers is not None and _find_markers(template, _SYSTEM) is None
    return Dialect(
        tool_format=form,
        renders_tools=offered and (channels is not None or form is written),
        arguments_as_text=as_text and form is written,
        takes_system=_render(template, [*_SYSTEM, *_QUESTION]) is not None,
        shows_tool_images=_shows_tool_images(template),
        tokens=dict(tokens or {}),
        special_tokens=special_tokens,
        reasons=reasons,
        reasoning=markers or THINK,
        reasons_by_system=by_system,
        channels=channels,
        closed_tools=closed_tools,
        template=template,
    )


def _find_format(template: ChatTemplate, shown: str) -> tuple[ToolFormat | None, bool]:
    """Return the format in which a template renders a call, None if there is none, and whether the template takes the
    arguments of the call as a JSON text.

    Args:
        shown: the rendered `_CALLED`.
    """
    form = _format_of(shown)
    if form is not None:
        return form, False
    # Some templates show the ids of calls, and some concatenate the arguments with other text.
    ids = dict.fromkeys([_ID, *(form.id_of(_TOOL, 0) for form in TOOL_FORMATS.values() if form.call_id)])
    for call_id in ids:
        for arguments in (_ARGUMENTS, msgspec.json.encode(_ARGUMENTS).decode()):
            form = _format_of(_render(template, _called(call_id, arguments), tools=_TOOLS) or "")
            if form is not None:
                return form, isinstance(arguments, str)
    return None, False


def _format_of(shown: str) -> ToolFormat | None:
    """Return the format of the call in a rendered conversation; None if there is none, or if its result is not shown.

    The whole text of a call with tags is compared, because formats differ in the lines that the tags begin.
    """
    if "result" not in shown:
        return None
    for form in TOOL_FORMATS.values():
        style = form.arguments
        head = form.begin + form.head(_TOOL)
        if form is not GENERIC_JSON and head + ("" if style.is_json else style.write(_ARGUMENTS) + form.tail) in shown:
            return form
    return None


def _shows_tool_images(template: ChatTemplate) -> bool:
    """Return whether the template writes something for an image in the result of a tool, other than the part itself."""
    text = {"type": "text", "text": "result"}

    def shown(*parts: dict[str, Any]) -> str:
        return _render(template, [*_CALLED[:-1], {**_CALLED[-1], "content": [*parts]}]) or ""

    with_image, without = shown({"type": "image"}, text), shown(text)
    if "result" not in with_image or "'image'" in with_image or '"image"' in with_image:
        return False
    return "result" in without and with_image != without


def _is_switch(value: Any) -> bool:
    """Return whether a template variable may switch reasoning on or off; large values are not probed, to save time."""
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_SWITCH_CHARS)


def _thinking(
    template: ChatTemplate, variables: Mapping[str, Any], *, channels: Channels | None, markers: ReasoningMarkers
) -> Thinking:
    with_header = _render(template, _QUESTION, variables=variables)
    without = _render(template, _QUESTION, variables=variables, add_generation_prompt=False)
    header = with_header.removeprefix(without) if with_header is not None and without is not None else ""
    if channels is not None:
        return channels.thinking(header)
    begun, closed = header.rfind(markers.start), header.rfind(markers.end)
    if closed > begun:
        return Thinking.OFF
    if begun >= 0:
        return Thinking.BEGUN
    if variables.get("enable_thinking") is False or variables.get("thinking") is False:
        return Thinking.OFF
    return Thinking.FREE


def _keeps_reasoning(template: ChatTemplate, variables: Mapping[str, Any], *, channels: Channels | None) -> bool:
    """Return whether the template writes the reasoning of an answer, or of a call, when the user has answered; True if
    it cannot be probed."""
    said = {"role": "assistant", "content": "answer", REASONING: _THOUGHT}
    called = [{**message, REASONING: _THOUGHT} if message["role"] == "assistant" else message for message in _CALLED]
    conversations = [[*_QUESTION, said, *_QUESTION], [*called, *_QUESTION]]
    if channels is not None:
        conversations = [channels.messages(messages, ends_open=False) for messages in conversations]
    shown = [_render(template, messages, variables=variables) for messages in conversations]
    return any(text is None or _THOUGHT in text for text in shown)


def _find_markers(template: ChatTemplate, before: Sequence[dict[str, Any]] = ()) -> ReasoningMarkers | None:
    """Return the markers that the template writes, or between which it removes reasoning from earlier answers; None if
    it knows none.

    Args:
        before: messages before the conversations that are rendered. A template that refuses such messages writes what
            it writes without them.
    """
    if before and _render(template, [*before, *_QUESTION]) is None:
        before = ()
    question = [*before, *_QUESTION]
    switches: Sequence[dict[str, Any]] = ({}, {"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True})
    shown = [_render(template, question, variables=each) or "" for each in switches]
    # Some templates write the markers around the reasoning of an answer alone.
    said = {"role": "assistant", "content": "answer", **dict.fromkeys(_REASONING_FIELDS, _THOUGHT)}
    shown.append(_render(template, [*question, said], add_generation_prompt=False) or "")
    for markers in REASONING_MARKERS:
        if any(markers.start in text or markers.end in text for text in shown):
            return markers
    return next((markers for markers in REASONING_MARKERS if _removes_reasoning(template, markers, question)), None)


def _removes_reasoning(template: ChatTemplate, markers: ReasoningMarkers, question: list[dict[str, Any]]) -> bool:
    said = f"{markers.start}thought{markers.end}answer"
    shown = _render(template, [*question, {"role": "assistant", "content": said}, *_QUESTION])
    return shown is not None and "answer" in shown and "thought" not in shown


def _render(template: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str | None:
    try:
        return template.render(messages, max_chars=PROBE_CHARS, max_seconds=PROBE_S, **options)
    except RequestError:
        return None


class _Token(msgspec.Struct):
    content: str
    special: bool = False
    id: int = -1


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_Token] = []


class _ModelConfig(msgspec.Struct):
    architectures: list[str] = []


class _TokenizerConfig(msgspec.Struct):
    added_tokens_decoder: dict[str, _Token] = {}


def _read(path: Path, kind: Any) -> Any:
    """Decode a JSON file; return an empty value if it has another form (the tokenizer process reports the error)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError):
        return kind() if isinstance(kind, type) else {}


def _named(entry: Any) -> str | None:
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None
