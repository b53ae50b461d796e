"""`HttpEngineClient`: the engine of a radixrt server over HTTP, with the interface `TokenClient`, which `EngineClient`
has too.

A server with a full queue refuses a request with status 429; the client sends the request again until its time is up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import httpx
import msgspec

from radixrt.client.http import HttpClient
from radixrt.errors import EngineError, RequestError
from radixrt.messages.client import ClientRequest, EngineReady, RequestOutput
from radixrt.messages.http import CONTENT_TYPE, EngineCall, FrameReader
from radixrt.openai_api import server_root

DEAD = ("engine_dead", "engine_error", "shutting_down")
"""Error codes that concern the server, not the request."""

FULL_WAIT_S = 0.25
"""Seconds to wait after a 429 without Retry-After, and jitter of all waits, so that refused calls spread out."""


class TokenClient(Protocol):
    """Client of an engine, for one event loop at a time."""

    def astream(self, request: ClientRequest) -> AsyncGenerator[RequestOutput, None]:
        """Iterate over the outputs of a request, the last of which has `finish`. Closing it early aborts the request.

        Raises:
            RequestError: the request is refused; EngineError: the engine cannot be reached.
        """

    async def ainfo(self) -> EngineReady:
        """Return the properties of the engine and its model."""

    async def arelease(self, program: str, branch: str | None = None) -> None:
        """Announce that a program, or a branch of it, sends no more requests."""

    async def aclose(self) -> None:
        """Close the connections that the client itself opened."""


class HttpEngineClient:
    """See the module's docstring.

    Args:
        base_url: "http://host:port" of a radixrt server, with or without "/v1".
        api_key: key of the server, if it requires one.
        timeout_s: time limit of requests without their own limit, in seconds.
        model: name of the model that the server must serve; None for any.

    Raises:
        ConfigError: base_url is not an http or https URL.
    """

    def __init__(self, base_url: str, *, api_key: str | None, timeout_s: float, model: str | None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.http = HttpClient(server_root(base_url), headers=headers)
        self._name = f"Endpoint {self.http.base_url}"
        self._timeout_s = timeout_s
        self._model = model
        self._info: EngineReady | None = None

    async def astream(self, request: ClientRequest) -> AsyncGenerator[RequestOutput, None]:
        """See `TokenClient`. The request is sent when the iterator is first awaited."""
        body = EngineCall(model=self._model, request=request)
        reader, finished = FrameReader(), False
        async with self._open("POST", "/generate", body, request.envelope.timeout_s) as response:
            try:
                async for data in response.aiter_raw():
                    for output in reader.read(data):
                        finished = output.finish is not None
                        yield output
            except msgspec.DecodeError as error:
                raise EngineError(f"the server's answer cannot be read: {error}; is it a radixrt server?") from None
        if not finished:
            raise EngineError(f"{self._name} ended its answer before it was finished")

    async def ainfo(self) -> EngineReady:
        """See `TokenClient`. The properties are asked for once."""
        if self._info is None:
            async with self._open("GET", "/v1/models", None, None) as response:
                self._info = msgspec.msgpack.decode(await response.aread(), type=EngineReady)
        return self._info

    async def arelease(self, program: str, branch: str | None = None) -> None:
        """See `TokenClient`."""
        async with self._open("POST", "/release", {"program": program, "branch": branch}, None, "application/json"):
            pass

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self.http.aclose()

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Any, timeout_s: float | None, accept: str = CONTENT_TYPE
    ) -> AsyncGenerator[httpx.Response, None]:
        """Yield a response with status 200; a full queue is waited for, any other status is raised."""
        data = None if body is None else msgspec.json.encode(body)
        limit = self._timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    async with self.http.stream(method, path, data, accept) as response:
                        if response.status_code == 200:
                            _check_type(response, accept)
                            yield response
                            return
                        error = _refusal(response.status_code, await response.aread(), path)
                        wait = _wait(response.headers.get("retry-after"))
                    if error.status != 429 or asyncio.get_running_loop().time() + wait > deadline:
                        break
                    await asyncio.sleep(wait)
        except TimeoutError:
            raise RequestError(
                f"{self._name} did not answer within {limit:g} s", param="timeout_s", code="timeout", status=408
            ) from None
        if error.code in DEAD:
            raise EngineError(f"{self._name}: {error.message}")
        raise error


def _wait(retry_after: str | None) -> float:
    """Seconds until a call that a full queue refused is sent again."""
    try:
        least = float(retry_after or FULL_WAIT_S)
    except ValueError:
        least = FULL_WAIT_S
    return least + random.uniform(0.0, FULL_WAIT_S)


def _check_type(response: httpx.Response, wanted: str) -> None:
    given = response.headers.get("content-type", "").partition(";")[0]
    if given != wanted:
        raise EngineError(f"the server's answer is {given or 'untyped'}, not {wanted}; is it a radixrt server?")


def _refusal(status: int, body: bytes, path: str) -> RequestError:
    """The error of an answer whose status is not 200."""
    try:
        error: Mapping[str, Any] = msgspec.json.decode(body)["error"]
        return RequestError(str(error["message"]), param=error.get("param"), code=error.get("code"), status=status)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        what = body[:200].decode(errors="replace")
        return RequestError(f"{path} answered with status {status}: {what}; is it a radixrt server?", status=status)
