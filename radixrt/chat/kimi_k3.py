"""The channels of Kimi-K3: each answer is blocks of reasoning, of text for the user, and of calls.

    <|open|>think<|sep|>reasoning<|close|>think<|sep|><|open|>response<|sep|>text<|close|>response<|sep|>
    <|open|>tools<|sep|>calls<|close|>tools<|sep|><|close|>message<|sep|>

without line breaks. The chat template opens the first block. The text of calls is the tool format `kimi_k3`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import Any

import msgspec

from radixrt.chat.channels import ChannelParser, ChannelTools, Part
from radixrt.chat.reasoning import Reasoning, Thinking, overlap
from radixrt.chat.tool_parser import Text, ToolCallParser
from radixrt.constrained.tags.tool_formats import TOOL_FORMATS
from radixrt.constrained.tags.tools import Tool, calls_format, marked_text
from radixrt.sampling_params import StopScope

FORMAT = TOOL_FORMATS["kimi_k3"]
OPEN, CLOSE, SEP = FORMAT.markers
THINK, THINK_END = f"{OPEN}think{SEP}", f"{CLOSE}think{SEP}"
RESPONSE, RESPONSE_END = f"{OPEN}response{SEP}", f"{CLOSE}response{SEP}"
MESSAGE_END = f"{CLOSE}message{SEP}"
EFFORTS = ("none", "low", "medium", "high", "max")

Format = dict[str, Any]


class _Block(Enum):
    THINK = auto()
    RESPONSE = auto()
    CALLS = auto()
    BETWEEN = auto()
    OVER = auto()


class KimiParser:
    """Incremental parser of one answer; see `ChannelParser`. Text outside of the blocks is text for the user."""

    def __init__(self, tools: Sequence[Tool], thinking: Thinking) -> None:
        self._buffer = ""
        self._block = _Block.THINK if thinking is Thinking.BEGUN else _Block.RESPONSE
        self._calls = ToolCallParser(FORMAT, tools)

    @property
    def complete(self) -> bool:
        return self._calls.complete

    def feed(self, text: str) -> list[Part]:
        self._buffer += text
        parts: list[Part] = []
        while self._buffer and self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        held, self._buffer = self._buffer, ""
        if self._block is _Block.CALLS:
            return [part for part in self._calls.finish() if not isinstance(part, Text)]
        if not held or self._block in (_Block.BETWEEN, _Block.OVER):
            return []
        return [Reasoning(held) if self._block is _Block.THINK else Text(held)]

    def _step(self, parts: list[Part]) -> bool:
        """Read from the buffer; return False if nothing more is certain."""
        if self._block is _Block.BETWEEN:
            return self._read_opening()
        if self._block is _Block.OVER:
            self._buffer = ""
        elif self._block is _Block.CALLS:
            held, self._buffer = self._buffer, ""
            parts += [part for part in self._calls.feed(held) if not isinstance(part, Text)]
        else:
            return self._read_text(parts)
        return False

    def _read_opening(self) -> bool:
        openings = {
            THINK: _Block.THINK,
            RESPONSE: _Block.RESPONSE,
            FORMAT.trigger: _Block.CALLS,
            MESSAGE_END: _Block.OVER,
        }
        for opening, block in openings.items():
            if self._buffer.startswith(opening):
                self._block = block
                if block is not _Block.CALLS:  # the parser of calls reads the opening itself
                    self._buffer = self._buffer.removeprefix(opening)
                return True
        if any(opening.startswith(self._buffer) for opening in openings):
            return False
        self._block = _Block.RESPONSE
        return True

    def _read_text(self, parts: list[Part]) -> bool:
        thinks = self._block is _Block.THINK
        end = THINK_END if thinks else RESPONSE_END
        found = self._buffer.find(end)
        sure = found if found >= 0 else len(self._buffer) - overlap(self._buffer, end)
        if sure:
            parts.append(Reasoning(self._buffer[:sure]) if thinks else Text(self._buffer[:sure]))
        if found < 0:
            self._buffer = self._buffer[sure:]
            return False
        self._buffer = self._buffer[found + len(end) :]
        self._block = _Block.BETWEEN
        return True


class _KimiK3:
    name: str = FORMAT.name
    markers: tuple[str, ...] = FORMAT.markers
    reasoning_end = SEP
    is_last_end = False
    efforts: tuple[str, ...] = EFFORTS

    def is_shown(self, shown: str, tool: str) -> bool:
        return RESPONSE in shown and FORMAT.begin in shown

    def thinking(self, header: str) -> Thinking:
        return Thinking.BEGUN if header.endswith(THINK) else Thinking.OFF

    def free_text(self, thinking: Thinking) -> StopScope:
        return StopScope(until=(RESPONSE_END,), reasoning_end=RESPONSE if thinking is Thinking.BEGUN else "")

    def parser(self, tools: Sequence[Tool], thinking: Thinking) -> ChannelParser:
        return KimiParser(tools, thinking)

    def constraint(
        self, calls: ChannelTools, response: Format | None, tokens: Collection[str], thinking: Thinking
    ) -> str:
        """See `Channels.constraint`. Where calls are required, the block of text is empty."""

        def free(end: str) -> list[Format]:
            """Free text up to the end of its block; a control token ends the text by itself."""
            first, *rest = marked_text(end, tokens)
            edge = first if first["type"] == "token" else first["value"]
            return [{"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": edge}, *rest]

        over = marked_text(MESSAGE_END, tokens)
        called: list[Format] = []
        if calls.tools:
            called = [calls_format(calls.tools, FORMAT, parallel=calls.parallel, tokens=tokens), *over]
        said = free(RESPONSE_END) if response is None else [response, *marked_text(RESPONSE_END, tokens)]
        if calls.required:
            answer = [*marked_text(RESPONSE_END, tokens), *called]
        elif not called:
            answer = [*said, *over]
        elif response is None:
            answer = [*said, _any_of(_sequence(called), _sequence(over))]
        else:
            answer = [_any_of(_sequence([*marked_text(RESPONSE_END, tokens), *called]), _sequence([*said, *over]))]
        if thinking is Thinking.BEGUN:
            answer = [*free(THINK_END), *marked_text(RESPONSE, tokens), *answer]
        return msgspec.json.encode({"type": "structural_tag", "format": _sequence(answer)}).decode()

    def messages(self, messages: Sequence[dict[str, Any]], *, ends_open: bool) -> list[dict[str, Any]]:
        return list(messages)

    def definitions(self, tools: bytes) -> bytes:
        return tools


def _sequence(elements: list[Format]) -> Format:
    return {"type": "sequence", "elements": elements}


def _any_of(*elements: Format) -> Format:
    return {"type": "or", "elements": list(elements)}


KIMI_K3 = _KimiK3()
