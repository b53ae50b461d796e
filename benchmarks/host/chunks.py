"""`measure_chunks`: processor time of the main process for each streamed chunk, sockets included.

The application runs behind a real uvicorn; this process plays the engine, and clients in another process read.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

import uvicorn

from radixrt.client.engine_client import EngineClient
from radixrt.config import ServerConfig
from radixrt.messages.client import ClientRequest, EngineReady, OutputBatch, RequestOutput, ToTokenizer
from radixrt.messages.parts import Finish, Timings, Usage
from radixrt.messages.wire import pack_i32
from radixrt.server import create_app
from radixrt.server.uvicorn_server import http_protocol

MODEL = "fake"
STEP_S = 0.004
BODIES = {
    "chat": (b"/v1/chat/completions", b'{"stream":true,"messages":[{"role":"user","content":"x"}]}'),
    "completions": (b"/v1/completions", b'{"stream":true,"prompt":"x"}'),
    "generate": (b"/generate", b'{"stream":true,"text":"x"}'),
}


@dataclass(frozen=True)
class ChunkCosts:
    """Seconds of processor time for one chunk of one stream.

    Attributes:
        loop: of the server's event loop, which formats and sends it.
        dispatch: of taking the engine's output and waking the stream.
    """

    loop: float
    dispatch: float


class _Requests:
    """An outbox that keeps the ids of the requests; `complete` is set once there are `count`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.rids: list[str] = []
        self.complete = threading.Event()

    def send(self, message: ToTokenizer) -> None:
        if isinstance(message, ClientRequest):
            self.rids.append(message.rid)
            if len(self.rids) == self._count:
                self.complete.set()

    def close(self) -> None: ...


class _Server(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def measure_chunks(route: str, streams: int, chunks: int) -> ChunkCosts:
    """Send so many chunks to each of so many streams, one chunk of each in a step.

    Args:
        route: one of BODIES.
    """
    requests = _Requests(streams)
    client = EngineClient(requests)
    client.dispatch(
        EngineReady(
            model=MODEL, vocab_size=100, context_length=4096, max_input_tokens=4088, num_slots=4096,
            max_running_requests=streams, device="cpu", dtype="float32", has_chat_template=True,
            chat_templates={"default": "{{ messages }}"}, special_tokens={},
        )
    )  # fmt: skip
    options = ServerConfig()
    app, http = create_app(client, options, MODEL), http_protocol(options)
    server = _Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off", http=http))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    server.listening.wait()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    port = server.servers[0].sockets[0].getsockname()[1]
    readers = multiprocessing.get_context("spawn").Process(target=_read_streams, args=(port, streams, route))
    readers.start()
    requests.complete.wait()
    loop_before, here_before = time.clock_gettime(clock), time.thread_time()
    ids = pack_i32([5])
    for _ in range(chunks - 1):
        client.dispatch(OutputBatch([RequestOutput(rid, " word", ids) for rid in requests.rids]))
        time.sleep(STEP_S)
    last: dict[str, Any] = {"finish": Finish("stop"), "usage": Usage(1, chunks, 0), "timings": Timings()}
    client.dispatch(OutputBatch([RequestOutput(rid, " word", ids, **last) for rid in requests.rids]))
    dispatching = time.thread_time() - here_before
    readers.join()
    looping = time.clock_gettime(clock) - loop_before
    server.should_exit = True
    thread.join()
    return ChunkCosts(looping / (streams * chunks), dispatching / (streams * chunks))


def _read_streams(port: int, streams: int, route: str) -> None:
    selector = selectors.DefaultSelector()
    path, body = BODIES[route]
    for _ in range(streams):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (path, len(body), body)
        )
        selector.register(client, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            data = key.fileobj.recv(65536)  # type: ignore[union-attr]
            if not data or b"[DONE]" in data:
                selector.unregister(key.fileobj)
