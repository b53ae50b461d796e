"""Probes of supervisors and load balancers: `/health`, is the server alive; `/ready`, does it serve now."""

from __future__ import annotations

from collections import Counter

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import RequestError
from radixrt.server.access.checks import check_key
from radixrt.server.answers.errors import error_detail
from radixrt.server.answers.service import Health, Unavailable
from radixrt.server.http.errors import as_request_error, error_headers, json_response
from radixrt.server.serving.service import Service


async def health(service: Service, request: Request) -> Response:
    """200 unless the engine has failed for good, which ends the server. `ready` is about new requests.

    With `?deep=1` the answer takes a token from the model, and is 503 if none comes. On a server with API keys it needs
    one of them.
    """
    status = service.client.status
    if status.state == "failed":
        return _unavailable(status.state, RequestError(status.reason, code="unavailable", status=503))
    if request.query_params.get("deep", "0") in ("", "0", "false"):
        return json_response(Health(state=_state(service), replicas=_replicas(service)))
    check_key(request.state.context.tenant)
    try:
        seconds = await service.deep_check.run()
    except Exception as error:
        failure = as_request_error(error)
        failure.status = 503
        return _unavailable(_state(service), failure)
    return json_response(Health(state=_state(service), seconds=round(seconds, 4)))


async def ready(service: Service, request: Request) -> Response:
    """200 exactly while a request sent now would be served at once; 503 with the state and the reason otherwise."""
    state = _state(service)
    if state == "serving":
        return json_response(Health(state=state))
    reasons = {"draining": "the server is shutting down", "starting": "the engine is starting"}
    reason = reasons.get(state, service.client.status.reason)
    return _unavailable(state, RequestError(reason, code="unavailable", status=503))


def _replicas(service: Service) -> dict[str, int] | UnsetType:
    """Number of replicas in each state, if there are replicas."""
    return UNSET if service.replicas is None else Counter(info.state for info in service.replicas.describe())


def _state(service: Service) -> str:
    """Return the state of the engine, or "draining"."""
    client = service.client
    return "draining" if client.draining and client.failure is None else client.status.state


def _unavailable(state: str, error: RequestError) -> Response:
    return json_response(Unavailable(state=state, error=error_detail(error)), error.status, error_headers(error))
