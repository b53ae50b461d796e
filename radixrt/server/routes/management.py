"""Management routes: models, metrics, version, abort, release and cache flush."""

from __future__ import annotations

import asyncio

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from radixrt._version import __version__
from radixrt.errors import RequestError
from radixrt.server.access.checks import check_admin
from radixrt.server.access.tenants import EVERYONE, Tenant
from radixrt.server.answers.service import (
    Aborted,
    Flushed,
    Forgotten,
    ModelCard,
    ModelList,
    Released,
    ServerInfo,
    Version,
    Weights,
)
from radixrt.server.http.errors import json_response, model_not_found
from radixrt.server.http.receive import admit, is_served, receive_json
from radixrt.server.protocol.fields import abort_decoder, forget_decoder, release_decoder
from radixrt.server.routes.engine_calls import engine_info, is_engine_client
from radixrt.server.serving.service import Service

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ID_PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_")


def _model_card(service: Service, name: str) -> ModelCard:
    info = service.client.info
    return ModelCard(
        id=name,
        created=service.created,
        root=service.model_name if info is None else info.model,
        max_model_len=None if info is None else info.context_length,
    )


async def list_models(service: Service, request: Request) -> Response:
    """List the served model. A client of the engine gets the engine's properties instead."""
    if is_engine_client(request):
        return engine_info(admit(service))
    return json_response(ModelList(data=[_model_card(service, name) for name in service.model_names]))


async def get_model(service: Service, request: Request) -> Response:
    model = request.path_params["model"]
    if not is_served(service, model):
        raise model_not_found(model, service.model_names)
    return json_response(_model_card(service, model if model in service.model_names else service.model_name))


async def metrics(service: Service, request: Request) -> Response:
    return Response(await asyncio.to_thread(service.metrics.render), headers={"content-type": METRICS_TYPE})


async def get_version(service: Service, request: Request) -> Response:
    return json_response(Version(__version__))


async def server_info(service: Service, request: Request) -> Response:
    info = admit(service)
    weights = info.weights
    return json_response(
        ServerInfo(
            version=__version__,
            model=info.model,
            device=info.device,
            dtype=info.dtype,
            kv_cache_dtype=info.kv_cache_dtype,
            weights=Weights(weights.scheme or "plain", list(weights.kernels), round(weights.quantized, 4)),
            context_length=info.context_length,
            kv_cache_tokens=info.num_slots,
            max_running_requests=info.max_running_requests,
            tool_call_format=service.dialect.format_name,
            roles=UNSET if service.replicas is None else [each.role for each in service.replicas.describe()],
        )
    )


async def abort(service: Service, request: Request) -> Response:
    """Abort one request by {"rid": id}, a response's id with or without its prefix, or all by {"abort_all": true}.

    Answers {"aborted": how many completions}; an id that is not known, or already finished, is not an error: 0. With
    API keys, a client aborts requests of its own key; an admin's key aborts any, and is needed for all.
    """
    tenant: Tenant = request.state.context.tenant
    body = await receive_json(service, request, abort_decoder)
    if body.abort_all:
        check_admin(tenant, "abort_all")
        return json_response(Aborted(service.groups.abort_all()))
    if body.rid is None:
        raise RequestError("rid is required", param="rid", code="missing_field")
    aborted = service.groups.abort(tenant, body.rid)
    for prefix in ID_PREFIXES:
        if not aborted and body.rid.startswith(prefix):
            aborted = service.groups.abort(tenant, body.rid.removeprefix(prefix))
    return json_response(Aborted(aborted))


async def release(service: Service, request: Request) -> Response:
    """Release {"program": id, "branch": id or null}: the program, or that branch, makes no more calls, and the cache
    may evict its prefixes. An unknown id is not an error. Answers {"status": "ok"}.
    """
    body = await receive_json(service, request, release_decoder)
    service.release(request.state.context.tenant, body.program, body.branch)
    return json_response(Released())


async def flush_cache(service: Service, request: Request) -> Response:
    """Flush the prefix cache, except entries of running requests. 409 if the scheduler refuses."""
    reply = await asyncio.to_thread(service.client.control, "flush_cache")
    if not reply.ok:
        raise RequestError(reply.message or "the cache was not flushed", code="not_flushed", status=409)
    return json_response(Flushed(message=reply.message))


async def forget(service: Service, request: Request) -> Response:
    """Drop the cached prompts of {"key": name}, {"cache_group": name} or {"cache_salt": salt} from the KV pool, host
    memory and disk. A salt with a key or a group is that client's salt alone. 409 while requests of theirs are open.
    """
    body = await receive_json(service, request, forget_decoder)
    if body.key is not None and body.cache_group is not None:
        raise RequestError("name a key or a cache_group, not both", param="cache_group", code="invalid_value")
    if body.key is None and body.cache_group is None and body.cache_salt is None:
        raise RequestError("name a key, a cache_group or a cache_salt", param="key", code="missing_field")
    tenant = EVERYONE
    if body.key is not None or body.cache_group is not None:
        tenant = Tenant(body.key or "", cache_group=body.cache_group)
    op = "forget_owner" if body.cache_salt is None else "forget"
    namespace = tenant.namespace(body.cache_salt or "")
    reply = await asyncio.to_thread(service.client.control, op, namespace)
    if not reply.ok:
        raise RequestError(reply.message, code="in_use", status=409)
    return json_response(Forgotten())
