"""Answers of /v1/chat/completions, and `ChatEncoder`, which makes them from the outputs of a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from radixrt.chat.answer import AnswerForm, AnswerParser
from radixrt.chat.channels import Part
from radixrt.chat.plan import ChatPlan
from radixrt.chat.reasoning import Reasoning, Thinking
from radixrt.chat.tool_parser import CallArguments, CallBegin, Text, new_call_id
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import FINISH_STOP, Finish
from radixrt.messages.reads import TokenLogprob as LogprobRow
from radixrt.server.answers.base import DONE, Answer, around_choices, data_event, encode
from radixrt.server.answers.parts import (
    Enforcement,
    PromptMembers,
    TokenLogprobs,
    TokenReport,
    Usage,
    UsageSum,
    enforcement,
    finish_reason,
    stop_reason,
)

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class ChatLogprobs(Answer):
    """Log-probabilities of the tokens of a choice, reasoning and calls included."""

    content: list[TokenLogprobs]
    refusal: None = None


class CalledFunction(Answer):
    """Name and arguments of a call; the arguments are JSON text."""

    name: str
    arguments: str


class CalledTool(Answer):
    """One call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Answer):
    """The message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[CalledTool] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Answer):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET
    radixrt: Enforcement | UnsetType = UNSET


class ChatCompletion(PromptMembers, kw_only=True):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None


class FunctionDelta(Answer):
    """Name of a call, or a fragment of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolDelta(Answer, kw_only=True):
    """A call that begins, or a fragment of its arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(Answer, kw_only=True):
    """Part of a message that a chunk adds to it."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Answer, kw_only=True):
    """Part of one answer."""

    index: int
    delta: ChatDelta = msgspec.field(default_factory=ChatDelta)
    token_ids: list[int] | UnsetType = UNSET
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    radixrt: Enforcement | UnsetType = UNSET


class ChatChunk(PromptMembers, kw_only=True):
    """Data of one event of a chat stream; the chunk with the usage has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[ChunkChoice] = []
    usage: Usage | UnsetType | None = UNSET


# --- from outputs ---


@dataclass(slots=True)
class ChatEncoder:
    """Encodes the outputs of a chat request.

    Args:
        include_usage: a stream ends with the usage.
    """

    answer_id: str
    created: int
    model: str
    plan: ChatPlan
    include_usage: bool
    usage: UsageSum
    report: TokenReport
    choices: dict[int, _StreamedChoice] = field(default_factory=dict)

    def body(self, outputs: list[RequestOutput]) -> ChatCompletion:
        form, with_logprobs = self.plan.form, self.plan.sampling.logprobs is not None
        choices = []
        for index, output in enumerate(outputs):
            assert output.finish is not None
            parser = AnswerParser(form)
            choices.append(
                ChatChoice(
                    index,
                    message_of(parser.take(output), form),
                    ChatLogprobs(self.report.token_logprobs(output.logprobs or [])) if with_logprobs else None,
                    chat_finish_reason(output.finish, parser, form),
                    stop_reason(output.finish),
                    self.report.of_output(output),
                    enforcement(output),
                )
            )
            self.usage.add(index, output.usage, parser.reasoning_tokens)
        return ChatCompletion(
            id=self.answer_id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=self.usage.total(),
            **self.report.about_prompt(outputs[0]),
        )

    def event(self, index: int, output: RequestOutput) -> bytes:
        """The chunks of one output: the first output of a choice adds its role chunk, the last its finish chunk."""
        choice = self.choices.get(index)
        if choice is None:
            usage = None if self.include_usage else UNSET
            choice = self.choices[index] = _StreamedChoice(index, self.plan.form, self._chunk(usage), self.report)
        event = choice.events(output)
        if output.finish is not None:
            self.usage.add(index, output.usage, choice.parser.reasoning_tokens)
        return event

    def last_event(self) -> bytes:
        return data_event(self._chunk(self.usage.total())) + DONE if self.include_usage else DONE

    def _chunk(self, usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(id=self.answer_id, created=self.created, model=self.model, usage=usage)


def chat_finish_reason(finish: Finish, parser: AnswerParser, form: AnswerForm) -> FinishReason:
    """Return "tool_calls" (or "function_call") if the answer ended by itself and holds only complete calls."""
    if parser.has_calls and finish.reason == FINISH_STOP:
        return "function_call" if form.legacy else "tool_calls"
    return finish_reason(finish)


def message_of(parts: Iterable[Part], form: AnswerForm) -> AnswerMessage:
    """Return the whole message."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CalledFunction] = []
    for part in parts:
        if isinstance(part, Text):
            content.append(part.text)
        elif isinstance(part, Reasoning):
            reasoning.append(part.text)
        elif isinstance(part, CallBegin):
            calls.append(CalledFunction(part.name, ""))
        else:
            calls[part.index].arguments += part.text
    text = "".join(content)
    message = AnswerMessage("assistant", text if text or not calls else None)
    if form.thinking is not Thinking.OFF:
        message.reasoning_content = "".join(reasoning) or None
    if calls and form.legacy:
        message.function_call = calls[0]
    elif calls:
        message.tool_calls = [CalledTool(new_call_id(), "function", call) for call in calls]
    return message


