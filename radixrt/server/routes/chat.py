"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.chat.answer import AnswerForm, AnswerParser, Part, count_reasoning
from radixrt.chat.plan import ChatPlan, plan_chat
from radixrt.chat.reasoning import Reasoning, Thinking
from radixrt.chat.tool_parser import CallBegin, Text, tool_call
from radixrt.chat.types import Conversation, ToolOptions
from radixrt.messages.client import GenerateReq, RequestOutput, TokenLogprob
from radixrt.messages.parts import FINISH_STOP, Finish
from radixrt.server.http.connection import DONE, generated
from radixrt.server.http.receive import receive
from radixrt.server.protocol.answers import TokenReport, UsageSum, chat_logprobs, constraint_body, finish_reason
from radixrt.server.protocol.fields import (
    allows_control_tokens,
    chat_decoder,
    chat_sampling_fields,
    check_stream_options,
    kept_prompt_tokens,
    routing_options,
)
from radixrt.server.request_context import RequestContext
from radixrt.server.request_groups import RequestGroup
from radixrt.server.service import Service


async def chat_completions(service: Service, request: Request) -> Response:
    """OpenAI's chat completions. `radixrt.server.protocol.fields.ChatRequest` lists the accepted fields."""
    body, info = await receive(service, request, chat_decoder)
    context: RequestContext = request.state.context
    options = routing_options(body, context)
    include_usage = check_stream_options(body.stream_options, options["stream"])
    kept = kept_prompt_tokens(body, info)
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    plan = plan_chat(
        Conversation(
            messages=body.messages,
            template_kwargs=body.chat_template_kwargs,
            reasoning_effort=body.reasoning_effort,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            thinking_token_budget=body.thinking_token_budget,
            allow_control_tokens=allows_control_tokens(body.allow_control_tokens, service.config),
        ),
        ToolOptions(
            tools=body.tools,
            tool_choice=body.tool_choice,
            parallel_tool_calls=body.parallel_tool_calls,
            functions=body.functions,
            function_call=body.function_call,
        ),
        body,
        chat_sampling_fields(body, info.vocab_size),
        service.dialect,
        info.vocab_size,
        {"prompt": "messages", "input_ids": "messages", "max_tokens": limit},
    )
    requests = [GenerateReq(sampling=plan.sampling, chat=plan.prompt, truncate_prompt_tokens=kept, **options)]
    head = {
        "id": f"chatcmpl-{options['rid']}",
        "object": "chat.completion.chunk" if options["stream"] else "chat.completion",
        "created": int(time.time()),
        "model": service.model_name,
    }
    report = TokenReport(
        ids=bool(body.return_token_ids),
        as_ids=bool(body.return_tokens_as_token_ids),
        of_prompt=body.prompt_logprobs is not None,
    )
    encoder = ChatEncoder(head, plan, include_usage, UsageSum(plan.sampling.n), report)
    group = RequestGroup(context, options["rid"], requests, plan.names)
    return generated(service, group, encoder, stream=options["stream"])


# --- the answer ---


@dataclass(slots=True)
class ChatEncoder:
    """Encodes the outputs of a chat request.

    Args:
        head: fields that every chunk, or the whole answer, begins with.
        include_usage: a stream ends with the usage.
    """

    head: dict[str, Any]
    plan: ChatPlan
    include_usage: bool
    usage: UsageSum
    report: TokenReport
    choices: dict[int, _StreamedChoice] = field(default_factory=dict)

    def body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        form = self.plan.form
        choices = []
        for index, output in enumerate(outputs):
            assert output.finish is not None
            parser = AnswerParser(form)
            parts = [*parser.feed(output.text), *parser.finish()]
            with_logprobs = self.plan.sampling.logprobs is not None
            choice: dict[str, Any] = {
                "index": index,
                "message": message_of(parts, form),
                "logprobs": chat_logprobs(output.logprobs or [], self.report) if with_logprobs else None,
                "finish_reason": chat_finish_reason(output.finish, parser, form),
                "stop_reason": output.finish.matched,
            }
            if self.report.ids:
                choice["token_ids"] = output.token_ids
            enforced = constraint_body(output)
            if enforced is not None:
                choice["radixrt"] = enforced
            choices.append(choice)
            self.usage.add(index, output.usage, count_reasoning(output.token_ids, form))
        answer = {**self.head, "choices": choices, "usage": self.usage.body(), "system_fingerprint": None}
        return {**answer, **self.report.prompt_body(outputs[0])}

    def event(self, index: int, output: RequestOutput) -> bytes:
        """The chunks of one output: the first output of a choice adds its role chunk, the last its finish chunk."""
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = _StreamedChoice(
                index, self.plan.form, self.head, self.include_usage, self.report
            )
        event = choice.events(output)
        if output.finish is not None:
            self.usage.add(index, output.usage, count_reasoning(choice.token_ids, self.plan.form))
        return event

    def last_event(self) -> bytes:
        if not self.include_usage:
            return DONE
        return self.choices[0].prefix + b'],"usage":%b}\n\n' % msgspec.json.encode(self.usage.body()) + DONE


