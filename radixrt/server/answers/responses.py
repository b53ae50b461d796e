"""`ResponseBuilder`: makes a response, and the events of its stream, of the outputs of a request."""

from __future__ import annotations

import time
import uuid
from typing import Final, Literal

import msgspec

from radixrt.chat.answer import AnswerForm, AnswerParser
from radixrt.chat.channels import Part
from radixrt.chat.reasoning import Reasoning
from radixrt.chat.tool_parser import CallArguments, CallBegin
from radixrt.errors import RequestError
from radixrt.messages import parts as engine
from radixrt.messages.client import RequestOutput
from radixrt.messages.reads import TokenLogprob
from radixrt.server.answers import response_types as types
from radixrt.server.answers.errors import error_detail
from radixrt.server.answers.parts import (
    InputDetails,
    InputUsage,
    ReasoningTokens,
    TokenLogprobs,
    TokenReport,
    cached_tokens_details,
    enforcement,
)

QUEUED: Final = "queued"
IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"

_REPORT = TokenReport()
_ENDS: dict[str, Literal["completed", "incomplete"]] = {
    engine.FINISH_STOP: COMPLETED,
    engine.FINISH_LENGTH: INCOMPLETE,
    engine.FINISH_TIMEOUT: INCOMPLETE,
}
Kind = Literal["message", "reasoning", "function_call"]


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


