"""Requests of clients of the engine over HTTP, such as programs on `rt.Endpoint`: POST /generate, asked for as msgpack.

`radixrt.messages.http` describes the body and the answer. The envelope of a request has the same limits as that of
other routes, and the engine checks the rest, as it does for any client.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, EngineReady, PartsInput, RequestOutput
from radixrt.messages.http import CONTENT_TYPE, EngineCall, encode_frame
from radixrt.messages.parts import Finish, FinishError
from radixrt.server.access.request_context import RequestContext
from radixrt.server.http.connection import Generated, send_events
from radixrt.server.http.receive import receive
from radixrt.server.protocol.fields import MAX_PARTS, check_envelope
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service

call_decoder = msgspec.json.Decoder(EngineCall)


def is_engine_client(request: Request) -> bool:
    """Return whether a request asks for an answer in the engine's own format."""
    return request.headers.get("accept") == CONTENT_TYPE


async def answer_call(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    return await receive(service, request, call_decoder, partial(_answer, service, request.state.context))


def _answer(service: Service, context: RequestContext, body: EngineCall, info: EngineReady) -> Response:
    asked = body.request
    check_envelope(asked.envelope)
    if asked.sampling is not None and asked.sampling.n != 1:
        raise RequestError("n must be 1 for a request in the engine; send one for each completion", param="n")
    if any(isinstance(row.input, PartsInput) and len(row.input.parts) > MAX_PARTS for row in asked.rows):
        raise RequestError(f"a prompt may have at most {MAX_PARTS} parts", param="input_parts")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", CONTENT_TYPE.encode())]
        await send_events(send, _frames(service, context, asked), _error_frame, headers)

    return Generated(answer)


async def _frames(service: Service, context: RequestContext, asked: ClientRequest) -> AsyncGenerator[bytes, None]:
    async with aclosing(service.groups.generate(RequestGroup(context, asked.rid, [asked], {}))) as outputs:
        async for _, output in outputs:
            yield encode_frame(output)


def _error_frame(error: RequestError) -> bytes:
    """Encode an error after the first output as the request's last output."""
    failed = FinishError(error.message, error.param, error.code, error.status, error.retry_after_s)
    return encode_frame(RequestOutput("", finish=Finish("error", error=failed)))


def engine_info(info: EngineReady) -> Response:
    """Answer with the properties of the engine and its model."""
    return Response(msgspec.msgpack.encode(info), media_type=CONTENT_TYPE)
