"""/v1/responses: OpenAI's Responses API, on the prompts, tools, constraints and answers of chats.

`radixrt.server.protocol.response_fields.ResponsesRequest` lists the accepted fields; docs/responses.md describes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.chat.constraint import renamed
from radixrt.chat.plan import ChatPlan, plan_chat
from radixrt.chat.prompt import template_variables
from radixrt.chat.types import Conversation
from radixrt.errors import RequestError, shown, unsupported
from radixrt.messages.client import ClientRequest, EngineReady, InputRow
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.base import named_event
from radixrt.server.answers.response_messages import (
    STORED_BYTES_PER_TOKEN,
    STORED_IMAGE_BYTES,
    StoredConversation,
    bounded,
    decode_messages,
    encode_messages,
    item_messages,
    messages_of,
    num_image_bytes,
)
from radixrt.server.answers.response_store import StoredResponse
from radixrt.server.answers.response_types import InputItems, ResponseDeleted, ResponseEvent
from radixrt.server.answers.responses import CANCELLED, FAILED, ResponseBuilder, new_id
from radixrt.server.http.connection import Generated, openai_error_event, send_events
from radixrt.server.http.errors import as_request_error, json_response
from radixrt.server.http.receive import receive
from radixrt.server.protocol.fields import allows_control_tokens, envelope_of
from radixrt.server.protocol.response_fields import (
    ResponsesRequest,
    check_includable,
    check_known,
    responses_decoder,
)
from radixrt.server.protocol.response_items import read_items
from radixrt.server.protocol.response_options import (
    begun_response,
    read_effort,
    read_format,
    read_sampling,
    read_tool_options,
)
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service

NAMES = {"prompt": "input", "messages": "input", "input_ids": "input", "max_tokens": "max_output_tokens"}
"""The client's names for fields of the engine."""

DEFAULT_PAGE, MAX_PAGE = 20, 100
MAX_SHOWN = 64
HARMLESS = (("stream", "false"), ("include_obfuscation", "false"))
"""Query parameters with the values that mean "off"."""

CANCEL_WAIT_S = 5.0
"""Longest time for which the answer to a cancellation waits for the end of the response."""


@dataclass(frozen=True, slots=True)
class Run:
    """One response to be generated.

    Attributes:
        stored: its place in the store; None if it is not stored.
        background: its client does not wait for it.
    """

    group: RequestGroup
    builder: ResponseBuilder
    stored: StoredResponse | None
    background: bool


async def create_response(service: Service, request: Request) -> Response:
    """Create a response: whole, as a stream of events, or in the background."""
    context: RequestContext = request.state.context
    body, info = await receive(service, request, responses_decoder, lambda body, info: (body, info))
    check_known(body, getattr(request.state, "ignored_fields", ()))
    earlier: StoredConversation = ()
    if body.previous_response_id is not None:
        earlier = _to_continue(service.responses.get(context.tenant, body.previous_response_id, "previous_response_id"))
    num_bytes = request.state.body_bytes + sum(map(len, earlier)) + _referred_bytes(service, context, body)
    run = await service.large_work.run(num_bytes, lambda: _prepare(service, body, context, info, earlier))
    if body.background:
        return await _in_background(service, run)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if body.stream:
            await send_events(send, _frames(service, run), openai_error_event)
            return
        await _generate(service, run)
        await json_response(run.builder.body())(scope, receive, send)

    return Generated(answer)


def _referred_bytes(service: Service, context: RequestContext, body: ResponsesRequest) -> int:
    """Return the JSON of the stored items to which the input refers, in bytes."""
    given = () if isinstance(body.input, str) else body.input
    found = (service.responses.item(context.tenant, item.id or "") for item in given if item.type == "item_reference")
    return sum(len(item) for item in found if item is not None)


