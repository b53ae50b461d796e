"""`MessagesEncoder`: answers of Anthropic's Messages API, whole or as a stream of its events."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from radixrt.chat.answer import AnswerParser, Part, count_reasoning
from radixrt.chat.plan import ChatPlan
from radixrt.chat.reasoning import Reasoning
from radixrt.chat.tool_parser import CallBegin, Text
from radixrt.errors import RequestError
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import FINISH_LENGTH, FINISH_STOP, Usage
from radixrt.server.http.errors import anthropic_error_body

SIGNATURE = "radixrt"
"""Signature of every thinking block. It proves nothing, and is not checked when the block comes back; some clients drop
blocks without one."""

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
BLOCK_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
BLOCK_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b}\n\n'


class BlockFields(NamedTuple):
    """Names in blocks of one type: of the text, of its deltas, and of the text in these."""

    text: str
    delta: str
    fragment: str


FIELDS = {
    "text": BlockFields("text", "text_delta", "text"),
    "thinking": BlockFields("thinking", "thinking_delta", "thinking"),
    "tool_use": BlockFields("input", "input_json_delta", "partial_json"),
}


def messages_event(content: dict[str, Any]) -> bytes:
    """Encode an event whose name is its `type`."""
    return b"event: %b\ndata: %b\n\n" % (content["type"].encode(), msgspec.json.encode(content))


@dataclass(slots=True)
class MessagesEncoder:
    """Encodes the output of a request.

    Args:
        head: fields that the message begins with.
        hides_thinking: thinking blocks are reported without their text.
    """

    head: dict[str, Any]
    plan: ChatPlan
    hides_thinking: bool = False
    _parser: AnswerParser = field(init=False)
    _token_ids: list[int] = field(default_factory=list)
    _started: bool = False
    _open: str = ""
    _index: int = -1

    def __post_init__(self) -> None:
        self._parser = AnswerParser(self.plan.form)

    # --- whole ---

    def body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        blocks: list[dict[str, Any]] = []
        for part in [*self._parser.feed(output.text), *self._parser.finish()]:
            kind = _kind(part)
            if isinstance(part, CallBegin) or not blocks or blocks[-1]["type"] != kind:
                blocks.append(_new_block(part, whole=True))
            if not isinstance(part, CallBegin):
                blocks[-1][FIELDS[kind].text] += self._shown(part)
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if calls and not self._parser.has_calls:
            blocks.remove(calls.pop())  # an aborted answer ends within it
        for call in calls:
            call["input"] = msgspec.Raw(call["input"].encode())
        reason, sequence = self._stop(output)
        ends = {"stop_reason": reason, "stop_sequence": sequence}
        return {**self._message(blocks), **ends, "usage": self._usage(output, output.token_ids)}

    # --- streamed ---

    def event(self, index: int, output: RequestOutput) -> bytes:
        """The events of one output: the first adds the beginning of the message, the last its stop reason and usage."""
        event = b""
        if not self._started:
            self._started = True
            begun = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": self._usage(output, ())}
            event = messages_event({"type": "message_start", "message": begun}) + PING
        if self.plan.form.reasoning_end_id is not None:
            self._token_ids += output.token_ids
        parts = self._parser.feed(output.text)
        if output.finish is not None:
            parts += self._parser.finish()
        for part in parts:
            event += self._part(part)
        return event if output.finish is None else event + self._end_block() + self._delta(output)

    def last_event(self) -> bytes:
        return STOP

    def _part(self, part: Part) -> bytes:
        kind = _kind(part)
        event = b""
        if isinstance(part, CallBegin) or self._open != kind:
            event = self._end_block()
            self._open = kind
            self._index += 1
            begun = {"type": "content_block_start", "index": self._index, "content_block": _new_block(part)}
            event += messages_event(begun)
        if isinstance(part, CallBegin):
            return event
        text, fields = self._shown(part), FIELDS[kind]
        delta = msgspec.json.encode({"type": fields.delta, fields.fragment: text})
        return event + BLOCK_DELTA % (self._index, delta) if text else event

    def _end_block(self) -> bytes:
        if not self._open:
            return b""
        event = BLOCK_STOP % self._index
        if self._open == "thinking":
            signature = msgspec.json.encode({"type": "signature_delta", "signature": SIGNATURE})
            event = BLOCK_DELTA % (self._index, signature) + event
        self._open = ""
        return event

    def _delta(self, output: RequestOutput) -> bytes:
        reason, sequence = self._stop(output)
        return messages_event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": self._usage(output, self._token_ids),
            }
        )

    # --- both ---

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self.head, "content": content}

    def _shown(self, part: Part) -> str:
        assert not isinstance(part, CallBegin)
        return "" if self.hides_thinking and isinstance(part, Reasoning) else part.text

    def _stop(self, output: RequestOutput) -> tuple[str, str | None]:
        """Return the stop reason, and the stop sequence that was found."""
        finish, usage = output.finish, output.usage
        assert finish is not None
        sampling = self.plan.sampling
        if finish.reason == FINISH_STOP:
            if self._parser.has_calls:
                return "tool_use", None
            if isinstance(finish.matched, str) and finish.matched in sampling.stop:
                return "stop_sequence", finish.matched
            return "end_turn", None
        asked = sampling.max_tokens or 0
        if finish.reason == FINISH_LENGTH and usage and usage.completion_tokens < asked and not finish.forced_close:
            return "model_context_window_exceeded", None
        return "max_tokens", None

    def _usage(self, output: RequestOutput, token_ids: Any) -> dict[str, Any]:
        """Usage of the request; before its end of its prompt alone, whose cached part is not known yet."""
        usage = output.usage or Usage(len(output.prompt_token_ids), 0, 0)
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": count_reasoning(token_ids, self.plan.form)},
        }


def _kind(part: Part) -> str:
    """The type of the block that a part belongs to."""
    return "text" if isinstance(part, Text) else "thinking" if isinstance(part, Reasoning) else "tool_use"


def _new_block(part: Part, *, whole: bool = False) -> dict[str, Any]:
    """The block that a part begins, without its text.

    Args:
        whole: not for a stream: the signature is there, and the input of a call is JSON text still to come.
    """
    if isinstance(part, CallBegin):
        return {
            "type": "tool_use",
            "id": f"toolu_{uuid.uuid4().hex[:24]}",
            "name": part.name,
            "input": "" if whole else {},
        }
    if isinstance(part, Reasoning):
        return {"type": "thinking", "thinking": "", "signature": SIGNATURE if whole else ""}
    return {"type": "text", "text": ""}


def messages_error_event(error: RequestError, request_id: str) -> bytes:
    """Encode an error within a stream."""
    return messages_event(anthropic_error_body(error, request_id))
