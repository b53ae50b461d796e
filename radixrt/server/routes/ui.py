"""`/ui`: the page, its files, the feed of lines that it reads, and texts of nodes where the operator allows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import cache
from importlib import resources
from itertools import groupby

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from radixrt._version import __version__
from radixrt.errors import RequestError
from radixrt.messages.cache_events import NodeTokens
from radixrt.messages.request import Envelope
from radixrt.messages.wire import unpack_i32
from radixrt.server.answers.service import NodeText, NodeTiers
from radixrt.server.http.errors import json_response
from radixrt.server.routes.replicas import replica_answer
from radixrt.server.serving.service import Service
from radixrt.server.ui.hub import MAX_FEEDS, MAX_NODE_TOKENS, Feed
from radixrt.server.ui.lines import line
from radixrt.tasks.run import arun
from radixrt.tasks.tokenize import Detokenize

READ_S = 0.2
FLEET_S = 1.0
SCRIPTS = ("tools", "fleet", "tree", "icicle", "plots", "requests", "report", "pictures", "playground", "page")
FILES = {
    "page.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    **{f"{name}.js": "text/javascript; charset=utf-8" for name in SCRIPTS},
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@cache
def _file(name: str) -> bytes:
    return resources.files("radixrt.server.ui.page").joinpath(name).read_bytes()


def _check_on(service: Service) -> None:
    if not service.config.ui:
        raise RequestError("the page is switched off (--no-ui)", code="not_found", status=404)


async def ui_page(service: Service, request: Request) -> Response:
    """The page. It holds no data, and needs no key."""
    _check_on(service)
    return Response(_file("page.html"), headers={**HEADERS, "content-type": FILES["page.html"]})


async def ui_file(service: Service, request: Request) -> Response:
    """A script or style of the page."""
    _check_on(service)
    name = request.path_params["file"]
    if name not in FILES or name == "page.html":
        raise RequestError(f"the page has no file {name:.80}", code="not_found", status=404)
    return Response(_file(name), headers={**HEADERS, "content-type": FILES[name]})


async def ui_events(service: Service, request: Request) -> Response:
    """The feed: one JSON object a line, for as long as the client reads (`radixrt.server.ui.lines`)."""
    _check_on(service)
    headers = {**HEADERS, "content-type": "application/x-ndjson", "x-accel-buffering": "no"}
    if request.method == "HEAD":
        return Response(headers=headers)
    replica = _replica(service, request)
    feed = service.hub(replica).open()
    if feed is None:
        raise RequestError(f"{MAX_FEEDS} pages are open; close one", code="too_many_pages", status=503)
    return StreamingResponse(_lines(service, feed, replica), headers=headers)


def _replica(service: Service, request: Request) -> int | None:
    """Number of the replica that a page shows (`?replica=`); default: the first one, None without replicas."""
    given = request.query_params.get("replica")
    there = [] if service.replicas is None else [info.replica for info in service.replicas.describe()]
    if given is None:
        return there[0] if there else None
    if not there:
        raise RequestError("this server has no router, and so no replicas; leave replica out", param="replica")
    by_name = {str(number): number for number in there}
    if given not in by_name:
        names = ", ".join(by_name)
        raise RequestError(f"replica must be the number of a replica; there are {names}", param="replica")
    return by_name[given]


async def _lines(service: Service, feed: Feed, replica: int | None) -> AsyncIterator[bytes]:
    info = service.client.info
    fleet_at = 0.0
    try:
        yield line(
            "hello", model=service.model_name, version=__version__, at=round(time.time(), 2),
            shows_text=service.config.ui_text, device="" if info is None else info.device,
            dtype="" if info is None else info.dtype, slots=_slots(service),
            context=0 if info is None else info.context_length,
            max_running=0 if info is None else info.max_running_requests,
            generates=info is None or info.generates, chats=info is None or info.has_chat_template,
            images=0 if info is None else info.max_images, replica=replica,
        )  # fmt: skip
        while not (feed.ended or service.client.draining or service.client.failure is not None):
            taken = feed.take()
            if taken:
                yield taken
            if service.replicas is not None and time.monotonic() - fleet_at > FLEET_S:
                fleet_at = time.monotonic()
                found = service.replicas.describe()
                if replica not in {info.replica for info in found}:
                    return  # it was removed; the page shows another one
                yield line("fleet", rows=[replica_answer(each) for each in found])
            await asyncio.sleep(READ_S)
    finally:
        service.hub(replica).close(feed)


def _slots(service: Service) -> int:
    """Return the number of slots of the KV pool, or of the pools of all replicas."""
    info, stats = service.client.info, service.client.stats
    if service.replicas is not None and stats is not None:
        return stats.slots_total
    return 0 if info is None else info.num_slots


async def ui_text(service: Service, request: Request) -> Response:
    """The text of a node's first tokens, as {"node": number, "text": text, "tokens": count}; `?node=` is its number.

    404 unless the operator allows texts (--ui-text), and if the node is not in the tree any more.
    """
    _check_on(service)
    if not service.config.ui_text:
        raise RequestError("texts are not shown here; start the server with --ui-text", code="no_texts", status=404)
    node = _node_number(request)
    tokens = (await _node(service, request, node, MAX_NODE_TOKENS)).token_ids
    assert tokens is not None
    rid = request.state.context.rid
    ids = unpack_i32(tokens).tolist()
    # Keys of images, which are below -1, are no token ids and have no text.
    pieces = []
    for is_image, group in groupby(ids, key=lambda token: token < -1):
        run = list(group)
        if is_image:
            pieces.append(f"[{len(run)} tokens of images]")
        else:
            made = Detokenize(run, Envelope(f"{rid}-{len(pieces)}"), skip_special_tokens=False)
            pieces.append(await arun(service.client, made))
    return json_response(NodeText(node, "".join(pieces), len(ids)))


async def ui_node(service: Service, request: Request) -> Response:
    """The number of tokens of a node's path that are in host memory and in files too; `?node=` is its number."""
    _check_on(service)
    node = _node_number(request)
    return json_response(NodeTiers(node, (await _node(service, request, node, 0)).kept))


def _node_number(request: Request) -> int:
    given = request.query_params.get("node", "")
    if not (given.isascii() and given.isdecimal() and len(given) < 16):
        raise RequestError("node must be the number of a node", param="node")
    return int(given)


async def _node(service: Service, request: Request, node: int, limit: int) -> NodeTokens:
    found = await asyncio.to_thread(service.hub(_replica(service, request)).node, node, limit)
    if found is None:
        raise RequestError(f"there is no node {node} any more", param="node", code="not_found", status=404)
    return found
