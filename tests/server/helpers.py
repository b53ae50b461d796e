"""Helpers of the server's tests: call the application in-process, and read its streams and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from radixrt.chat.dialect import Dialect
from radixrt.config import ServerConfig
from radixrt.server import create_app
from tests.server.conformance import check_exchange
from tests.server.fake_engine import MODEL, FakeEngine
from tests.server_process import without_model


class Caller:
    """Calls the application in-process, without sockets. Every exchange is held to the OpenAPI description."""

    def __init__(
        self, engine: FakeEngine, config: ServerConfig | None = None, dialect: Dialect | None = None,
        aliases: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.engine = engine
        self.app = create_app(engine.client, config or ServerConfig(), MODEL, dialect, aliases=aliases)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
                return await client.request(method, path, **options)

        answer = asyncio.run(go())
        if method != "HEAD":
            check_exchange(method, answer.request.url.path, options.get("json"), answer)
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def metrics(self) -> str:
        """Return the text of /metrics without the label `model_name`."""
        return without_model(self.get("/metrics").text)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=json, **options)

    def chat(self, content: Any = "hi", **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, **fields})


def events(response: httpx.Response) -> list[Any]:
    """The stream's JSON events; checks the framing and that [DONE], or an error, ends it."""
    frames = _frames(response)
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    datas = [frame.removeprefix("data: ") for frame in frames]
    if datas[-1] == "[DONE]":
        datas.pop()
    else:
        assert "error" in json.loads(datas[-1])
    return [json.loads(data) for data in datas]


def named_events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream whose frames have a line `event:`; checks that it names the event's type."""
    found = []
    for frame in _frames(response):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def _frames(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    return frames


def check_error(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """The response is an error of OpenAI's shape with this status; returns its message."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    assert response.headers["x-request-id"]
    return str(error["message"])


def asgi_call(app: Any, path: str, body: Any, leave: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """POST to the application as a client that disconnects as soon as `leave(messages sent so far)`."""

    async def go() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        given = False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
            while not leave(sent):
                await asyncio.sleep(0.002)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await asyncio.wait_for(app(scope, receive, send), 60)
        return sent

    return asyncio.run(go())