def delta_of(part: Part, form: AnswerForm) -> ChatDelta:
    """Return the part of the message that a part of the answer's text adds."""
    if isinstance(part, Text):
        return ChatDelta(content=part.text)
    if isinstance(part, Reasoning):
        return ChatDelta(reasoning_content=part.text)
    function = FunctionDelta(part.name, "") if isinstance(part, CallBegin) else FunctionDelta(arguments=part.text)
    if form.legacy:
        return ChatDelta(function_call=function)
    if isinstance(part, CallBegin):
        return ChatDelta(tool_calls=[ToolDelta(index=part.index, id=new_call_id(), type="function", function=function)])
    return ChatDelta(tool_calls=[ToolDelta(index=part.index, function=function)])


class _StreamedChoice:
    """Chunks of one choice. Constant parts are encoded once, so a chunk of text costs one JSON string.

    Args:
        chunk: the stream's chunks, without their choices.
    """

    def __init__(self, index: int, form: AnswerForm, chunk: ChatChunk, report: TokenReport) -> None:
        self._index = index
        self._form = form
        self._chunk = chunk
        self._report = report
        self.parser = AnswerParser(form)
        self._before, self._after = around_choices(chunk)
        self._around_texts: dict[tuple[type[Part], int], tuple[bytes, bytes]] = {}
        self._started = False
        self._rows: list[LogprobRow] = []

    def events(self, output: RequestOutput) -> bytes:
        """The chunks of one output; empty if all of it is held back."""
        event = b""
        if not self._started:
            self._started = True
            event = self._first(output)
        if self._report.ids and output.output_ids:
            event += self._event(ChunkChoice(index=self._index, token_ids=output.token_ids))
        if not self._form.is_plain:
            event += self._parsed(output)
        elif output.logprobs:
            event += self._delta(ChatDelta(content=output.text), output.logprobs)
        elif output.text:
            event += self._text(Text, output.text)
        if output.finish is not None:
            reason = chat_finish_reason(output.finish, self.parser, self._form)
            last = ChunkChoice(index=self._index, finish_reason=reason, stop_reason=stop_reason(output.finish))
            last.radixrt = enforcement(output)
            event += self._event(last)
        return event

    def _first(self, output: RequestOutput) -> bytes:
        about = self._report.about_prompt(output) if self._report.ids else {}
        role = ChunkChoice(index=self._index, delta=ChatDelta(role="assistant", content=""))
        return data_event(msgspec.structs.replace(self._chunk, choices=[role], **about))

    def _parsed(self, output: RequestOutput) -> bytes:
        """The chunks of an output that is parsed into parts; log-probabilities are sent with the next part."""
        self._rows += output.logprobs or []
        event = b""
        for part in self.parser.take(output):
            if self._rows or isinstance(part, CallBegin):
                event += self._delta(delta_of(part, self._form), self._rows)
                self._rows = []
            else:
                event += self._text(type(part), part.text, part.index if isinstance(part, CallArguments) else 0)
        if output.finish is not None and self._rows:
            event += self._delta(ChatDelta(), self._rows)
        return event

    def _text(self, kind: type[Part], text: str, index: int = 0) -> bytes:
        """The chunk of a text, of reasoning or of the arguments of call `index`, without log-probabilities."""
        around = self._around_texts.get((kind, index))
        if around is None:
            part: Part = Reasoning("") if kind is Reasoning else Text("")
            if kind is CallArguments:
                part = CallArguments(index, "")
            # The part's text is the last empty string of the chunk.
            before, _, after = self._delta(delta_of(part, self._form), []).rpartition(b'""')
            around = self._around_texts[kind, index] = before, after
        return around[0] + encode(text) + around[1]

    def _delta(self, delta: ChatDelta, rows: list[LogprobRow]) -> bytes:
        logprobs = ChatLogprobs(self._report.token_logprobs(rows)) if rows else None
        return self._event(ChunkChoice(index=self._index, delta=delta, logprobs=logprobs))

    def _event(self, choice: ChunkChoice) -> bytes:
        return self._before + encode(choice) + self._after
