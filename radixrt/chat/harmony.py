"""Harmony, the format of gpt-oss's conversations: each message names a channel, and perhaps a recipient.

An answer is one message or several:

    <|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{"x": 1}<|call|>

"analysis" is reasoning, "final" is the answer, and "commentary" without a recipient is for the user too. A call is the
last message of an answer. https://developers.openai.com/cookbook/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from radixrt.chat.arguments import ObjectScanner
from radixrt.chat.channels import ChannelParser, ChannelTools, Part
from radixrt.chat.reasoning import Reasoning, Thinking, overlap
from radixrt.chat.tool_parser import CallArguments, CallBegin, Text
from radixrt.constrained.tags.tools import Tool, arguments_format
from radixrt.sampling_params import StopScope

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
ENDS = (END, CALL, RETURN, START, CHANNEL)
"""Markers that end a message's text; the last two, where the model has left its end out."""
FREE_TEXT = StopScope(
    until=ENDS,
    after=tuple(CHANNEL + header + MESSAGE for header in ("final", f"final {CONSTRAIN}json", "commentary")),
)
"""Messages for the user, and a text that does not begin like a message: there stop strings are looked for."""
RECIPIENT = "functions."
EFFORTS = ("low", "medium", "high")
"""Values of reasoning_effort that the model was trained on."""

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


def writes_harmony(shown: str, tool: str) -> bool:
    """Return whether a template that has rendered a call of a tool has done so in this format."""
    return f"to={RECIPIENT}{tool}" in shown and CHANNEL in shown and MESSAGE in shown


# --- reading answers ---