class ResponseBuilder:
    """Makes one response. A client that adds up the events so far has the response that `body` returns.

    Args:
        form: parts that the answer's text can have.
        with_logprobs: report log-probabilities with texts.
        as_summary: report the reasoning as a summary of itself, for clients that read only summaries.

    Attributes:
        response: the response, without the item that is being written.
        cause: the error with which a failed response ended.
    """

    def __init__(self, response: types.Response, form: AnswerForm, *, with_logprobs: bool, as_summary: bool) -> None:
        self.response = response
        self.cause: RequestError | None = None
        self._with_logprobs = with_logprobs
        self._as_summary = as_summary
        self._parser = AnswerParser(form)
        self._item: _OpenItem | None = None
        self._rows: list[TokenLogprob] = []
        self._events: list[types.ResponseEvent] = []
        self._sequence = 0

    @property
    def has_begun(self) -> bool:
        """True once there has been an output or an error."""
        return self.response.status != QUEUED

    @property
    def is_open(self) -> bool:
        return self.response.status in (QUEUED, IN_PROGRESS)

    def body(self) -> types.Response:
        """Return the response as it is now."""
        output = self.response.output
        output = [*output] if self._item is None else [*output, self._item.body(IN_PROGRESS)]
        return msgspec.structs.replace(self.response, output=output)

    def add(self, output: RequestOutput) -> list[types.ResponseEvent]:
        """Take the next output of the request; return its events."""
        if not self.has_begun:
            self.response.status = IN_PROGRESS
            self._emit(types.ResponseCreated(self.body()))
            self._emit(types.ResponseInProgress(self.body()))
        if self._with_logprobs:
            self._rows += output.logprobs or []
        for part in self._parser.take(output):
            self._add_part(part)
        if output.finish is not None:
            self._finish(output, output.finish.reason)
        return self._taken()

    def fail(self, error: RequestError) -> list[types.ResponseEvent]:
        """End the response with an error; return the events."""
        self.cause = error
        self._end_item(INCOMPLETE)
        about = error_detail(error)
        self._emit(types.ResponseErrorEvent(about.message, about.param, about.code or about.type, about))
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        code = "rate_limit_exceeded" if error.status == 429 else code
        self.response.error = types.ResponseError(code, about.message)
        self.response.status = FAILED
        self._emit(types.ResponseFailed(self.body()))
        return self._taken()

    def cancel(self) -> None:
        """End the response without its last output, because its client is gone."""
        self._end_item(INCOMPLETE)
        self.response.status = CANCELLED

    # --- parts ---

    def _add_part(self, part: Part) -> None:
        if isinstance(part, CallBegin):
            self._begin(_OpenItem("function_call", self._as_summary, part.name))
            return
        kind: Kind = "reasoning" if isinstance(part, Reasoning) else "message"
        if isinstance(part, CallArguments):
            kind = "function_call"
        if self._item is None or self._item.kind != kind:
            self._begin(_OpenItem(kind, self._as_summary))
        self._extend(part.text)

    def _begin(self, item: _OpenItem) -> None:
        self._end_item(COMPLETED)
        self._item = item
        index = len(self.response.output)
        self._emit(types.ItemAdded(item.added(), index))
        if item.is_summary:
            self._emit(types.SummaryPartAdded(item.id, index, 0, types.SummaryText("")))
        elif item.kind != "function_call":
            self._emit(types.ContentAdded(item.id, index, 0, item.part("")))

    def _extend(self, text: str) -> None:
        """Add text to the open item. Rows of log-probabilities belong to the next text that is certain."""
        item, index = self._item, len(self.response.output)
        assert item is not None
        item.texts.append(text)
        rows, self._rows = self._rows, []
        if item.kind == "function_call":
            self._emit(types.ArgumentsAdded(item.id, index, text))
        elif item.is_summary:
            self._emit(types.SummaryAdded(item.id, index, 0, text))
        elif item.kind == "reasoning":
            self._emit(types.ReasoningAdded(item.id, index, 0, text))
        else:
            logprobs = _REPORT.token_logprobs(rows)
            item.logprobs += logprobs
            self._emit(types.TextAdded(item.id, index, 0, text, logprobs))

    def _end_item(self, status: types.ItemStatus) -> None:
        """Finish the open item, if there is one."""
        item, index = self._item, len(self.response.output)
        if item is None:
            return
        text = item.text
        if item.kind == "function_call":
            if status == COMPLETED:  # a client may run the call as soon as it sees this event
                self._emit(types.ArgumentsDone(item.id, index, item.name, text))
        elif item.is_summary:
            self._emit(types.SummaryDone(item.id, index, 0, text))
            self._emit(types.SummaryPartDone(item.id, index, 0, types.SummaryText(text)))
        else:
            if item.kind == "reasoning":
                self._emit(types.ReasoningDone(item.id, index, 0, text))
            else:
                self._emit(types.TextDone(item.id, index, 0, text, item.logprobs))
            self._emit(types.ContentDone(item.id, index, 0, item.part(text)))
        done = item.body(status)
        self._emit(types.ItemDone(done, index))
        self.response.output.append(done)
        self._item = None

    # --- the end ---

    def _finish(self, output: RequestOutput, reason: str) -> None:
        response = self.response
        status: types.ResponseStatus = _ENDS.get(reason, CANCELLED)
        if self._rows and self._item is not None and self._item.kind == "message":
            self._extend("")
        kinds = [item.type for item in response.output]
        kinds.append("reasoning" if self._item is None else self._item.kind)
        if status == COMPLETED and all(kind == "reasoning" for kind in kinds):
            self._begin(_OpenItem("message", self._as_summary))  # the model has answered, with an empty text
        is_call = self._item is not None and self._item.kind == "function_call"
        whole = self._parser.has_calls if is_call else status == COMPLETED
        self._end_item(COMPLETED if whole else INCOMPLETE)
        usage = output.usage or engine.Usage()
        response.usage = InputUsage(
            usage.prompt_tokens,
            InputDetails(usage.cached_tokens, 0, cached_tokens_details(usage)),
            usage.completion_tokens,
            ReasoningTokens(self._parser.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )
        response.radixrt = enforcement(output)
        response.status = status
        if status == COMPLETED:
            response.completed_at = int(time.time())
            self._emit(types.ResponseCompleted(self.body()))
            return
        if status == INCOMPLETE:
            response.incomplete_details = types.ResponseIncomplete("max_output_tokens")
        self._emit(types.ResponseCutShort(self.body()))  # the API has no event of a cancelled response

    def _emit(self, event: types.ResponseEvent) -> None:
        event.sequence_number = self._sequence
        self._events.append(event)
        self._sequence += 1

    def _taken(self) -> list[types.ResponseEvent]:
        events, self._events = self._events, []
        return events


class _OpenItem:
    """Item that is being written.

    Attributes:
        texts: fragments of its text so far; of its arguments, if it is a call.
    """

    def __init__(self, kind: Kind, as_summary: bool, name: str = "") -> None:
        self.kind = kind
        self.name = name
        self.is_summary = as_summary and kind == "reasoning"
        self.id = new_id({"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind])
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        self._call_id = new_id("call")

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def part(self, text: str) -> types.OutputText | types.ReasoningText:
        """Return the item's one part of content."""
        if self.kind == "reasoning":
            return types.ReasoningText(text)
        return types.OutputText(text, logprobs=list(self.logprobs))

    def added(self) -> types.OutputItem:
        """Return the item before its first part."""
        item = self.body(IN_PROGRESS)
        if isinstance(item, types.ReasoningItem) and self.is_summary:
            item.summary = []
        elif not isinstance(item, types.CallItem):
            item.content = []
        return item

    def body(self, status: types.ItemStatus) -> types.OutputItem:
        text = self.text
        if self.kind == "function_call":
            return types.CallItem(self.id, self.kind, status, self._call_id, self.name, text)
        if self.kind == "message":
            content = types.OutputText(text, logprobs=list(self.logprobs))
            return types.MessageItem(self.id, self.kind, status, "assistant", [content])
        if self.is_summary:
            return types.ReasoningItem(self.id, self.kind, status, [types.SummaryText(text)])
        return types.ReasoningItem(self.id, self.kind, status, [], [types.ReasoningText(text)])
