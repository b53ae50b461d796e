"""`EngineClient`: the main process's connection to the engine. Sends requests and delivers outputs to their streams.

Threads: any thread and any event loop may submit; one receiver thread calls `dispatch`. Each open request has one
stream, which is removed when its finish has been delivered, so that `open_requests` counts unanswered requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Generator

from radixrt.channel import Outbox
from radixrt.client.answers import raise_for_error
from radixrt.client.validation import Question, Request, check_request
from radixrt.errors import EngineError, RequestError
from radixrt.messages.client import (
    EngineReady,
    OutputBatch,
    RequestOutput,
    ToMain,
    ToTokenizer,
)
from radixrt.messages.parts import (
    FINISH_ERROR,
    Finish,
    FinishError,
)
from radixrt.messages.scheduler import AbortReq, ControlReply, ControlReq, ReleaseReq, SchedulerStats

CONTROL_TIMEOUT_S = 30.0


def _answer(output: RequestOutput) -> RequestOutput:
    if output.finish is not None:
        raise_for_error(output.finish)
    return output


class _Stream:
    """Stream of one request: `put` appends to its queue and is called in `loop` if the reader runs in an event loop."""

    __slots__ = ("loop", "put")

    def __init__(self, put: Callable[[RequestOutput], None], loop: asyncio.AbstractEventLoop | None) -> None:
        self.put = put
        self.loop = loop


def _put_all(items: list[tuple[_Stream, RequestOutput]]) -> None:
    for stream, output in items:
        stream.put(output)


class EngineClient:
    """Client of one engine; see the module's docstring.

    Attributes:
        ready: set once `info` is available.
        info: properties of the engine and its model; None before it is ready.
        failure: reason why the engine can no longer serve (e.g. a process died), or None.
        draining: new requests are refused because the engine is shutting down.
        stats: latest snapshot of the scheduler; None before the first.
    """

    def __init__(self, outbox: Outbox[ToTokenizer]) -> None:
        self._outbox = outbox
        # Guards the outbox (ZMQ sockets are not thread-safe), _streams and failure. Reentrant, because the garbage
        # collector may close an abandoned stream, which aborts it, in the middle of anything.
        self._lock = threading.RLock()
        self._streams: dict[str, _Stream] = {}
        self._controls: dict[str, queue.SimpleQueue[ControlReply]] = {}
        self._control_ids = itertools.count()
        self.ready = threading.Event()
        self.info: EngineReady | None = None
        self.failure: str | None = None
        self.draining = False
        self.stats: SchedulerStats | None = None

    @property
    def open_requests(self) -> int:
        return len(self._streams)

    # --- requests ---

    def stream(self, request: Request) -> Generator[RequestOutput, None, None]:
        """Send the request now and iterate over its outputs, the last of which has `finish`. Leaving early aborts it.

        Raises:
            RequestError: at once, if a parameter is not valid, the engine is draining or has failed, or the rid is in
                use.
        """
        outputs: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
        self._submit(request, _Stream(outputs.put, None))
        return self._iterate(request.rid, outputs)

    def _iterate(self, rid: str, outputs: queue.SimpleQueue[RequestOutput]) -> Generator[RequestOutput, None, None]:
        finished = False
        try:
            while not finished:
                output = outputs.get()
                finished = output.finish is not None
                yield output
        finally:
            if not finished:
                self.abort(rid)

    def astream(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """`stream` for the running event loop; closing or cancelling the iterator early aborts the request."""
        outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()
        self._submit(request, _Stream(outputs.put_nowait, asyncio.get_running_loop()))
        return self._aiterate(request.rid, outputs)

    async def _aiterate(self, rid: str, outputs: asyncio.Queue[RequestOutput]) -> AsyncGenerator[RequestOutput, None]:
        finished = False
        try:
            while not finished:
                output = await outputs.get()
                finished = output.finish is not None
                yield output
        finally:
            if not finished:
                self.abort(rid)

    def abort(self, rid: str) -> None:
        """Stop a request; its stream still gets one finish. An unknown or finished rid has no effect."""
        with self._lock:
            if self.failure is None:
                self._outbox.send(AbortReq(rid))

    def release(self, program: str, branch: str | None = None) -> None:
        """Announce that a program, or a branch of it, sends no more requests (see `ProgramHint`)."""
        with self._lock:
            if self.failure is None:
                self._outbox.send(ReleaseReq(program, branch))

    def ask(self, request: Question) -> RequestOutput:
        """Send a request that is answered with one output, and return the output.

        Raises:
            RequestError: the request was refused or failed; names the field.
        """
        with contextlib.closing(self.stream(request)) as outputs:
            return _answer(next(outputs))

    async def aask(self, request: Question) -> RequestOutput:
        """`ask` for the running event loop; cancelling it aborts the request."""
        async with contextlib.aclosing(self.astream(request)) as outputs:
            return _answer(await anext(outputs))

    def _submit(self, request: Request, stream: _Stream) -> None:
        check_request(request)
        with self._lock:
            if self.failure is not None:
                raise RequestError(self.failure, code="engine_dead", status=503)
            if self.draining:
                raise RequestError("the server is shutting down", code="shutting_down", status=503)
            if request.rid in self._streams:
                raise RequestError(f"request id {request.rid!r} is in use", param="rid")
            self._streams[request.rid] = stream
            try:
                self._outbox.send(request)
            except (TypeError, ValueError, OverflowError) as error:
                del self._streams[request.rid]
                raise RequestError(f"the request cannot be sent: {error}") from error

    # --- operators ---

    def control(self, op: str, timeout_s: float = CONTROL_TIMEOUT_S) -> ControlReply:
        """Send the scheduler "flush_cache", "check" or "drain" and wait for its reply.

        Raises:
            EngineError: the engine has failed or does not reply in time.
        """
        control_id = str(next(self._control_ids))
        answer: queue.SimpleQueue[ControlReply] = queue.SimpleQueue()
        self._controls[control_id] = answer
        try:
            with self._lock:
                if self.failure is not None:
                    raise EngineError(self.failure)
                self._outbox.send(ControlReq(control_id, op))  # type: ignore[arg-type]
            reply = answer.get(timeout=timeout_s)
            if self.failure is not None:
                raise EngineError(self.failure)
            return reply
        except queue.Empty:
            raise EngineError(f"the scheduler did not answer {op!r} within {timeout_s:g} s") from None
        finally:
            del self._controls[control_id]

    # --- the receiver thread ---

    def dispatch(self, message: ToMain) -> None:
        """Handle one message from the engine. Never raises because of its content."""
        if isinstance(message, OutputBatch):
            self._deliver(message.outputs)
        elif isinstance(message, SchedulerStats):
            self.stats = message
        elif isinstance(message, EngineReady):
            self.info = message
            self.ready.set()
        elif isinstance(message, ControlReply):
            waiting = self._controls.get(message.id)
            if waiting is not None:
                waiting.put(message)

    def fail(self, reason: str) -> None:
        """Mark the engine as failed: end every open request with an error that names the reason; refuse new ones."""
        error = Finish(FINISH_ERROR, error=FinishError(reason, code="engine_dead", status=503))
        with self._lock:
            if self.failure is not None:
                return
            self.failure = reason
            rids = list(self._streams)
        self._deliver([RequestOutput(rid, finish=error) for rid in rids])
        for control_id, waiting in list(self._controls.items()):
            waiting.put(ControlReply(control_id, ok=False, message=reason))

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, RequestOutput]]] = {}
        for output in outputs:
            if output.finish is None:
                stream = self._streams.get(output.rid)
            else:
                with self._lock:
                    stream = self._streams.pop(output.rid, None)
            if stream is None:
                continue
            if stream.loop is None:
                stream.put(output)
            else:
                by_loop.setdefault(stream.loop, []).append((stream, output))
        for loop, items in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its readers with it
                loop.call_soon_threadsafe(_put_all, items)
