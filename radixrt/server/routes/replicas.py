"""Routes of operators for replicas: list, add, drain and remove them while the server runs."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.engine.replica_set import ReplicaSet, ReplicaStatus
from radixrt.errors import RequestError
from radixrt.server.answers.service import Replica, ReplicaChanged, Replicas
from radixrt.server.http.errors import json_response
from radixrt.server.http.receive import has_body, receive_json
from radixrt.server.serving.service import Service


class AddRequest(msgspec.Struct, kw_only=True):
    """Body of /replicas/add, which needs none."""


class DrainRequest(msgspec.Struct, kw_only=True):
    """Body of /replicas/drain; with `on` false the replica gets new requests again."""

    replica: int
    on: bool = True


class RemoveRequest(msgspec.Struct, kw_only=True):
    """Body of /replicas/remove; what is open there after `timeout_s` seconds goes on elsewhere."""

    replica: int
    timeout_s: float | None = None


SCHEDULER_NUMBERS = (
    "running", "waiting", "slots_total", "slots_free", "slots_evictable", "prompt_tokens", "cached_tokens",
    "generated_tokens",
)  # fmt: skip
"""Fields of `SchedulerStats` that the answer has too."""

add_decoder = msgspec.json.Decoder(AddRequest)
drain_decoder = msgspec.json.Decoder(DrainRequest)
remove_decoder = msgspec.json.Decoder(RemoveRequest)


def replica_answer(info: ReplicaStatus) -> Replica:
    """Return a replica as the API shows it."""
    shown = Replica(info.replica, info.state, info.reason, info.pids, info.role)
    if info.stats is None:
        return shown
    view, stats = info.stats.view, info.stats.stats
    shown.open, shown.queued, shown.fences, shown.prefills = view.open, view.queued, view.fences, view.prefills
    shown.predicted_wait_s = round(view.predicted_wait_s, 4)
    for name in () if stats is None else SCHEDULER_NUMBERS:
        setattr(shown, name, getattr(stats, name))
    return shown


async def list_replicas(service: Service, request: Request) -> Response:
    """All replicas; none on a server that was started without them."""
    replicas = [] if service.replicas is None else service.replicas.describe()
    return json_response(Replicas([replica_answer(info) for info in replicas]))


async def add_replica(service: Service, request: Request) -> Response:
    """Start a replica, and answer at once: it takes requests when its state is "serving"."""
    if has_body(request):
        await receive_json(service, request, add_decoder)
    number = await asyncio.to_thread(_replicas(service).add)
    return json_response(ReplicaChanged(replica=number))


async def drain_replica(service: Service, request: Request) -> Response:
    body = await receive_json(service, request, drain_decoder)
    _replicas(service).drain(body.replica, on=body.on)
    return json_response(ReplicaChanged(replica=body.replica))


async def remove_replica(service: Service, request: Request) -> Response:
    """Drain a replica and stop its processes once nothing is open there; answers at once."""
    body = await receive_json(service, request, remove_decoder)
    if body.timeout_s is not None and not 0 <= body.timeout_s < float("inf"):
        raise RequestError("timeout_s must be a number of at least 0", param="timeout_s")
    _replicas(service).begin_remove(body.replica, body.timeout_s)
    return json_response(ReplicaChanged(replica=body.replica))


def _replicas(service: Service) -> ReplicaSet:
    if service.replicas is None:
        raise RequestError(
            "this server has no router; start it with --replicas 1 or more to add, drain and remove replicas",
            code="no_replicas", status=409,
        )  # fmt: skip
    return service.replicas