def _prepare(
    service: Service, body: ResponsesRequest, context: RequestContext, info: EngineReady, earlier: StoredConversation
) -> Run:
    """Check the request and plan its answer.

    Args:
        earlier: the conversation that the request continues.

    Raises:
        RequestError: naming the field.
    """
    store, tenant = service.responses, context.tenant
    if not store.stores and (body.store or body.background):
        name = "store" if body.store else "background"
        raise RequestError(f"this server stores no responses (--max-stored-responses); leave {name} out", param=name)
    items = read_items(body.input, lambda item_id: store.item(tenant, item_id), service.config.max_body_bytes)
    before, messages = decode_messages(earlier), item_messages(items)
    effort, as_summary = read_effort(body.reasoning)
    sampling = read_sampling(body, service.config, info)
    conversation = Conversation(
        messages=messages_of(body.instructions, before, items, messages),
        template_kwargs=body.chat_template_kwargs,
        reasoning_effort=effort,
        allow_control_tokens=allows_control_tokens(body.allow_control_tokens, service.config),
    )
    plan = _plan(service, body, conversation, sampling, info)
    response_id = new_id("resp")
    envelope = envelope_of(body, context)
    if body.rid is None:
        envelope = msgspec.structs.replace(envelope, rid=response_id.removeprefix("resp_"))
    streams = bool(body.stream or body.background)
    is_stored = body.store is not False and store.stores
    response = begun_response(body, plan.sampling, response_id, service.model_name, store=is_stored)
    builder = ResponseBuilder(
        response, plan.form, with_logprobs=plan.sampling.logprobs is not None, as_summary=as_summary
    )
    requests = [ClientRequest(envelope, [InputRow(plan.prompt)], plan.sampling, streams)]
    group = RequestGroup(context, envelope.rid, requests, plan.names)
    stored = None
    if is_stored:
        kept = bounded(
            (*earlier, encode_messages(messages)),
            STORED_BYTES_PER_TOKEN * info.context_length,
            num_image_bytes(before) + num_image_bytes(messages),
            lambda: service.dialect.keeps_reasoning(template_variables(conversation)),
        )
        stored = StoredResponse(builder, tenant, envelope.rid, kept, items)
    return Run(group, builder, stored, bool(body.background))


def _to_continue(previous: StoredResponse) -> StoredConversation:
    """Return the conversation that ends with a response."""
    if previous.is_open or previous.status == FAILED:
        fix = "wait until it has ended, or cancel it" if previous.is_open else "continue the one before it"
        raise RequestError(
            f"the response {previous.id} is {previous.status} and cannot be continued; {fix}",
            param="previous_response_id", code="response_not_complete",
        )  # fmt: skip
    if previous.conversation is None:
        raise RequestError(
            f"the conversation that ends with {previous.id} is longer than {STORED_BYTES_PER_TOKEN} bytes of JSON for "
            f"each token of the context, or its images than {STORED_IMAGE_BYTES} bytes, and was not kept; send its "
            "items in input",
            param="previous_response_id", code="conversation_too_long",
        )  # fmt: skip
    return previous.conversation


def _plan(
    service: Service, body: ResponsesRequest, conversation: Conversation, sampling: dict[str, Any], info: EngineReady
) -> ChatPlan:
    tools, constraint = read_tool_options(body), read_format(body.text)
    try:
        return plan_chat(conversation, tools, constraint, sampling, service.dialect, info.vocab_size, NAMES)
    except RequestError as error:
        raise renamed(error, NAMES) from None


async def _events(service: Service, run: Run) -> AsyncGenerator[list[ResponseEvent], None]:
    """Generate the response and yield the events of each output. In the end, the store keeps the response as it is.

    Raises:
        RequestError: the request is refused before its first output, and its client waits for the answer.
    """
    try:
        if run.stored is not None:
            service.responses.add(run.stored)
        async with aclosing(service.groups.generate(run.group)) as outputs:
            async for _, output in outputs:
                yield run.builder.add(output)
    except Exception as error:
        if not (run.builder.has_begun or run.background):
            raise
        yield run.builder.fail(as_request_error(error))
    finally:
        if run.stored is not None:
            service.responses.settle(run.stored, run.builder)