def chat_finish_reason(finish: Finish, parser: AnswerParser, form: AnswerForm) -> str:
    """Return "tool_calls" (or "function_call") if the answer ended by itself and holds only complete calls."""
    if parser.has_calls and finish.reason == FINISH_STOP:
        return "function_call" if form.legacy else "tool_calls"
    return finish_reason(finish)


def delta_of(part: Part, form: AnswerForm) -> dict[str, Any]:
    """The `delta` of a chunk."""
    if isinstance(part, Text):
        return {"content": part.text}
    if isinstance(part, Reasoning):
        return {"reasoning_content": part.text}
    if isinstance(part, CallBegin):
        if form.legacy:
            return {"function_call": {"name": part.name, "arguments": ""}}
        return {"tool_calls": [{"index": part.index, **tool_call(part.name, "")}]}
    if form.legacy:
        return {"function_call": {"arguments": part.text}}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def message_of(parts: Iterable[Part], form: AnswerForm) -> dict[str, Any]:
    """The whole `message`."""
    content: list[str] = []
    reasoning: list[str] = []
    names: list[str] = []
    arguments: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            content.append(part.text)
        elif isinstance(part, Reasoning):
            reasoning.append(part.text)
        elif isinstance(part, CallBegin):
            names.append(part.name)
            arguments.append("")
        else:
            arguments[part.index] += part.text
    text = "".join(content)
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not names else None, "refusal": None}
    if form.thinking is not Thinking.OFF:
        message["reasoning_content"] = "".join(reasoning) or None
    if names and form.legacy:
        message["function_call"] = {"name": names[0], "arguments": arguments[0]}
    elif names:
        message["tool_calls"] = [tool_call(name, text) for name, text in zip(names, arguments, strict=True)]
    return message


class _StreamedChoice:
    """Chunks of one choice. Constant parts are encoded once, so a text delta costs one JSON string."""

    def __init__(
        self, index: int, form: AnswerForm, head: dict[str, Any], include_usage: bool, report: TokenReport
    ) -> None:
        self._report = report
        self._form = form
        self._parser = AnswerParser(form)
        self.prefix = b'data: %b,"system_fingerprint":null,"choices":[' % msgspec.json.encode(head)[:-1]
        self._suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._before = self.prefix + b'{"index":%d,"delta":' % index
        self._after = b',"logprobs":null,"finish_reason":null}' + self._suffix
        self._started = False
        self._rows: list[TokenLogprob] = []
        self.token_ids: list[int] = []

    def events(self, delta: RequestOutput) -> bytes:
        """The chunks of one output; empty if all of it is held back."""
        event = b""
        if not self._started:
            self._started = True
            event = self._before + b'{"role":"assistant","content":""}' + self._after
            if self._report.ids:
                about = msgspec.json.encode(self._report.prompt_body(delta))[1:-1]
                event = event.removesuffix(b"}\n\n") + (b"," if about else b"") + about + b"}\n\n"
        if self._report.ids and delta.output_ids:
            event += self._before + b'{},"token_ids":%b' % msgspec.json.encode(delta.token_ids) + self._after
        if not self._form.is_plain:
            event += self._parsed(delta)
        elif delta.logprobs:
            event += self._chunk({"content": delta.text}, delta.logprobs)
        elif delta.text:
            event += self._before + b'{"content":%b}' % msgspec.json.encode(delta.text) + self._after
        if delta.finish is not None:
            event += self._finish(delta)
        return event

    def _parsed(self, delta: RequestOutput) -> bytes:
        """The chunks of an output that is parsed into parts; log-probabilities are sent with the next part."""
        if self._form.reasoning_end_id is not None:
            self.token_ids += delta.token_ids
        self._rows += delta.logprobs or []
        parts = self._parser.feed(delta.text)
        if delta.finish is not None:
            parts += self._parser.finish()
        event = b""
        for part in parts:
            event += self._chunk(delta_of(part, self._form), self._rows)
            self._rows = []
        if delta.finish is not None and self._rows:
            event += self._chunk({}, self._rows)
        return event

    def _chunk(self, delta: dict[str, Any], rows: list[TokenLogprob]) -> bytes:
        body = msgspec.json.encode(delta)
        if not rows:
            return self._before + body + self._after
        encoded = msgspec.json.encode(chat_logprobs(rows, self._report))
        return self._before + body + b',"logprobs":%b,"finish_reason":null}' % encoded + self._suffix

    def _finish(self, delta: RequestOutput) -> bytes:
        assert delta.finish is not None
        last: dict[str, Any] = {
            "logprobs": None,
            "finish_reason": chat_finish_reason(delta.finish, self._parser, self._form),
            "stop_reason": delta.finish.matched,
        }
        enforced = constraint_body(delta)
        if enforced is not None:
            last["radixrt"] = enforced
        return self._before + b"{}," + msgspec.json.encode(last)[1:] + self._suffix
