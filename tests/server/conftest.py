from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import uvicorn

from radixrt.chat.dialect import Dialect
from radixrt.config import ServerConfig
from radixrt.server import create_app
from tests.server.fake_engine import MODEL, FakeEngine, speak
from tests.server.helpers import Caller
from tests.server.served import Served
from tests.server.tool_chats import HERMES, TOOLS


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    fake = FakeEngine()
    yield fake
    fake.close()


@pytest.fixture
def caller(engine: FakeEngine) -> Caller:
    return Caller(engine)


@pytest.fixture
def live(engine: FakeEngine) -> Iterator[str]:
    """The application behind a real uvicorn on a real port; yields the base URL."""
    app = create_app(engine.client, ServerConfig(), MODEL)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    engine.wait_for(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(60)


@pytest.fixture
def start() -> Iterator[Callable[[float], Served]]:
    started: list[Served] = []

    def launch(grace_s: float, **options: object) -> Served:
        started.append(Served(grace_s, **options))
        return started[-1]

    yield launch
    for served in started:
        served.process.kill()
        served.process.communicate()


@pytest.fixture
def ask(engine: FakeEngine) -> Any:
    """A function that sends a chat with tools to a model that says so."""

    def send(dialect: Dialect = HERMES, *, says: Iterable[str] = ("hi",), **fields: Any) -> Any:
        engine.script = lambda request: speak(request, list(says))
        return Caller(engine, dialect=dialect).chat(**{"tools": TOOLS, **fields})

    return send
