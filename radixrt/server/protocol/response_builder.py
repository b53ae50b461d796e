"""`ResponseBuilder`: makes a response, and the events of its stream, of the outputs of a request."""

from __future__ import annotations

import time
from typing import Any

from radixrt.chat.answer import AnswerForm, AnswerParser, Part, count_reasoning
from radixrt.chat.reasoning import Reasoning
from radixrt.chat.tool_parser import CallArguments, CallBegin
from radixrt.errors import RequestError
from radixrt.messages.client import RequestOutput, TokenLogprob
from radixrt.messages.parts import FINISH_LENGTH, FINISH_STOP, Usage
from radixrt.server.http.errors import error_body
from radixrt.server.protocol.answers import TokenReport, constraint_body, token_logprobs
from radixrt.server.protocol.response_items import Item, new_id

Event = dict[str, Any]

QUEUED, IN_PROGRESS = "queued", "in_progress"
COMPLETED, INCOMPLETE, CANCELLED, FAILED = "completed", "incomplete", "cancelled", "failed"

_REPORT = TokenReport()
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class ResponseBuilder:
    """Makes one response. What `body` shows is what a client has that adds up the events so far.

    Args:
        head: members of the response that do not change.
        form: parts that the answer's text can have.
        with_logprobs: report log-probabilities with texts.
        as_summary: report the reasoning as a summary of itself, for clients that read only summaries.

    Attributes:
        status: status of the response.
        output: items that are finished.
        cause: the error with which a failed response ended.
    """

    def __init__(self, head: dict[str, Any], form: AnswerForm, *, with_logprobs: bool, as_summary: bool) -> None:
        self.head = head
        self.status = QUEUED
        self.output: list[Item] = []
        self.cause: RequestError | None = None
        self._form = form
        self._with_logprobs = with_logprobs
        self._as_summary = as_summary
        self._parser = AnswerParser(form)
        self._item: _OpenItem | None = None
        self._rows: list[TokenLogprob] = []
        self._token_ids: list[int] = []
        self._events: list[Event] = []
        self._sequence = 0
        self._last: dict[str, Any] = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}

    @property
    def id(self) -> str:
        return str(self.head["id"])

    @property
    def has_begun(self) -> bool:
        """True once there has been an output or an error."""
        return self.status != QUEUED

    @property
    def is_open(self) -> bool:
        return self.status in (QUEUED, IN_PROGRESS)

    def body(self) -> dict[str, Any]:
        """Return the response as it is now."""
        output = list(self.output) if self._item is None else [*self.output, self._item.body(IN_PROGRESS)]
        return {**self.head, "status": self.status, "output": output, **self._last}

    def add(self, output: RequestOutput) -> list[Event]:
        """Take the next output of the request; return its events."""
        if self.status == QUEUED:
            self.status = IN_PROGRESS
            self._emit("response.created", response=self.body())
            self._emit("response.in_progress", response=self.body())
        if self._form.reasoning_end_id is not None:
            self._token_ids += output.token_ids
        if self._with_logprobs:
            self._rows += output.logprobs or []
        parts = self._parser.feed(output.text)
        if output.finish is not None:
            parts += self._parser.finish()
        for part in parts:
            self._add_part(part)
        if output.finish is not None:
            self._finish(output, output.finish.reason)
        return self._taken()

    def fail(self, error: RequestError) -> list[Event]:
        """End the response with an error; return the events."""
        self.cause = error
        self._end_item(INCOMPLETE)
        about = error_body(error)["error"]
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        code = "rate_limit_exceeded" if error.status == 429 else code
        # OpenAI's documentation has the members themselves, its service has them in "error"; clients read either.
        self._emit("error", **{**about, "type": "error", "code": about["code"] or about["type"]}, error=about)
        self._last["error"] = {"code": code, "message": about["message"]}
        self._end(FAILED, "response.failed")
        return self._taken()

    def cancel(self) -> None:
        """End the response without its last output, because its client is gone."""
        self._end_item(INCOMPLETE)
        self.status = CANCELLED

    # --- parts ---

    def _add_part(self, part: Part) -> None:
        if isinstance(part, CallBegin):
            self._begin(_OpenItem("function_call", self._as_summary, part.name))
            return
        if isinstance(part, CallArguments):
            kind = "function_call"
        else:
            kind = "reasoning" if isinstance(part, Reasoning) else "message"
        if self._item is None or self._item.kind != kind:
            self._begin(_OpenItem(kind, self._as_summary))
        self._extend(part.text)

    def _begin(self, item: _OpenItem) -> None:
        self._end_item(COMPLETED)
        self._item = item
        self._emit("response.output_item.added", item=item.added(), output_index=len(self.output))
        if item.kind == "function_call":
            return
        if item.is_summary:
            self._emit_of_item("response.reasoning_summary_part.added", summary_index=0, part=item.part(""))
        else:
            self._emit_of_item("response.content_part.added", content_index=0, part=item.part(""))

    def _extend(self, text: str) -> None:
        """Add text to the open item. A row of log-probabilities is that of the next text that is certain."""
        item = self._item
        assert item is not None
        item.texts.append(text)
        rows, self._rows = self._rows, []
        if item.kind == "function_call":
            self._emit_of_item("response.function_call_arguments.delta", delta=text)
        elif item.is_summary:
            self._emit_of_item("response.reasoning_summary_text.delta", summary_index=0, delta=text)
        elif item.kind == "reasoning":
            self._emit_of_item("response.reasoning_text.delta", content_index=0, delta=text)
        else:
            logprobs = token_logprobs(rows, _REPORT)
            item.logprobs += logprobs
            self._emit_of_item("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _end_item(self, status: str) -> None:
        """Finish the open item, if there is one."""
        item = self._item
        if item is None:
            return
        text = item.text
        if item.kind == "function_call":
            if status == COMPLETED:  # a client may run the call as soon as it sees this event
                self._emit_of_item("response.function_call_arguments.done", name=item.name, arguments=text)
        elif item.is_summary:
            self._emit_of_item("response.reasoning_summary_text.done", summary_index=0, text=text)
            self._emit_of_item("response.reasoning_summary_part.done", summary_index=0, part=item.part(text))
        else:
            if item.kind == "reasoning":
                self._emit_of_item("response.reasoning_text.done", content_index=0, text=text)
            else:
                self._emit_of_item("response.output_text.done", content_index=0, text=text, logprobs=item.logprobs)
            self._emit_of_item("response.content_part.done", content_index=0, part=item.part(text))
        done = item.body(status)
        self._emit("response.output_item.done", item=done, output_index=len(self.output))
        self.output.append(done)
        self._item = None

    # --- the end ---

    def _finish(self, output: RequestOutput, reason: str) -> None:
        status = {FINISH_STOP: COMPLETED, FINISH_LENGTH: INCOMPLETE}.get(reason, CANCELLED)
        is_message = self._item is not None and self._item.kind == "message"
        if self._rows and is_message:
            self._extend("")
        kinds = [item["type"] for item in self.output] + [self._item.kind if self._item is not None else "reasoning"]
        if status == COMPLETED and all(kind == "reasoning" for kind in kinds):
            self._begin(_OpenItem("message", self._as_summary))  # the model has answered, with an empty text
        is_call = self._item is not None and self._item.kind == "function_call"
        whole = self._parser.has_calls if is_call else status == COMPLETED
        self._end_item(COMPLETED if whole else INCOMPLETE)
        usage = output.usage or Usage()
        self._last["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": count_reasoning(self._token_ids, self._form)},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        enforced = constraint_body(output)
        if enforced is not None:
            self._last["radixrt"] = enforced
        if status == COMPLETED:
            self._last["completed_at"] = int(time.time())
        if status == INCOMPLETE:
            self._last["incomplete_details"] = {"reason": "max_output_tokens"}
        # The API has no event of a cancelled response.
        self._end(status, "response.completed" if status == COMPLETED else "response.incomplete")

    def _end(self, status: str, event: str) -> None:
        self.status = status
        self._emit(event, response=self.body())

    # --- events ---

    def _emit(self, kind: str, **members: Any) -> None:
        self._events.append({"type": kind, **members, "sequence_number": self._sequence})
        self._sequence += 1

    def _emit_of_item(self, kind: str, **members: Any) -> None:
        assert self._item is not None
        self._emit(kind, item_id=self._item.id, output_index=len(self.output), **members)

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class _OpenItem:
    """Item that is being written.

    Attributes:
        texts: fragments of its text so far; of its arguments, if it is a call.
    """

    def __init__(self, kind: str, as_summary: bool, name: str = "") -> None:
        self.kind = kind
        self.name = name
        self.is_summary = as_summary and kind == "reasoning"
        self.id = new_id({"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind])
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self._call_id = new_id("call")

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def part(self, text: str) -> Item:
        """The item's one part of content or summary."""
        if self.is_summary:
            return {"type": "summary_text", "text": text}
        part: Item = {"type": _PARTS[self.kind], "text": text}
        if self.kind == "message":
            part |= {"annotations": [], "logprobs": list(self.logprobs)}
        return part

    def added(self) -> Item:
        """The item before its first part."""
        if self.kind == "function_call":
            return self.body(IN_PROGRESS)
        return {**self.body(IN_PROGRESS), **({"summary": []} if self.is_summary else {"content": []})}

    def body(self, status: str) -> Item:
        head = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return {**head, "call_id": self._call_id, "name": self.name, "arguments": self.text}
        if self.is_summary:
            return {**head, "summary": [self.part(self.text)]}
        content = [self.part(self.text)]
        return {**head, "role": "assistant", "content": content} if self.kind == "message" else {
            **head, "summary": [], "content": content
        }  # fmt: skip