async def _generate(service: Service, run: Run) -> None:
    """Generate the response to its end."""
    async with aclosing(_events(service, run)) as events:
        async for _ in events:
            pass


async def _frames(service: Service, run: Run) -> AsyncGenerator[bytes, None]:
    """Yield the events framed as server-sent events, those of an output together."""
    async with aclosing(_events(service, run)) as outputs:
        async for events in outputs:
            if events:
                yield b"".join(map(named_event, events))


async def _in_background(service: Service, run: Run) -> Response:
    """Start the response, and answer with it as it is queued, or with the error if it is refused at once."""
    task = asyncio.create_task(_generate(service, run))
    service.background_tasks.add(task)
    task.add_done_callback(service.background_tasks.discard)
    await asyncio.sleep(0)  # the task sends its request, or is refused
    if run.builder.cause is not None and run.stored is not None:
        service.responses.delete(run.stored)
        raise run.builder.cause
    return json_response(run.builder.body())


# --- stored responses ---


def _stored(service: Service, request: Request) -> StoredResponse:
    tenant = request.state.context.tenant
    return service.responses.get(tenant, request.path_params["response_id"])


def _body(stored: StoredResponse) -> Response:
    return Response(stored.body(), media_type="application/json")


def _check_query(request: Request, *known: str) -> None:
    """Refuse query parameters that are not known, and values of `include` that are not served.

    Raises:
        RequestError: naming the parameter.
    """
    for name, value in request.query_params.multi_items():
        if name in ("include", "include[]"):
            check_includable(value, "include")
        elif name not in known and (name, value) not in HARMLESS:
            fix = "GET it again until it has ended" if name in ("stream", "starting_after") else "leave it out"
            raise unsupported(name[:MAX_SHOWN], f"the query parameter {shown(name)}", instead=fix)


async def get_response(service: Service, request: Request) -> Response:
    """Return a stored response, as it is so far if it is being generated."""
    _check_query(request)
    return _body(_stored(service, request))


async def delete_response(service: Service, request: Request) -> Response:
    """Delete a stored response, and abort it if it is being generated."""
    stored = _stored(service, request)
    service.responses.delete(stored)
    if stored.is_open:
        service.groups.abort(stored.tenant, stored.rid)
    return json_response(ResponseDeleted(id=stored.id))


async def cancel_response(service: Service, request: Request) -> Response:
    """Cancel a response that is being generated, in the background or for a stream; answer with what there is of it."""
    stored = _stored(service, request)
    if not stored.is_open and stored.status != CANCELLED:
        raise RequestError(
            f"the response is {stored.status}; only one that is being generated can be cancelled",
            param="response_id", code="response_not_cancellable",
        )  # fmt: skip
    if stored.is_open:
        service.groups.abort(stored.tenant, stored.rid)
        with suppress(TimeoutError):
            await asyncio.wait_for(stored.ended.wait(), CANCEL_WAIT_S)
    return _body(stored)


async def list_input_items(service: Service, request: Request) -> Response:
    """Return a page of the items of a response's input, without those of the responses that it continues."""
    _check_query(request, "after", "limit", "order")
    query = request.query_params
    limit = query.get("limit", str(DEFAULT_PAGE))
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MAX_PAGE):
        raise RequestError(f"limit must be between 1 and {MAX_PAGE}, not {shown(limit)}", param="limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order must be asc or desc, not {shown(order)}", param="order")
    items = [*_stored(service, request).input]
    if order == "desc":
        items.reverse()
    after = query.get("after")
    if after is not None:
        at = next((i for i, (item_id, _) in enumerate(items) if item_id == after), None)
        if at is None:
            raise RequestError(f"after: the input has no item {shown(after)}", param="after")
        items = items[at + 1 :]
    page = items[: int(limit)]
    first, last = (page[0][0], page[-1][0]) if page else (None, None)
    data: list[Any] = [msgspec.Raw(item) for _, item in page]
    return json_response(InputItems(data=data, first_id=first, last_id=last, has_more=len(items) > len(page)))
