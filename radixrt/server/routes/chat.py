"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.chat.answer import AnswerForm, AnswerParser, count_reasoning
from radixrt.chat.plan import ChatPlan, plan_chat
from radixrt.chat.types import Conversation, ToolOptions
from radixrt.client.requests import expand_n
from radixrt.messages.client import GenerateReq, RequestOutput, TokenLogprob
from radixrt.server.http.connection import DONE, Generated, send_events
from radixrt.server.http.errors import json_response
from radixrt.server.http.receive import receive
from radixrt.server.protocol.chat_answer import chat_finish_reason, delta_of, message_of
from radixrt.server.protocol.constraints import constraint_body
from radixrt.server.protocol.fields import chat_decoder, chat_sampling_fields, check_stream_options, routing_options
from radixrt.server.protocol.usage import UsageSum, clean_logprob
from radixrt.server.request_groups import Service


async def chat_completions(service: Service, request: Request) -> Response:
    """OpenAI's chat completions. See `radixrt.server.protocol.fields.ChatRequest` for what is accepted."""
    body, info = await receive(service, request, chat_decoder)
    options = routing_options(body)
    include_usage = check_stream_options(body.stream_options, options["stream"])
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    plan = plan_chat(
        Conversation(
            messages=body.messages,
            template_kwargs=body.chat_template_kwargs,
            reasoning_effort=body.reasoning_effort,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
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
    requests = expand_n(GenerateReq(sampling=plan.sampling, chat=plan.prompt, **options))
    head = {
        "id": f"chatcmpl-{options['rid']}",
        "object": "chat.completion.chunk" if options["stream"] else "chat.completion",
        "created": int(time.time()),
        "model": service.model_name,
    }

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if options["stream"]:
            await send_events(send, chat_events(service, options["rid"], requests, plan, head, include_usage))
        else:
            outputs = await service.collect(options["rid"], requests, plan.names)
            content = chat_body(head, outputs, plan.form, plan.sampling.logprobs is not None)
            await json_response(content)(scope, receive, send)

    return Generated(answer)


# --- the answer ---


def chat_body(
    head: dict[str, Any], outputs: list[RequestOutput], form: AnswerForm, with_logprobs: bool
) -> dict[str, Any]:
    usage = UsageSum(len(outputs))
    choices = []
    for index, output in enumerate(outputs):
        assert output.finish is not None
        parser = AnswerParser(form)
        parts = [*parser.feed(output.text), *parser.finish()]
        choice: dict[str, Any] = {
            "index": index,
            "message": message_of(parts, form),
            "logprobs": chat_logprobs(output.logprobs or []) if with_logprobs else None,
            "finish_reason": chat_finish_reason(output.finish, parser, form),
            "stop_reason": output.finish.matched,
        }
        enforced = constraint_body(output)
        if enforced is not None:
            choice["radixrt"] = enforced
        choices.append(choice)
        usage.add(index, output.usage, count_reasoning(output.token_ids, form))
    return {**head, "choices": choices, "usage": usage.body(), "system_fingerprint": None}


def chat_logprobs(rows: list[TokenLogprob]) -> dict[str, Any]:
    content = []
    for row in rows:
        entry = _chat_logprob(row)
        entry["top_logprobs"] = [_chat_logprob(top) for top in row.top]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_logprob(row: TokenLogprob) -> dict[str, Any]:
    return {"token": row.text, "logprob": clean_logprob(row.logprob), "bytes": list(row.data)}


async def chat_events(
    service: Service,
    rid: str,
    requests: list[GenerateReq],
    plan: ChatPlan,
    head: dict[str, Any],
    include_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """One event group per delta: a choice's first brings its role chunk with it, its last its finish chunk."""
    choices = [_StreamedChoice(index, plan.form, head, include_usage) for index in range(len(requests))]
    usage = UsageSum(len(requests))
    async with aclosing(service.generate(rid, requests, plan.names)) as deltas:
        async for index, delta in deltas:
            event = choices[index].events(delta)
            if delta.finish is not None:
                usage.add(index, delta.usage, count_reasoning(choices[index].token_ids, plan.form))
            if event:
                yield event
    last = DONE
    if include_usage:
        last = choices[0].prefix + b'],"usage":%b}\n\n' % msgspec.json.encode(usage.body()) + DONE
    yield last


class _StreamedChoice:
    """One choice's chunks. All that is constant is encoded once; a text delta costs one JSON string and a
    concatenation."""

    def __init__(self, index: int, form: AnswerForm, head: dict[str, Any], include_usage: bool) -> None:
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
        """The chunks of one delta; empty where all of it is held back."""
        event = b""
        if not self._started:
            self._started = True
            event = self._before + b'{"role":"assistant","content":""}' + self._after
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
        """The chunks of a delta whose text is more than content; log-probabilities go with the next part there is."""
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
        encoded = msgspec.json.encode(chat_logprobs(rows))
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
