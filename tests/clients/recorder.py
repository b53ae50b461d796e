"""Proxy between a client and the server, which records the requests and what is needed to send them again."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.clients.recordings import Recorded, event_datas

KEPT_HEADERS = re.compile(r"accept|authorization|content-type|x-api-key|openai-.*|anthropic-.*|x-openwebui-.*")
"""Headers that can matter to the server. Others tell of the client's machine: its HTTP library, runtime and system."""

HOP_HEADERS = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
MADE_ID = re.compile(r"(?:resp|msg|fc|rs|call|toolu|chatcmpl|cmpl)[-_][0-9A-Za-z]{8,}")
"""Ids that the server makes."""

LIMIT_S = 300.0


@dataclass
class Exchange:
    """A request with its answer, of which later requests may repeat ids."""

    case: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer: bytes = b""


class Recorder:
    """Forwards requests to `target`. A GET of /record/NAME begins the case of this name."""

    def __init__(self, target: str) -> None:
        self.exchanges: list[Exchange] = []
        self._case = "start"
        self._http = httpx.AsyncClient(base_url=target, timeout=LIMIT_S)
        methods = ["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"]
        self.app = Starlette(
            routes=[Route("/record/{case}", self._begin), Route("/{path:path}", self._forward, methods=methods)]
        )

    async def _begin(self, request: Request) -> Response:
        self._case = request.path_params["case"]
        return PlainTextResponse("")

    async def _forward(self, request: Request) -> Response:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        # lm-eval without a key sends "Bearer ", which httpx would not forward.
        headers = {name: value.strip() for name, value in request.headers.items() if name not in HOP_HEADERS}
        kept = {name: headers[name] for name in sorted(headers) if KEPT_HEADERS.fullmatch(name)}
        exchange = Exchange(self._case, request.method, path, kept, await request.body())
        self.exchanges.append(exchange)
        asked = self._http.build_request(request.method, path, content=exchange.body, headers=headers)
        try:
            answer = await self._http.send(asked, stream=True)
        except httpx.TransportError as error:
            return PlainTextResponse(f"the server cannot be reached: {error}", 502)
        exchange.status = answer.status_code

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.aiter_raw():
                    exchange.answer += piece
                    yield piece
            finally:
                await answer.aclose()

        given = {name: value for name, value in answer.headers.items() if name not in HOP_HEADERS}
        return StreamingResponse(pieces(), answer.status_code, given)

    def recorded(self) -> list[Recorded]:
        """Return the requests so far. An id of an earlier answer is written as its place there."""
        found = []
        cases: dict[str, list[Exchange]] = {}
        for exchange in self.exchanges:
            earlier = cases.setdefault(exchange.case, [])
            found.append(_recorded(exchange, _references(earlier)))
            earlier.append(exchange)
        return found


@contextmanager
def recording(target: str) -> Iterator[tuple[Recorder, str]]:
    """Run a recorder on a free port; yield it and its URL."""
    recorder = Recorder(target)
    server = uvicorn.Server(uvicorn.Config(recorder.app, port=0, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    yield recorder, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(LIMIT_S)


def _references(earlier: list[Exchange]) -> dict[str, str]:
    """Map each id of earlier answers to its reference, `${number of the answer:path in it}`."""
    found: dict[str, str] = {}
    for number, exchange in enumerate(earlier):
        for path, value in _strings(answer_object(exchange.answer)):
            if MADE_ID.fullmatch(value):
                found.setdefault(value, f"${{{number}:{path}}}")
    return found


def answer_object(answer: bytes) -> Any:
    """Return the JSON of an answer; of a stream of `/v1/responses`, the response that its last event holds."""
    if answer.startswith((b"data:", b"event:")):
        last = event_datas(answer.decode())[-1]
        return last.get("response") if isinstance(last, dict) else None
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of each string, paths as in `output.0.id`."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(inner, f"{path}.{name}" if path else str(name))


def _recorded(exchange: Exchange, references: dict[str, str]) -> Recorded:
    renamed: dict[str, str] = {}

    def name(made: re.Match[str]) -> str:
        text = made.group()
        return references.get(text) or renamed.setdefault(text, f"{re.split('[-_]', text)[0]}_{len(renamed) + 1}")

    body = MADE_ID.sub(name, exchange.body.decode())
    return Recorded(
        case=exchange.case,
        method=exchange.method,
        path=MADE_ID.sub(name, exchange.path),
        headers=exchange.headers,
        body=json.loads(body) if body else None,
        status=exchange.status,
    )
