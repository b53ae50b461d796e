"""Answers of Anthropic's Messages API, and `MessagesEncoder`, which makes them from the output of a request.

The name of an event is its `type`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Literal

from msgspec import UNSET, Raw, UnsetType

from radixrt.chat.answer import AnswerParser
from radixrt.chat.channels import Part
from radixrt.chat.plan import ChatPlan
from radixrt.chat.reasoning import Reasoning
from radixrt.chat.tool_parser import CallArguments, CallBegin, Text
from radixrt.messages import parts as engine
from radixrt.messages.client import RequestOutput
from radixrt.server.answers.base import Answer, named_event
from radixrt.server.answers.errors import MessagesErrorBody
from radixrt.server.answers.parts import CachedTokensDetails, cached_tokens_details

SIGNATURE = "radixrt"
"""Signature of every thinking block. It proves nothing, and is not checked when the block comes back; some clients drop
blocks without one."""


class TextBlock(Answer, tag_field="type", tag="text"):
    """Text for the user."""

    text: str = ""


class ThinkingBlock(Answer, tag_field="type", tag="thinking"):
    """Reasoning."""

    thinking: str
    signature: str


class ToolUseBlock(Answer, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any] | Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(Answer):
    """Tokens of the output that are reasoning."""

    thinking_tokens: int


class MessageUsage(Answer):
    """Tokens of a message."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    cached_tokens_details: CachedTokensDetails | UnsetType = UNSET


class Message(Answer, kw_only=True):
    """Answer of /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class CountedTokens(Answer):
    """Tokens of a message's prompt."""

    input_tokens: int


# --- events ---


