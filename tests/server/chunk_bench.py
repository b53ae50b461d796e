"""Processor time that the event loop spends on each streamed chunk, sockets included.

python -m tests.server.chunk_bench [STREAMS [CHUNKS [chat | completions | generate]]]
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import sys
import threading
import time

import uvicorn

from radixrt.client.engine_client import EngineClient
from radixrt.config import ServerConfig
from radixrt.messages.client import GenerateReq, OutputBatch, RequestOutput, ToTokenizer
from radixrt.messages.parts import Finish, Timings, Usage
from radixrt.messages.wire import pack_i32
from radixrt.server import create_app
from radixrt.server.http.uvicorn_server import http_protocol
from tests.server.fake_engine import MODEL, info

STEP_S = 0.004
BODIES = {
    "chat": (b"/v1/chat/completions", b'{"stream":true,"messages":[{"role":"user","content":"x"}]}'),
    "completions": (b"/v1/completions", b'{"stream":true,"prompt":"x"}'),
    "generate": (b"/generate", b'{"stream":true,"text":"x"}'),
}


class Recorder:
    """An outbox that only notes who asked."""

    def __init__(self) -> None:
        self.rids: list[str] = []

    def send(self, message: ToTokenizer) -> None:
        if isinstance(message, GenerateReq):
            self.rids.append(message.rid)

    def close(self) -> None: ...


def read_streams(port: int, streams: int, route: str) -> None:
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


def main(streams: int = 16, chunks: int = 500, route: str = "chat") -> None:
    engine = Recorder()
    client = EngineClient(engine)
    client.dispatch(info())
    config = uvicorn.Config(
        create_app(client, ServerConfig(), MODEL),
        port=0,
        log_config=None,
        lifespan="off",
        http=http_protocol(ServerConfig()),
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader = multiprocessing.get_context("spawn").Process(target=read_streams, args=(port, streams, route))
    reader.start()
    while len(engine.rids) < streams:
        time.sleep(0.01)
    loop_before, here_before = time.clock_gettime(clock), time.thread_time()
    ids = pack_i32([5])
    for _ in range(chunks - 1):
        client.dispatch(OutputBatch([RequestOutput(rid, " word", ids) for rid in engine.rids]))
        time.sleep(STEP_S)
    last = {"finish": Finish("stop"), "usage": Usage(1, chunks, 0), "timings": Timings()}
    client.dispatch(OutputBatch([RequestOutput(rid, " word", ids, **last) for rid in engine.rids]))
    here = time.thread_time() - here_before
    reader.join()
    loop = time.clock_gettime(clock) - loop_before
    each = 1e6 / (streams * chunks)
    print(
        f"{route}, {streams} streams: loop {loop * each:.1f} µs per chunk, dispatching {here * each:.1f} µs per chunk"
    )
    server.should_exit = True
    thread.join(5)


if __name__ == "__main__":
    main(*(int(argument) if argument.isdigit() else argument for argument in sys.argv[1:]))  # type: ignore[arg-type]
