"""`CompileClient`: the scheduler's end of the compile workers. Never blocks; kills workers that take too long.

How long a constraint takes to compile is known only afterwards, so each job begins as a *short* job. A job that has
used SHORT_S of processor time is *long*. Short jobs do not wait for long ones: one worker at least is for short jobs
alone, and a tenant without a short job in a worker gets one more, up to MAX_SHORT. Long jobs share the other workers:
each tenant may have as many as run at once, tenants with long jobs take turns of SLICE_EVERY_S, and a long job beyond
these limits is ended, and compiled again from the beginning when it is its tenant's turn.

A job's timeout counts the processor time of its own compilation, neither the wait for a worker nor the time in which
its worker is stopped. A job that gets no processor, because the machine is too busy, ends with a 503 after
STARVED_TIMEOUTS times its timeout.

A worker has a single job at a time, so the death of a worker concerns a single job. The job is tried again, because
something else may have killed the worker; after a second death the job is refused. Workers are forked from a fork
server, which loads the vocabulary. If the server does not start, MAX_FAILED_STARTS attempts are made in a row, or a
single attempt if the server reports a permanent reason. Then all jobs are refused with that reason.
"""

from __future__ import annotations

import logging
import selectors
import subprocess

import msgspec

from radixrt.channel import UNDECODABLE
from radixrt.constrained.compile.fork_server import ForkServer, Worker
from radixrt.constrained.compile.job_queue import Job, JobQueue
from radixrt.constrained.compile.protocol import READY, CompileJob, CompileResult, WorkerSettings
from radixrt.constraint import Constraint
from radixrt.messages.parts import FinishError
from radixrt.os_process import read_stat
from radixrt.portable import num_cores

logger = logging.getLogger(__name__)

WORKER_MODULE = "radixrt.constrained.compile.worker"
MIN_WORKERS, MAX_WORKERS = 2, 4
CORES_PER_WORKER = 4
SHORT_S = 0.05
"""Processor time of a short job, in seconds."""
SHORT_WAIT_S = 1.0
"""Seconds after which a job is long although it has used less processor time."""
MAX_SHORT = 4
"""Short jobs of different tenants at the same time."""
MAX_LONG_HELD = 4
"""Processes that may have a long job, running or not: each may use `worker.MEMORY_BYTES`."""
KILL_GRACE_S = 0.25
"""Processor time beyond a job's timeout until its worker is killed; at the timeout, the worker itself tries to give up.
"""
STARVED_TIMEOUTS = 6
MAX_FAILED_STARTS = 3
SHORT_LIFE_S = 30.0
"""A fork server that ends within this time counts as a failed start, unless a job has been answered."""
START_TIMEOUT_S = 120.0
SLICE_S = 0.01
SLICE_EVERY_S = 0.2
"""Beside running requests, a long job is stopped except for SLICE_S of each SLICE_EVERY_S seconds. Threads that compute
a step together wait for the slowest thread, so a job that takes even a small share of a core would slow down every
step."""


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return num_cores()