class TextDelta(Answer, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(Answer, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(Answer, tag_field="type", tag="signature_delta"):
    """Signature of the reasoning, which proves nothing."""

    signature: str


class InputJsonDelta(Answer, tag_field="type", tag="input_json_delta"):
    """More JSON text of a call's input."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(Answer, tag_field="type", tag="message_start"):
    """The message before its content."""

    message: Message


class BlockStart(Answer, tag_field="type", tag="content_block_start"):
    """A block of the content begins."""

    index: int
    content_block: Block


class BlockDelta(Answer, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: Delta


class BlockStop(Answer, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class StopDelta(Answer):
    """Reason for the end of the message."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Answer, tag_field="type", tag="message_delta"):
    """End of the message, and its usage."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(Answer, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(Answer, tag_field="type", tag="ping"):
    """Keeps the connection open."""


MessageEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | MessagesErrorBody
)

# --- from outputs ---

_BLOCKS: dict[type[Part], type[Block]] = {
    Text: TextBlock,
    Reasoning: ThinkingBlock,
    CallBegin: ToolUseBlock,
    CallArguments: ToolUseBlock,
}
"""Types of the blocks to which parts of an answer belong."""

_DELTAS: dict[type[Part], Callable[[str], Delta]] = {
    Text: TextDelta,
    Reasoning: ThinkingDelta,
    CallArguments: InputJsonDelta,
}


class MessagesEncoder:
    """Encodes the output of a request.

    Args:
        hides_thinking: thinking blocks are reported without their text.
    """

    def __init__(self, message_id: str, model: str, plan: ChatPlan, *, hides_thinking: bool) -> None:
        self._id = message_id
        self._model = model
        self._plan = plan
        self._hides_thinking = hides_thinking
        self._parser = AnswerParser(plan.form)
        self._started = False
        self._open: type[Block] | None = None
        self._index = -1

    # --- whole ---

    def body(self, outputs: list[RequestOutput]) -> Message:
        (output,) = outputs
        blocks: list[Block] = []
        calls: list[tuple[ToolUseBlock, list[str]]] = []
        for part in self._parser.take(output):
            if isinstance(part, CallArguments):
                calls[-1][1].append(part.text)
                continue
            if isinstance(part, CallBegin) or not blocks or type(blocks[-1]) is not _BLOCKS[type(part)]:
                blocks.append(_new_block(part, SIGNATURE))
            last = blocks[-1]
            if isinstance(last, ToolUseBlock):
                calls.append((last, []))
            elif isinstance(last, ThinkingBlock):
                last.thinking += self._shown(part)
            else:
                last.text += self._shown(part)
        if calls and not self._parser.has_calls:
            blocks.remove(calls.pop()[0])  # an aborted answer ends within it
        for call, arguments in calls:
            call.input = Raw("".join(arguments).encode())
        message = self._message(blocks, self._usage(output))
        message.stop_reason, message.stop_sequence = self._stop(output)
        return message

    # --- streamed ---

    def event(self, index: int, output: RequestOutput) -> bytes:
        """The events of one output: the first adds the beginning of the message, the last its stop reason and usage."""
        event = b""
        if not self._started:
            self._started = True
            event = named_event(MessageStart(self._message([], self._usage(output)))) + named_event(Ping())
        for part in self._parser.take(output):
            event += self._part(part)
        if output.finish is None:
            return event
        stop = MessageDelta(StopDelta(*self._stop(output)), self._usage(output))
        return event + self._end_block() + named_event(stop)

    def last_event(self) -> bytes:
        return named_event(MessageStop())

    def _part(self, part: Part) -> bytes:
        kind = _BLOCKS[type(part)]
        event = b""
        if isinstance(part, CallBegin) or self._open is not kind:
            event = self._end_block()
            self._open = kind
            self._index += 1
            event += named_event(BlockStart(self._index, _new_block(part, "")))
        if isinstance(part, CallBegin):
            return event
        text = self._shown(part)
        return event + named_event(BlockDelta(self._index, _DELTAS[type(part)](text))) if text else event

    def _end_block(self) -> bytes:
        if self._open is None:
            return b""
        event = named_event(BlockStop(self._index))
        if self._open is ThinkingBlock:
            event = named_event(BlockDelta(self._index, SignatureDelta(SIGNATURE))) + event
        self._open = None
        return event

    # --- both ---

    def _message(self, content: list[Block], usage: MessageUsage) -> Message:
        return Message(id=self._id, model=self._model, content=content, usage=usage)

    def _shown(self, part: Part) -> str:
        assert not isinstance(part, CallBegin)
        return "" if self._hides_thinking and isinstance(part, Reasoning) else part.text

    def _stop(self, output: RequestOutput) -> tuple[str, str | None]:
        """Return the stop reason, and the stop sequence that was found."""
        finish, usage = output.finish, output.usage
        assert finish is not None
        sampling = self._plan.sampling
        if finish.reason == engine.FINISH_STOP:
            if self._parser.has_calls:
                return "tool_use", None
            if isinstance(finish.matched, str) and finish.matched in sampling.stop:
                return "stop_sequence", finish.matched
            return "end_turn", None
        asked = sampling.max_tokens or 0
        ran_out = finish.reason == engine.FINISH_LENGTH and not finish.forced_close
        if ran_out and usage and usage.completion_tokens < asked:
            return "model_context_window_exceeded", None
        return "max_tokens", None

    def _usage(self, output: RequestOutput) -> MessageUsage:
        """Usage of the request; before its end of its prompt alone, whose cached part is not known yet."""
        usage = output.usage or engine.Usage(len(output.prompt_token_ids), 0, 0)
        thinking = ThinkingTokens(self._parser.reasoning_tokens)
        uncached = usage.prompt_tokens - usage.cached_tokens
        details = cached_tokens_details(usage)
        return MessageUsage(uncached, 0, usage.cached_tokens, usage.completion_tokens, thinking, details)


def _new_block(part: Part, signature: str) -> Block:
    """Return the block that a part begins, without its text or input."""
    if isinstance(part, CallBegin):
        return ToolUseBlock(f"toolu_{uuid.uuid4().hex[:24]}", part.name, {})
    return ThinkingBlock("", signature) if isinstance(part, Reasoning) else TextBlock()
