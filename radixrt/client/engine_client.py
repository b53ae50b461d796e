"""`EngineClient`: the main process's connection to the engine. Sends requests and delivers outputs to their streams.

Threads: any thread and any event loop may submit; one receiver thread calls `dispatch`. Each open request has a stream.
The stream is removed after the request's finish is delivered, so `open_requests` is the number of unanswered requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Literal

from radixrt.channel import Outbox
from radixrt.client.answers import ENGINE_DEAD
from radixrt.client.fleet_stats import merge_stats
from radixrt.client.validation import check_request
from radixrt.errors import EngineError, RequestError
from radixrt.messages.cache_events import FromWatched, PageWatch, PageWatched, ToWatched
from radixrt.messages.client import (
    ClientRequest,
    EngineReady,
    OutputBatch,
    RequestOutput,
    ToMain,
    ToTokenizer,
)
from radixrt.messages.fleet import ReplicaStats, RouterQueue
from radixrt.messages.parts import FINISH_ERROR, Finish, FinishError
from radixrt.messages.scheduler import AbortReq, ControlReply, ControlReq, ReleaseReq
from radixrt.messages.scheduler_stats import SchedulerStats

CONTROL_TIMEOUT_S = 30.0

State = Literal["starting", "serving", "restarting", "failed"]

ToReader = FromWatched | RouterQueue | EngineReady
"""Messages to whoever watches the cache of an engine or of a replica."""

_Replies = queue.SimpleQueue[ControlReply | EngineError]
"""Queue for the reply to a control request, or for the failure because of which there will be none."""


@dataclass(frozen=True)
class EngineStatus:
    """State of the engine.

    Attributes:
        state: "starting"; "serving"; "restarting": processes have failed and are restarted, and requests wait for them;
            "failed": the engine does not restart.
        reason: failure that made the engine restart or fail.
    """

    state: State
    reason: str = ""


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

    The supervisor of the engine's processes reports failures and restarts. Requests survive a restart of the
    ModelRunner. A restart of the tokenizer and the scheduler ends all open requests; requests sent meanwhile wait for
    the new processes.

    Attributes:
        ready: set once `info` is available.
        info: properties of the engine and its model; None before it is ready.
        status: state of the engine.
        restarts: number of restarts of each process, by name.
        draining: new requests are refused because the engine is shutting down.
        stats: latest snapshot of the scheduler, or of all replicas together; None before the first.
        replica_stats: latest numbers of each replica; empty without replicas.
        worker_pids: returns the ids of the worker processes, by name; any thread may call it.
    """

    def __init__(self, outbox: Outbox[ToTokenizer], worker_pids: Callable[[], dict[str, int]] = dict) -> None:
        self._outbox = outbox
        self.worker_pids = worker_pids
        # Guards the outbox (ZMQ sockets are not thread-safe), _streams, _controls and status. Reentrant, because the
        # garbage collector may close an abandoned stream at any point, which aborts the request.
        self._lock = threading.RLock()
        self._streams: dict[str, _Stream] = {}
        self._epoch = 0  # of the processes whose EngineReady is awaited
        self._controls: dict[str, _Replies] = {}
        self._control_ids = itertools.count()
        self._watchers: dict[int | None, Callable[[ToReader], None]] = {}
        self.ready = threading.Event()
        self.info: EngineReady | None = None
        self.status = EngineStatus("starting")
        self.restarts: Counter[str] = Counter()
        self.draining = False
        self.stats: SchedulerStats | None = None
        self.replica_stats: dict[int, ReplicaStats] = {}
        self._ended_lives: dict[int, int] = {}  # of replicas, by number

    @property
    def open_requests(self) -> int:
        return len(self._streams)

    @property
    def failure(self) -> str | None:
        """Reason why the engine can no longer serve, or None."""
        return self.status.reason if self.status.state == "failed" else None

    # --- requests ---

    def stream(self, request: ClientRequest) -> Generator[RequestOutput, None, None]:
        """Send the request now and iterate over its outputs, the last of which has `finish`. Closing the iterator early
        aborts the request.

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

    def astream(
        self, request: ClientRequest, on_end: Callable[[RequestOutput], None] | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """`stream` for the running event loop; closing or cancelling the iterator early aborts the request.

        Args:
            on_end: called in the event loop with the last output, also if the iterator was closed before.
        """
        outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()

        def put(output: RequestOutput) -> None:
            outputs.put_nowait(output)
            if on_end is not None and output.finish is not None:
                on_end(output)

        self._submit(request, _Stream(put, asyncio.get_running_loop()))
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

    async def ainfo(self) -> EngineReady:
        """Return the properties of the engine and its model; raises EngineError before the engine is ready."""
        if self.info is None:
            raise EngineError("the engine is starting")
        return self.info

    async def arelease(self, program: str, branch: str | None = None) -> None:
        """`release` for an event loop."""
        self.release(program, branch)

    async def aclose(self) -> None:
        """Do nothing: the owner of the engine closes it."""

    def _submit(self, request: ClientRequest, stream: _Stream) -> None:
        check_request(request)
        with self._lock:
            if self.failure is not None:
                raise RequestError(self.failure, code=ENGINE_DEAD, status=503)
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

    def control(self, op: str, namespace: str = "", timeout_s: float = CONTROL_TIMEOUT_S) -> ControlReply:
        """Send the scheduler a command and wait for its reply.

        Args:
            op, namespace: see `ControlReq`.

        Raises:
            EngineError: the engine has failed or does not reply in time.
        """
        control_id = str(next(self._control_ids))
        answer: _Replies = queue.SimpleQueue()
        try:
            with self._lock:
                if self.failure is not None:
                    raise EngineError(self.failure)
                self._controls[control_id] = answer
                self._outbox.send(ControlReq(control_id, op, namespace))  # type: ignore[arg-type]
            reply = answer.get(timeout=timeout_s)
            if isinstance(reply, EngineError):
                raise reply
            return reply
        except queue.Empty:
            raise EngineError(f"the scheduler did not answer {op!r} within {timeout_s:g} s") from None
        finally:
            self._controls.pop(control_id, None)

    # --- whoever watches the cache ---

    def watch(
        self, receive: Callable[[ToReader], None] | None, replica: int | None = None
    ) -> None:  # fmt: skip
        """Pass messages about the cache, the router's queue and restarts to a reader.

        Args:
            receive: called in the receiver thread, so that it must return quickly; None to stop.
            replica: the replica whose cache is watched; None for an engine without a router.
        """
        with self._lock:
            self._watchers = {number: each for number, each in self._watchers.items() if number != replica}
            if receive is not None:
                self._watchers[replica] = receive

    def send_watch(self, message: ToWatched, replica: int | None = None) -> None:
        """Send a message of a reader to the scheduler, or to the scheduler of a replica."""
        with self._lock:
            if self.failure is None:
                self._outbox.send(message if replica is None else PageWatch(replica, message))

    # --- the receiver thread ---

    def dispatch(self, message: ToMain) -> None:
        """Handle a message from the engine. The content of a message never makes this method raise."""
        if isinstance(message, OutputBatch):
            self._deliver(message.outputs)
        elif isinstance(message, SchedulerStats):
            self.stats = message
        elif isinstance(message, ReplicaStats):
            if message.life > self._ended_lives.get(message.replica, 0):
                self.replica_stats[message.replica] = message
                self._merge_stats()
        elif isinstance(message, EngineReady):
            self._serve(message)
            self._show_all(message)
        elif isinstance(message, RouterQueue):
            self._show_all(message)
        elif isinstance(message, FromWatched):
            self._show(None, message)
        elif isinstance(message, PageWatched):
            self._show(message.replica, message.message)
        elif isinstance(message, ControlReply):
            waiting = self._controls.get(message.id)
            if waiting is not None:
                waiting.put(message)

    def _show(self, replica: int | None, message: FromWatched) -> None:
        watcher = self._watchers.get(replica)
        if watcher is not None:
            watcher(message)

    def _show_all(self, message: RouterQueue | EngineReady) -> None:
        for watcher in list(self._watchers.values()):
            watcher(message)

    def _merge_stats(self) -> None:
        found = list(self.replica_stats.values())
        known = [each.stats for each in found if each.stats is not None]
        queued = max((each.unbound for each in found), default=0) + sum(each.view.queued for each in found)
        self.stats = merge_stats(known, queued) if known else None

    def _serve(self, info: EngineReady) -> None:
        """Note that the processes are ready. Processes of an earlier epoch have failed since, and are ignored."""
        with self._lock:
            if self.failure is not None or info.epoch != self._epoch:
                return
            self.info = info
            self.status = EngineStatus("serving")
        self.ready.set()

    # --- the supervisors' threads ---

    def pause(self, reason: str) -> None:
        """Note that no replica serves at present. Requests wait in the router, which announces when a replica serves
        again."""
        with self._lock:
            if self.failure is None:
                self.status = EngineStatus("restarting", reason)

    def forget_replica(self, replica: int, life: int) -> None:
        """Drop the statistics of a replica's life that has ended, including statistics that are still in transit."""
        self._ended_lives[replica] = life
        if self.replica_stats.pop(replica, None) is not None:
            self._merge_stats()

    def runners_restart(self, reason: str, names: Iterable[str], epoch: int) -> None:
        """Note that the named processes, all of them ModelRunners, restart; requests wait in the scheduler."""
        with self._lock:
            self.status, self._epoch = EngineStatus("restarting", reason), epoch
            self.restarts.update(names)

    def reconnect(self, reason: str, names: Iterable[str], epoch: int, outbox: Outbox[ToTokenizer]) -> None:
        """Note that the named processes, tokenizer and scheduler included, restart. Every open request ends with an
        error that names the reason. The new outbox queues new requests for the new processes."""
        with self._lock:
            self.status, self._epoch = EngineStatus("restarting", reason), epoch
            self.restarts.update(names)
            self._outbox.close()
            self._outbox, self.stats = outbox, None
            self.replica_stats = {}
            rids, controls = list(self._streams), list(self._controls.values())
        self._end(rids, controls, reason)

    def close(self) -> None:
        """Close the outbox; the engine must have failed, or be shut down."""
        with self._lock:
            self._outbox.close()

    def fail(self, reason: str) -> None:
        """Mark the engine as failed: end every open request with an error that names the reason; refuse new ones."""
        with self._lock:
            if self.failure is not None:
                return
            self.status = EngineStatus("failed", reason)
            rids, controls = list(self._streams), list(self._controls.values())
        self._end(rids, controls, reason)

    def _end(self, rids: list[str], controls: list[_Replies], reason: str) -> None:
        error = Finish(FINISH_ERROR, error=FinishError(reason, code=ENGINE_DEAD, status=503))
        self._deliver([RequestOutput(rid, finish=error) for rid in rids])
        for waiting in controls:
            waiting.put(EngineError(reason))

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
