"""`CompileClient`: the scheduler's end of the compile workers. Never blocks; kills workers that hang.

A worker has a single job at a time, so the death of a worker concerns a single job. The job is tried again, because
something else may have killed the worker; after a second death the job is refused. A machine with many cores has
several workers from the start (`max_workers`), because the first requests may bring many constraints at once. With few
cores, a single worker serves all jobs as long as they are short. If a worker has been busy for `SLOW_JOB_S` while jobs
wait, a second worker takes these jobs, so that a hostile constraint delays only other hostile constraints. When the
time of a job is up, its worker is killed.

If workers do not start, MAX_FAILED_STARTS attempts are made in a row, or a single attempt if a worker reports a
permanent reason. Then all jobs are refused with that reason.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import signal
import subprocess
from collections import deque
from dataclasses import dataclass, field

import msgspec

from radixrt.channel import UNDECODABLE
from radixrt.constrained.compile.protocol import (
    FAILED,
    LOADED,
    LOADING,
    READY,
    CompileJob,
    CompileResult,
    FrameReader,
    WorkerSettings,
    frame,
)
from radixrt.constraint import Constraint
from radixrt.messages.parts import FinishError
from radixrt.os_process import child_command

logger = logging.getLogger(__name__)

WORKER_MODULE = "radixrt.constrained.compile.worker"
MIN_WORKERS, MAX_WORKERS = 2, 4
CORES_PER_WORKER = 4
SLOW_JOB_S = 0.1
KILL_GRACE_S = 0.25
"""Seconds after a job's deadline until its worker is killed; at the deadline, the worker tries to give up by itself."""
MAX_FAILED_STARTS = 3
SHORT_LIFE_S = 30.0
"""A worker without a job that ends within this time counts as a failed start."""
START_TIMEOUT_S = 120.0
FIRST_START_S = 30.0
"""Seconds by which the deadlines of jobs are extended while the first worker starts."""
SLICE_AFTER_S = 0.05
SLICE_S = 0.01
SLICE_EVERY_S = 0.2
"""A job that takes longer than SLICE_AFTER_S beside running requests is stopped except for SLICE_S of each
SLICE_EVERY_S seconds. Threads that compute a step together wait for the slowest thread, so a job that takes even a
small share of a core would slow down every step."""
LIBRARY_S = 30.0
"""Maximum time for loading a library, in seconds. The deadline of the job that needs the library is extended."""


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@dataclass
class _Job:
    id: int
    constraint: Constraint
    deadline: float
    timeout_s: float
    thorough: bool
    was_interrupted: bool = False


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    started: float
    ready: bool = False
    was_ready: bool = False
    failure: FinishError | None = None
    job: _Job | None = None
    busy_since: float = 0.0
    loading_since: float = 0.0
    stopped: bool = False
    unsent: bytes = b""
    reader: FrameReader = field(default_factory=FrameReader)

    @property
    def stdin(self) -> int:
        assert self.process.stdin is not None
        return self.process.stdin.fileno()

    @property
    def stdout(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()


class CompileClient:
    """See the module's docstring. The caller passes the time of a monotonic clock.

    Args:
        max_workers: maximum number of processes; None for one per `CORES_PER_WORKER` cores, but at least `MIN_WORKERS`
            and at most `MAX_WORKERS`.
    """

    def __init__(self, settings: WorkerSettings, max_workers: int | None = None) -> None:
        share = available_cores() // CORES_PER_WORKER
        self._max_workers = max_workers or min(max(share, MIN_WORKERS), MAX_WORKERS)
        self._started_ahead = min(max(share, 1), self._max_workers)
        self._settings = frame(msgspec.msgpack.encode(settings))
        self._epoll = select.epoll()
        self._workers: list[_Worker] = []
        self._queue: deque[_Job] = deque()
        self._results: list[CompileResult] = []
        self._decoder = msgspec.msgpack.Decoder(CompileResult)
        self._ended: list[subprocess.Popen[bytes]] = []  # killed, but perhaps not reaped yet
        self._failed_starts = 0  # since the last answered job
        self._given_up: FinishError | None = None
        self._was_ready = False
        self.timeouts = 0

    def start(self, now: float) -> None:
        """Start workers ahead of the first job: a worker for every `CORES_PER_WORKER` cores, but at least one."""
        for _ in range(self._started_ahead - len(self._workers)):
            self._spawn(now)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` may have results. It never changes."""
        return self._epoll.fileno()

    def submit(
        self, job_id: int, constraint: Constraint, now: float, timeout_s: float, *, thorough: bool = False
    ) -> None:
        """Queue a job. `poll` returns the result.

        Args:
            timeout_s: maximum time until the result, in seconds, including the wait for a worker; while the first
                worker starts, `FIRST_START_S` more.
            thorough: see `CompileJob`.
        """
        deadline = now + timeout_s + (0.0 if self._was_ready else FIRST_START_S)
        self._queue.append(_Job(job_id, constraint, deadline, timeout_s, thorough))
        self._assign(now)

    def poll(self, now: float, *, crowded: bool = False) -> list[CompileResult]:
        """Return the results since the last call, including errors for jobs whose time is up.

        Args:
            crowded: running requests need the cores until the next call.
        """
        for descriptor, events in self._epoll.poll(0):
            worker = next((w for w in self._workers if descriptor in (w.stdin, w.stdout)), None)
            if worker is None:
                continue
            if descriptor == worker.stdin and events & select.EPOLLOUT:
                self._flush(worker)
            elif descriptor == worker.stdout:
                self._receive(worker, now)
        self._end_late_jobs(now)
        self._assign(now)
        self._keep_a_spare(now, crowded=crowded)
        for worker in self._workers:
            self._slice(worker, now, crowded=crowded)
        self._ended = [process for process in self._ended if process.poll() is None]
        results, self._results = self._results, []
        return results

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers."""
        for worker in list(self._workers):
            self._discard(worker)
        for process in self._ended:
            process.wait()
        self._epoll.close()

    def _assign(self, now: float) -> None:
        while self._queue:
            idle = next((w for w in self._workers if w.ready and w.job is None), None)
            if idle is None:
                break
            job = self._queue.popleft()
            idle.job, idle.busy_since = job, now
            message = CompileJob(job.id, job.constraint, max(job.deadline - now, 0.001), job.thorough)
            self._send(idle, frame(msgspec.msgpack.encode(message)))
        if not self._queue:
            return
        starting = any(not w.ready for w in self._workers)
        stuck = all(w.job is not None and now - w.busy_since >= SLOW_JOB_S for w in self._workers)
        if not starting and stuck and len(self._workers) < self._max_workers:
            self._spawn(now)

    def _keep_a_spare(self, now: float, *, crowded: bool) -> None:
        """Start another worker while no request needs the cores, because a start takes a core for a second or two."""
        if self._given_up is not None:
            return
        all_ready = bool(self._workers) and all(w.ready for w in self._workers)
        if not crowded and all_ready and len(self._workers) < self._max_workers:
            self._spawn(now)

    def _spawn(self, now: float) -> None:
        if self._given_up is not None:
            if not self._workers:
                self._fail_queue(self._given_up)
            return
        process = subprocess.Popen(child_command(WORKER_MODULE), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        worker = _Worker(process, now)
        for descriptor in (worker.stdin, worker.stdout):
            os.set_blocking(descriptor, False)
        self._epoll.register(worker.stdout, select.EPOLLIN)
        self._workers.append(worker)
        self._send(worker, self._settings)

    def _send(self, worker: _Worker, data: bytes) -> None:
        was_empty = not worker.unsent
        worker.unsent += data
        if was_empty:
            self._epoll.register(worker.stdin, select.EPOLLOUT)
        self._flush(worker)

    def _flush(self, worker: _Worker) -> None:
        try:
            worker.unsent = worker.unsent[os.write(worker.stdin, worker.unsent) :]
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EPIPE):  # after EPIPE, reading stdout finds the dead worker
                raise
            if error.errno == errno.EPIPE:
                worker.unsent = b""
        if not worker.unsent:
            self._epoll.unregister(worker.stdin)

    def _receive(self, worker: _Worker, now: float) -> None:
        while True:
            try:
                piece = os.read(worker.stdout, 1 << 20)
            except BlockingIOError:
                return
            if not piece:
                self._died(worker, now)
                return
            for data in worker.reader.feed(piece):
                try:
                    self._take(worker, self._decoder.decode(data), now)
                except UNDECODABLE:
                    logger.exception("a compile worker wrote something that is no answer")
                    self._died(worker, now)
                    return

    def _take(self, worker: _Worker, result: CompileResult, now: float) -> None:
        # Loading a library does not count against the job: grant LIBRARY_S, and correct the deadline afterwards.
        if result.id == LOADING:
            if worker.job is not None:
                worker.job.deadline += LIBRARY_S
                worker.loading_since = now
        elif result.id == LOADED:
            if worker.job is not None:
                worker.job.deadline += now - worker.loading_since - LIBRARY_S
        elif result.id == READY:
            # Now that the first worker is ready, the queued jobs have their usual time from here.
            worker.ready = worker.was_ready = True
            if not self._was_ready:
                self._was_ready = True
                for job in self._queue:
                    job.deadline = min(job.deadline, now + job.timeout_s)
        elif result.id == FAILED:
            worker.failure = result.error
        elif worker.job is not None and worker.job.id == result.id:
            self._failed_starts = 0
            worker.job = None
            worker.ready = not result.is_last
            self._results.append(result)

    def _died(self, worker: _Worker, now: float) -> None:
        self._discard(worker)
        if not worker.was_ready or (worker.job is None and now < worker.started + SHORT_LIFE_S):
            self._failed_start(worker.failure or FinishError("it ended at once", code="unavailable", status=503))
        job = worker.job
        if job is not None:
            kind = job.constraint.kind
            logger.error("a compile worker ended over a constraint of kind %s", kind)
            if job.was_interrupted:
                self._fail(job, f"{kind} is too large or too complex to compile", "too_complex")
            else:
                job.was_interrupted, job.deadline = True, now + job.timeout_s
                self._queue.appendleft(job)
        if not self._workers:
            self._spawn(now)

    def _failed_start(self, error: FinishError) -> None:
        self._failed_starts += 1
        is_final = error.status == 501 or self._failed_starts >= MAX_FAILED_STARTS
        if is_final and self._given_up is None:
            reason = f"the process that compiles constraints does not start: {error.message}"
            self._given_up = msgspec.structs.replace(error, message=reason)
            logger.error("constraints are refused from now on, because %s", reason)

    def _end_late_jobs(self, now: float) -> None:
        for worker in list(self._workers):
            if worker.job is not None and now >= worker.job.deadline + KILL_GRACE_S:
                self._discard(worker)
                self._time_out(worker.job)
                if not self._workers:
                    self._spawn(now)
            elif not worker.was_ready and now >= worker.started + START_TIMEOUT_S:
                self._died(worker, now)
        for job in [job for job in self._queue if now >= job.deadline]:
            self._queue.remove(job)
            self._time_out(job)

    def _slice(self, worker: _Worker, now: float, *, crowded: bool) -> None:
        """Stop or continue a worker with a long job, by signals. Also continue a worker that somebody else stopped."""
        busy_s = now - worker.busy_since
        slow = crowded and worker.job is not None and busy_s > SLICE_AFTER_S
        stop = slow and busy_s % SLICE_EVERY_S > SLICE_S
        if stop is not worker.stopped:
            worker.stopped = stop
            worker.process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)
        elif not stop and _has_stopped(worker.process.pid):
            worker.process.send_signal(signal.SIGCONT)

    def _time_out(self, job: _Job) -> None:
        self.timeouts += 1
        self._fail(job, f"{job.constraint.kind} takes too long to compile; make it simpler", "compile_timeout")

    def _fail(self, job: _Job, message: str, code: str, status: int = 400) -> None:
        error = FinishError(message, param=job.constraint.kind, code=code, status=status)
        self._results.append(CompileResult(job.id, error=error, keyword=job.constraint.kind))

    def _fail_queue(self, error: FinishError) -> None:
        while self._queue:
            self._fail(self._queue.popleft(), error.message, error.code or "unavailable", error.status)

    def _discard(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        if worker.unsent:
            self._epoll.unregister(worker.stdin)
        self._epoll.unregister(worker.stdout)
        with contextlib.suppress(OSError):
            worker.process.kill()
        for pipe in (worker.process.stdin, worker.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._ended.append(worker.process)


def _has_stopped(pid: int) -> bool:
    """Return True if a child has been stopped by a signal since the last call."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
    except ChildProcessError:  # the child is dead, which `_receive` finds by its closed pipe
        return False