class HarmonyParser:
    """Incremental parser of one answer. No marker, and no part of one, is returned as text.

    A text that does not begin like a message is the answer. Calls of recipients that are not tools of the request (the
    model may try its built-in tools) are part of the reasoning.

    Args:
        names: the tools that the model may call.

    Attributes:
        complete: the answer holds at least one call, and every call is complete.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._buffer = ""
        self._in_header = True
        self._kind: type[Text] | type[Reasoning] | None = None  # of the message that is read; None in a call
        self._begun: set[type[Text] | type[Reasoning]] = set()  # kinds of which there is text
        self._separates = False  # a message has begun, of whose kind there is text, and has no text yet
        self._read_any = False
        self._calls = 0
        self._calling = False  # the call that is read has arguments
        self._scanner = ObjectScanner()
        self.complete = False

    def feed(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are certain now."""
        self._buffer += text
        parts: list[Part] = []
        while self._read_header(parts) if self._in_header else self._read_text(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """Return the parts held back until the end of the text."""
        held, self._buffer = self._buffer, ""
        parts: list[Part] = []
        if self._in_header and not self._read_any and not _begins_message(held, whole=True):
            self._begin(Text)
        if not self._in_header:
            self._add(held, parts)
        return parts

    def _read_header(self, parts: list[Part]) -> bool:
        """Read up to the text of a message; return False if that is not complete."""
        if not self._read_any and not _begins_message(self._buffer, whole=False):
            self._begin(Text)
            return True
        header, marker, rest = self._buffer.partition(MESSAGE)
        if not marker:
            return False
        self._buffer = rest
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None:
            name = recipient.group(1).removeprefix(RECIPIENT)
            if name in self._names and recipient.group(1) != name:
                self._begin(None)
                self._scanner, self._calling, self.complete = ObjectScanner(), False, False
                parts.append(CallBegin(self._calls, name))
                self._calls += 1
            else:
                self._begin(Reasoning)
        else:
            self._begin(Reasoning if channel is not None and channel.group(1) == "analysis" else Text)
        return True

    def _begin(self, kind: type[Text] | type[Reasoning] | None) -> None:
        self._in_header, self._read_any, self._kind = False, True, kind
        self._separates = kind in self._begun

    def _read_text(self, parts: list[Part]) -> bool:
        """Read the text of a message up to its end; return False if that is not there yet."""
        markers = ENDS if self._kind is None else MARKERS  # in a text, the others mean nothing and are dropped
        found = [(at, marker) for marker in markers if (at := self._buffer.find(marker)) >= 0]
        if not found:
            sure = len(self._buffer) - max(overlap(self._buffer, marker) for marker in markers)
            text, self._buffer = self._buffer[:sure], self._buffer[sure:]
            self._add(text, parts)
            return False
        at, marker = min(found)
        self._add(self._buffer[:at], parts)
        self._buffer = self._buffer[at if marker == CHANNEL else at + len(marker) :]
        self._in_header = marker in ENDS
        return True

    def _add(self, text: str, parts: list[Part]) -> None:
        if self._kind is None:
            text = text if self._calling else text.lstrip()
            if text and not self._scanner.done:  # what follows the arguments belongs to nothing
                parts.append(CallArguments(self._calls - 1, text[: self._scanner.scan(text)]))
                self._calling = True
            self.complete = self._scanner.done
        elif text:
            parts.append(self._kind(("\n" if self._separates else "") + text))
            self._separates = False
            self._begun.add(self._kind)


def _begins_message(text: str, *, whole: bool) -> bool:
    """Return whether a text begins with the header of a message, or, unless it is whole, may do so yet."""
    text = text.lstrip()
    begins = (START, CHANNEL, MESSAGE, "to=")
    return text.startswith(begins) or (not whole and any(begin.startswith(text) for begin in begins))


# --- constraining answers ---


def harmony_constraint(
    tools: Sequence[Tool], *, required: bool, response: dict[str, Any] | None, reserved: Iterable[str]
) -> str:
    """The structural tag, as JSON text, of an answer that reasons if it likes, then answers or calls a tool.

    Args:
        tools: those that may be called.
        required: a call comes, and no answer.
        response: a format of a structural tag for the answer; None for free text.
        reserved: markers that are single tokens of the vocabulary; they come as those and never as text.
    """
    tokens = frozenset(reserved)

    def mark(marker: str) -> dict[str, Any]:
        return {"type": "token", "token": marker} if marker in tokens else _text(marker)

    def edge(marker: str) -> Any:
        return mark(marker) if marker in tokens else marker

    def message(following: dict[str, Any]) -> list[dict[str, Any]]:
        """Free text of a message that another one follows."""
        text = {"type": "tag", "begin": edge(MESSAGE), "content": {"type": "any_text"}, "end": edge(END)}
        return [text, mark(START), _text("assistant"), mark(CHANNEL), following]

    options, calls = [], []
    for tool in tools:
        head = [_text(f" to={RECIPIENT}{tool.name} "), mark(CONSTRAIN), _text("json"), mark(MESSAGE)]
        calls.append(_sequence(*head, arguments_format(tool)))
    if not required:
        final = {"type": "any_text"} if response is None else response
        options.append(_sequence(_text("final"), mark(MESSAGE), final))
    last = [*options]
    if calls:
        last.append(_sequence(_text("commentary"), _any_of(calls)))
        said = _sequence(*message(_any_of(last)))  # for the user, before a call or the answer
        options.append(_sequence(_text("commentary"), _any_of([*calls, said])))
    reasoned = _sequence(_text("analysis"), *message(_any_of(options)))
    whole = _sequence(mark(CHANNEL), _any_of([reasoned, *options]))
    return msgspec.json.encode({"type": "structural_tag", "format": whole}).decode()


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _any_of(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}


# --- conversations ---


def harmony_messages(messages: Sequence[dict[str, Any]], *, ends_open: bool) -> list[dict[str, Any]]:
    """Bring messages into the form that templates of this format expect.

    These templates render a single call per message, so further calls, each with its result, become separate messages.
    A message with a call has either reasoning or content, as what precedes the call. Of earlier answers, the reasoning
    is left
    out: the model was trained without it.

    Args:
        ends_open: the last message is the answer, which keeps its reasoning.
    """
    out: list[dict[str, Any]] = []
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        if message["role"] != "assistant":
            out.append(message)
            continue
        plain = {**message, "content": message.get("content") or ""}
        if not plain.get("tool_calls"):
            if rest or not ends_open:
                plain.pop("reasoning_content", None)
            out.append(plain)
            continue
        results = []
        while rest and rest[0]["role"] == "tool":
            results.append(rest.pop(0))
        out += _one_by_one(plain, results)
    return out


def _one_by_one(message: dict[str, Any], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a message for each call of a message, followed by its result."""
    calls, out = message["tool_calls"], []
    ids = [call.get("id") for call in calls]
    said = "\n".join(text for text in (message.get("reasoning_content"), message["content"]) if text)
    for i, call in enumerate(calls):
        thought = {"reasoning_content": said} if said and i == 0 else {}
        out.append({"role": "assistant", "content": "", **thought, "tool_calls": [call]})
        own = [result for result in results if result.get("tool_call_id", call) == ids[i]]
        own = own or [result for result in results if result.get("tool_call_id", call) not in ids][:1]
        out += own
        results = [result for result in results if not any(result is each for each in own)]
    return out + results


def with_descriptions(definitions: bytes) -> bytes:
    """Return tool definitions, JSON, with an empty description where there is none: templates write it unasked."""
    tools = msgspec.json.decode(definitions)
    for tool in tools:
        tool["function"] = {"name": tool["function"]["name"], "description": "", **tool["function"]}
    return msgspec.json.encode(tools)


# --- the format as a whole ---


class _Harmony:
    name = "harmony"
    markers: tuple[str, ...] = MARKERS
    reasoning_end = END
    is_last_end = True
    efforts: tuple[str, ...] = EFFORTS

    def is_shown(self, shown: str, tool: str) -> bool:
        return writes_harmony(shown, tool)

    def thinking(self, header: str) -> Thinking:
        return Thinking.FREE

    def free_text(self, thinking: Thinking) -> StopScope:
        return FREE_TEXT

    def parser(self, tools: Sequence[Tool], thinking: Thinking) -> ChannelParser:
        return HarmonyParser(tool.name for tool in tools)

    def constraint(
        self, calls: ChannelTools, response: dict[str, Any] | None, tokens: Collection[str], thinking: Thinking
    ) -> str:
        return harmony_constraint(calls.tools, required=calls.required, response=response, reserved=tokens)

    def messages(self, messages: Sequence[dict[str, Any]], *, ends_open: bool) -> list[dict[str, Any]]:
        return harmony_messages(messages, ends_open=ends_open)

    def definitions(self, tools: bytes) -> bytes:
        return with_descriptions(tools)


HARMONY = _Harmony()
