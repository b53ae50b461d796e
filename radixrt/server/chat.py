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

from radixrt.engine.client import expand_n
from radixrt.errors import RequestError
from radixrt.messages import ChatPrompt, GenerateReq, TokenLogprob
from radixrt.sampling_params import SamplingParams
from radixrt.server.connection import DONE, Generated, send_events
from radixrt.server.errors import json_response
from radixrt.server.openai import UsageSum, clean_logprob, finish_reason
from radixrt.server.parsing import decode, read_body
from radixrt.server.protocol import (
    MAX_MESSAGES,
    MAX_TOP_LOGPROBS,
    ChatMessage,
    ChatRequest,
    build_sampling,
    chat_decoder,
    check_format,
    check_stream_options,
    refuse,
    routing_options,
)
from radixrt.server.service import Output, Service

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


async def chat_completions(service: Service, request: Request) -> Response:
    """OpenAI's chat completions. See docs of `radixrt.server.protocol.ChatRequest` for what is accepted."""
    body = decode(await read_body(request, service.config.max_body_bytes), chat_decoder)
    info = service.admit(body.model)
    options = routing_options(body)
    include_usage = check_stream_options(body.stream_options, options["stream"])
    sampling = chat_sampling(body, info.vocab_size)
    chat = chat_prompt(body)
    requests = expand_n(GenerateReq(sampling=sampling, chat=chat, **options))
    head = {
        "id": f"chatcmpl-{options['rid']}",
        "object": "chat.completion.chunk" if options["stream"] else "chat.completion",
        "created": int(time.time()),
        "model": service.model_name,
    }

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if options["stream"]:
            await send_events(send, chat_events(service, options["rid"], requests, head, include_usage))
        else:
            outputs = await service.collect(options["rid"], requests, "messages")
            await json_response(chat_body(head, outputs, sampling.logprobs is not None))(scope, receive, send)

    return Generated(answer)


# --- the request ---


def chat_sampling(body: ChatRequest, vocab_size: int) -> SamplingParams:
    check_format(body.response_format)
    _refuse_tools(body)
    if body.modalities is not None and body.modalities != ["text"]:
        raise refuse("modalities", "any modality but text")
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
    if top and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    limit_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    try:
        return build_sampling(
            body,
            vocab_size,
            max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            logprobs=min(top, vocab_size) if body.logprobs else None,
        )
    except RequestError as error:
        if error.param == "max_tokens":
            raise RequestError(f"{limit_name} is out of bounds: {error.message}", param=limit_name) from None
        raise


def _refuse_tools(body: ChatRequest) -> None:
    if body.tools and body.tool_choice != "none":
        raise refuse("tools")
    if body.tool_choice not in (None, "none", "auto"):
        raise refuse("tool_choice")


def chat_prompt(body: ChatRequest) -> ChatPrompt:
    """The conversation in the form that chat templates know: plain strings, the roles that models were trained on."""
    if not body.messages:
        raise RequestError("messages must hold at least one message", param="messages")
    if len(body.messages) > MAX_MESSAGES:
        raise RequestError(f"messages holds more than {MAX_MESSAGES} messages", param="messages")
    continue_final = bool(body.continue_final_message)
    # A message that is to be continued is not followed by another turn's header, whatever the default says.
    add_generation_prompt = not continue_final if body.add_generation_prompt is None else body.add_generation_prompt
    if continue_final and add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    return ChatPrompt(
        messages=msgspec.json.encode([_plain_message(i, message) for i, message in enumerate(body.messages)]),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final,
        template_kwargs=msgspec.json.encode(kwargs),
    )


def _plain_message(index: int, message: ChatMessage) -> dict[str, Any]:
    role = _ROLES.get(message.role)
    if role is None:
        raise RequestError(
            f"the role {message.role[:40]!r} is not one of {', '.join(_ROLES)}", param=f"messages[{index}].role"
        )
    plain: dict[str, Any] = {"role": role, "content": _plain_content(index, message)}
    for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value:
            plain[name] = value
    return plain


def _plain_content(index: int, message: ChatMessage) -> str | None:
    content = message.content
    if content is None and message.role != "assistant":
        raise RequestError(
            f"messages[{index}].content is required", param=f"messages[{index}].content", code="missing_field"
        )
    if content is None or isinstance(content, str):
        return content
    texts: list[str] = []
    for i, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        param = f"messages[{index}].content[{i}]"
        if part.type not in ("text", "refusal"):
            raise refuse(param, f"a content part of type {part.type[:40]!r}")
        if text is None:
            raise RequestError(f"{param}.{part.type} is required", param=f"{param}.{part.type}", code="missing_field")
        texts.append(text)
    return "".join(texts)


# --- the answer ---


def chat_body(head: dict[str, Any], outputs: list[Output], with_logprobs: bool) -> dict[str, Any]:
    usage = UsageSum(len(outputs))
    choices = []
    for index, output in enumerate(outputs):
        usage.add(index, output.usage)
        choices.append(
            {
                "index": index,
                "message": {"role": "assistant", "content": output.text, "refusal": None},
                "logprobs": chat_logprobs(output.logprobs) if with_logprobs else None,
                "finish_reason": finish_reason(output.finish),
                "stop_reason": output.finish.matched,
            }
        )
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
    service: Service, rid: str, requests: list[GenerateReq], head: dict[str, Any], include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """One event group per delta: a choice's first brings its role chunk with it, its last its finish chunk.

    All that is constant is encoded once; a text delta costs one JSON string and a concatenation.
    """
    encode = msgspec.json.encode
    prefix = b'data: %b,"system_fingerprint":null,"choices":[' % encode(head)[:-1]
    suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
    before = [prefix + b'{"index":%d,"delta":{"content":' % index for index in range(len(requests))]
    after = b'},"logprobs":null,"finish_reason":null}' + suffix
    started: set[int] = set()
    usage = UsageSum(len(requests))
    async with aclosing(service.generate(rid, requests, "messages")) as deltas:
        async for index, delta in deltas:
            event = b""
            if index not in started:
                started.add(index)
                role = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
                event = prefix + role % index + suffix
            if delta.logprobs:
                body = (encode(delta.text), encode(chat_logprobs(delta.logprobs)))
                event += before[index] + b'%b},"logprobs":%b,"finish_reason":null}' % body + suffix
            elif delta.text:
                event += before[index] + encode(delta.text) + after
            if delta.finish is not None:
                usage.add(index, delta.usage)
                reasons = (index, encode(finish_reason(delta.finish)), encode(delta.finish.matched))
                end = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % reasons
                event += prefix + end + suffix
            if event:
                yield event
    last = DONE
    if include_usage:
        last = prefix + b'],"usage":%b}\n\n' % encode(usage.body()) + DONE
    yield last