class CompileClient:
    """See the module's docstring. The caller passes the time of a monotonic clock.

    Args:
        max_workers: maximum number of processes that compile at the same time; None for one per `CORES_PER_WORKER`
            cores, but at least `MIN_WORKERS` and at most `MAX_WORKERS`.
    """

    def __init__(self, settings: WorkerSettings, max_workers: int | None = None) -> None:
        share = available_cores() // CORES_PER_WORKER
        self._max_workers = max_workers or min(max(share, MIN_WORKERS), MAX_WORKERS)
        self._max_long = max(self._max_workers - 1, 1)
        self._spares = min(max(share, 1), self._max_workers)
        self._settings = msgspec.msgpack.encode(settings)
        self._selector = selectors.DefaultSelector()
        self._server: ForkServer | None = None
        self._workers: list[Worker] = []
        self._new, self._long = JobQueue(), JobQueue()
        self._waiting: dict[int, Job] = {}  # the jobs in both queues
        self._results: list[CompileResult] = []
        self._decoder = msgspec.msgpack.Decoder(CompileResult)
        self._ended: list[subprocess.Popen[bytes]] = []  # servers that were killed, but perhaps not reaped yet
        self._failed_starts = 0  # since the last answered job
        self._given_up: FinishError | None = None
        self._polled = 0.0
        self.timeouts = 0

    def start(self, now: float) -> None:
        """Start the fork server and its first workers, ahead of the first job. Idempotent."""
        if self._server is None and self._given_up is None:
            self._server = ForkServer(WORKER_MODULE, self._settings, now)
            self._selector.register(self._server, selectors.EVENT_READ)
        self._keep_spares()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` may have results. It never changes."""
        return self._selector.fileno()  # of epoll or kqueue

    # --- jobs ---

    def submit(
        self, job_id: int, constraint: Constraint, now: float, timeout_s: float, *, tenant: str = "",
        thorough: bool = False,
    ) -> None:  # fmt: skip
        """Queue a job. `poll` returns the result.

        Args:
            timeout_s: processor time that compiling may take, in seconds.
            tenant: API key of the request; the keys take turns.
            thorough: see `CompileJob`.
        """
        self._enqueue(Job(job_id, constraint, tenant, timeout_s, thorough))
        self.start(now)
        self._assign(now)

    def join(self, job_id: int, tenant: str) -> None:
        """Queue a waiting job for another tenant too, so that it does not wait for the turn of the first alone."""
        job = self._waiting.get(job_id)
        if job is not None:
            self._enqueue(job, tenant)

    def withdraw(self, job_id: int) -> bool:
        """Drop a job that waits for a worker; return False if the job does not wait."""
        job = self._waiting.get(job_id)
        if job is None:
            return False
        self._dequeue(job)
        return True

    def poll(self, now: float, *, crowded: bool = False) -> list[CompileResult]:
        """Return the results since the last call, including errors for jobs whose time is up.

        Args:
            crowded: running requests need the cores until the next call.
        """
        for key, events in self._selector.select(0):
            if key.fileobj is self._server:
                if self._server.has_ended():
                    self._server_ended(now)
                continue
            worker = next((each for each in self._workers if each is key.fileobj), None)
            if worker is not None:
                self._receive(worker, events)
        if self._server is not None:
            self._server.continue_if_stopped()
            if not self._server.has_served and now >= self._server.started + START_TIMEOUT_S:
                self._server_ended(now)
        self._watch(now)
        self._assign(now)
        self._share(now, crowded=crowded)
        self._ended = [process for process in self._ended if process.poll() is None]
        results, self._results = self._results, []
        return results

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that are ready."""
        return [worker.pid for worker in self._workers if worker.pid]

    def close(self) -> None:
        """End the workers and their server."""
        self._end_server()
        for process in self._ended:
            process.wait()
        self._selector.close()

    # --- queues ---

    def _enqueue(self, job: Job, tenant: str | None = None, *, first: bool = False) -> None:
        self._waiting[job.id] = job
        queue = self._long if job.is_long else self._new
        queue.push(job, job.tenant if tenant is None else tenant, first=first)

    def _dequeue(self, job: Job) -> None:
        del self._waiting[job.id]
        self._new.remove(job)
        self._long.remove(job)

    def _next_job(self) -> Job | None:
        return self._new.pop(self._may_begin) or self._long.pop(self._may_hold_another)

    def _may_begin(self, tenant: str) -> bool:
        """Return True if a new job of a tenant may begin."""
        short = [worker.job.tenant for worker in self._workers if worker.job is not None and not worker.job.is_long]
        long = min(len(self._long_workers()), self._max_long)
        return len(short) < self._max_workers - long or (len(short) < MAX_SHORT and tenant not in short)

    def _may_hold_another(self, tenant: str) -> bool:
        """Return True if a tenant may have one more process with a long job."""
        held = [worker.job.tenant for worker in self._long_workers() if worker.job is not None]
        return len(held) < MAX_LONG_HELD and held.count(tenant) < self._max_long

    def _long_workers(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.job is not None and worker.job.is_long]

    def _assign(self, now: float) -> None:
        """Give jobs to free workers, and start more workers if jobs or the next ones would have to wait for them."""
        for worker in [each for each in self._workers if each.is_free]:
            job = self._next_job()
            if job is None:
                break
            del self._waiting[job.id]
            stat = read_stat(worker.pid)
            worker.job, worker.busy_since = job, now
            worker.cpu_before = 0.0 if stat is None else stat.cpu_s
            job.cpu_s = job.ran_s = 0.0
            worker.send(msgspec.msgpack.encode(CompileJob(job.id, job.constraint, job.timeout_s, job.thorough)))
            self._selector.modify(worker, worker.events)
        if self._given_up is not None and not self._workers:
            self._fail_waiting(self._given_up)
        self._keep_spares()

    # --- processes ---

    def _keep_spares(self) -> None:
        """Keep as many workers without a job as new jobs may need at once, and at most one more."""
        idle = sorted((worker for worker in self._workers if worker.job is None), key=lambda worker: not worker.pid)
        for worker in idle[self._spares + 1 :]:
            self._discard(worker)
        for _ in range(self._spares - len(idle)):
            forked = None if self._server is None else self._server.fork()
            if forked is None:
                return
            self._selector.register(forked, selectors.EVENT_READ)
            self._workers.append(forked)

    def _receive(self, worker: Worker, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            worker.flush()
            self._selector.modify(worker, worker.events)
        if not events & selectors.EVENT_READ:
            return
        frames = worker.receive()
        if frames is None:
            self._died(worker)
            return
        for data in frames:
            try:
                result = self._decoder.decode(data)
            except UNDECODABLE:
                logger.exception("a compile worker wrote something that is no answer")
                self._died(worker)
                return
            self._take(worker, result)

    def _take(self, worker: Worker, result: CompileResult) -> None:
        if result.id == READY:
            worker.become_ready(result.pid)
            if self._server is not None:
                self._server.has_served = True
        elif worker.job is not None and worker.job.id == result.id:
            self._failed_starts = 0
            worker.job = None
            self._results.append(result)
            if result.is_last:
                self._discard(worker)
            elif worker.stopped:
                worker.stop(False)

    def _died(self, worker: Worker) -> None:
        """Replace a worker that has died by itself. Its job is refused after the second worker that dies over it."""
        self._discard(worker)
        if self._server is not None and self._server.process.poll() is not None:
            self._requeue(worker)  # it died with the server, not over its job
            return
        job = worker.job
        if job is None:
            if not worker.pid and self._server is not None and self._server.has_served:
                self._failed_start(FinishError("it ended at once", code="unavailable", status=503))
            return
        kind = job.constraint.kind
        logger.error("a compile worker ended over a constraint of kind %s", kind)
        if job.was_interrupted:
            self._fail(job, f"{kind} is too large or too complex to compile", "too_complex")
        else:
            job.was_interrupted = True
            self._requeue(worker)

    def _requeue(self, worker: Worker) -> None:
        if worker.job is not None:
            self._enqueue(worker.job, first=True)

    def _server_ended(self, now: float) -> None:
        """Start another fork server, unless the starts fail. The jobs of its workers are compiled again."""
        server = self._server
        assert server is not None
        self._end_server()
        if not server.has_served or now < server.started + SHORT_LIFE_S:
            self._failed_start(server.failure or FinishError("it ended at once", code="unavailable", status=503))
        self.start(now)

    def _end_server(self) -> None:
        """End the fork server and its workers, whose jobs wait for the next server."""
        for worker in list(self._workers):
            self._requeue(worker)
            self._discard(worker)
        if self._server is not None:
            self._selector.unregister(self._server)
            self._server.kill()
            self._ended.append(self._server.process)
            self._server = None

    def _failed_start(self, error: FinishError) -> None:
        self._failed_starts += 1
        is_final = error.status == 501 or self._failed_starts >= MAX_FAILED_STARTS
        if is_final and self._given_up is None:
            reason = f"the process that compiles constraints does not start: {error.message}"
            self._given_up = msgspec.structs.replace(error, message=reason)
            logger.error("constraints are refused from now on, because %s", reason)
            self._end_server()

    def _discard(self, worker: Worker) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker)
        worker.kill()

    # --- time ---

    def _watch(self, now: float) -> None:
        """Measure the processor time of jobs; end jobs whose time is up, and find the jobs that are long."""
        since, self._polled = self._polled, now
        for worker in [each for each in self._workers if each.job is not None]:
            job, stat = worker.job, read_stat(worker.pid)
            if job is None or stat is None:  # the process is dead, which its socket reports
                continue
            job.cpu_s = stat.cpu_s - worker.cpu_before
            if not worker.stopped:
                job.ran_s += now - max(since, worker.busy_since)
                if stat.state == "T":  # somebody else has stopped it
                    worker.stop(False)
            kind = job.constraint.kind
            if job.cpu_s >= job.timeout_s + KILL_GRACE_S:
                self._discard(worker)
                self.timeouts += 1
                self._fail(job, f"{kind} takes too long to compile; make it simpler", "compile_timeout")
            elif job.ran_s >= job.timeout_s * STARVED_TIMEOUTS:
                self._discard(worker)
                reason = f"{kind} was not compiled within {job.ran_s:.0f} s, because the machine is too busy; try again"
                self._fail(job, reason, "busy", 503)
            elif not job.is_long and (job.cpu_s >= SHORT_S or job.ran_s >= SHORT_WAIT_S):
                may_stay = self._may_hold_another(job.tenant)
                job.is_long = True
                if not may_stay:
                    self._discard(worker)
                    self._enqueue(job)

    def _share(self, now: float, *, crowded: bool) -> None:
        """Let the long jobs whose turn it is run, and stop the others."""
        long = self._long_workers()
        turn = int(now / SLICE_EVERY_S)
        for i, worker in enumerate(long):
            is_next = (i - turn) % len(long) < self._max_long
            runs = is_next and not (crowded and now % SLICE_EVERY_S > SLICE_S)
            if worker.stopped is runs:
                worker.stop(not runs)

    # --- refusals ---

    def _fail(self, job: Job, message: str, code: str, status: int = 400) -> None:
        error = FinishError(message, param=job.constraint.kind, code=code, status=status)
        self._results.append(CompileResult(job.id, error=error, keyword=job.constraint.kind))

    def _fail_waiting(self, error: FinishError) -> None:
        for job in list(self._waiting.values()):
            self._dequeue(job)
            self._fail(job, error.message, error.code or "unavailable", error.status)
