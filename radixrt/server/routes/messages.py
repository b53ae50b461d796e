"""POST /v1/messages and POST /v1/messages/count_tokens: Anthropic's Messages API over the parts of the chat route."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixrt.chat.plan import ChatPlan
from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, EngineReady, InputRow
from radixrt.messages.request import Envelope
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.base import named_event
from radixrt.server.answers.errors import messages_error
from radixrt.server.answers.messages import CountedTokens, MessagesEncoder
from radixrt.server.http.connection import generated
from radixrt.server.http.errors import json_response
from radixrt.server.http.receive import receive
from radixrt.server.protocol.fields import allows_control_tokens, envelope_of
from radixrt.server.protocol.messages_fields import (
    CountTokensRequest,
    MessagesRequest,
    check_version,
    count_tokens_decoder,
    messages_decoder,
)
from radixrt.server.protocol.messages_prompt import plan_messages
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service
from radixrt.tasks.tokenize import Tokenize


async def messages(service: Service, request: Request) -> Response:
    """Anthropic's messages. `radixrt.server.protocol.messages_fields.MessagesRequest` lists the accepted fields."""
    check_version(request.headers.get("anthropic-version"))
    return await receive(service, request, messages_decoder, partial(_answer, service, request.state.context))


def _answer(service: Service, context: RequestContext, body: MessagesRequest, info: EngineReady) -> Response:
    envelope = envelope_of(body, context)
    plan = _plan(service, body, _sampling_fields(body), info)
    stream = bool(body.stream)
    requests = [ClientRequest(envelope, [InputRow(plan.prompt)], plan.sampling, stream)]
    hides_thinking = body.thinking is not None and body.thinking.display == "omitted"
    encoder = MessagesEncoder(f"msg_{envelope.rid}", service.model_name, plan, hides_thinking=hides_thinking)
    return generated(
        service,
        RequestGroup(context, envelope.rid, requests, plan.names),
        encoder,
        stream=stream,
        error_event=lambda error: named_event(messages_error(error, context.request_id)),
    )


async def count_tokens(service: Service, request: Request) -> Response:
    """Count the tokens of a message's prompt, as the same request to /v1/messages counts them in its usage."""
    check_version(request.headers.get("anthropic-version"))
    context: RequestContext = request.state.context
    plan = await receive(service, request, count_tokens_decoder, lambda body, info: _plan(service, body, {}, info))
    ids = await service.groups.run(context, Tokenize(plan.prompt, Envelope(context.rid)), plan.names)
    return json_response(CountedTokens(len(ids)))


def _plan(service: Service, body: CountTokensRequest, sampling: dict[str, Any], info: EngineReady) -> ChatPlan:
    allowed = allows_control_tokens(None, service.config)
    return plan_messages(body, sampling, service.dialect, info.vocab_size, allow_control_tokens=allowed)


def _sampling_fields(body: MessagesRequest) -> dict[str, Any]:
    """Collect the fields of `SamplingParams` that a request gives.

    Raises:
        RequestError: max_tokens asks for no answer.
    """
    if body.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1; the prompt of every request is cached", param="max_tokens")
    given = {name: getattr(body, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")}
    given["stop"] = body.stop_sequences
    return {name: value for name, value in given.items() if value is not None}
