"""Processes that compile constraints: a fork server, `python -m radixrt.constrained.compile.worker`, and its workers.

The fork server's standard input is a socket. A frame names the vocabulary to load; each byte after it carries the
socket of a worker to fork. A worker answers jobs on its socket, in frames of length-prefixed MessagePack.
`CompileClient` kills a worker if necessary, so that endless loops, memory use and crashes of a library affect this
worker alone. A worker exits when its socket is closed, and the kernel kills the workers when their server ends.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.cache import CompileCache
from radixrt.constrained.compile.compiler import compile_constraint, refusal
from radixrt.constrained.compile.protocol import (
    READY,
    CompileJob,
    CompileResult,
    FrameReader,
    WorkerSettings,
    frame,
    receive_frame,
)
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from radixrt.errors import RadixRTError
from radixrt.logs import configure_logging
from radixrt.messages.parts import FinishError
from radixrt.os_process import die_with_parent

logger = logging.getLogger(__name__)

MEMORY_BYTES = 2 * 1024**3
"""Address space that compiling may use in addition to the address space after loading."""
BLOATED_BYTES = 1024**3
"""A process that has grown by more than this since its start exits after the job, and the client starts a new one."""
MAX_UNCOLLECTED = 50_000
"""Number of new objects after which garbage is collected between jobs."""
NICENESS = 5
SCHEMAS = (
    '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"enum": ["x", 1, null]}}}',
    '{"anyOf": [{"type": "array", "items": {"type": ["integer", "boolean"]}}, {"type": "number", "minimum": 0}, {}]}',
)
WARM_UP = (
    *(Constraint(kind="json_schema", source=source) for source in SCHEMAS),
    Constraint(kind="regex", source="[a-z ]{9,}|x"),
    Constraint(kind="ebnf", source='root ::= line+\nline ::= [a-z]+ "=" [0-9]{2,3}'),
)


def virtual_memory() -> int:
    """Return the size of the process's address space, in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        import psutil

        return int(psutil.Process().memory_info().vms)


def limit_memory() -> None:
    """Limit the growth of the process to MEMORY_BYTES from now on. Allocations beyond the limit fail. macOS has no such
    limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = virtual_memory() + MEMORY_BYTES
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


class CompileWorker:
    """A loaded vocabulary and mask library, and the loop of a worker."""

    def __init__(self, settings: WorkerSettings) -> None:
        vocabulary = Vocabulary.from_folder(settings.tokenizer, settings.vocab_size, settings.eos_ids)
        self._backends = Backends(vocabulary)
        self._backends.get(settings.library)
        self._cache: CompileCache | None = None
        if settings.cache_folder is not None:
            self._cache = CompileCache(Path(settings.cache_folder), vocabulary.fingerprint, settings.cache_bytes)
        for constraint in WARM_UP:  # imports and tables that the first request would otherwise wait for
            compile_constraint(constraint, self._backends, thorough=True)

    def run(self, connection: socket.socket) -> None:
        """Serve jobs until the client closes the connection, or a new process should take over."""
        limit_memory()
        start_bytes = virtual_memory()
        write(connection, CompileResult(READY, pid=os.getpid()))
        decoder = msgspec.msgpack.Decoder(CompileJob)
        reader = FrameReader()
        while piece := connection.recv(1 << 16):
            for data in reader.feed(piece):
                job = decoder.decode(data)
                result = self._compile(job)
                is_last = virtual_memory() > start_bytes + BLOATED_BYTES
                write(connection, msgspec.structs.replace(result, is_last=True) if is_last else result)
                if self._cache is not None and result.compiled is not None and not result.from_disk:
                    self._cache.put(job.constraint.key, result.compiled)
                if is_last:
                    return
                if gc.get_count()[0] > MAX_UNCOLLECTED:
                    gc.collect()

    def _compile(self, job: CompileJob) -> CompileResult:
        if self._cache is not None and not job.thorough:
            known = self._cache.get(job.constraint.key)
            if known is not None:
                return CompileResult(job.id, known, from_disk=True)
        try:
            deadline = time.thread_time() + job.timeout_s
            compiled = compile_constraint(job.constraint, self._backends, deadline, thorough=job.thorough)
        except Exception as error:
            refused, keyword = refusal(error, job.constraint)
            return CompileResult(job.id, error=refused, keyword=keyword)
        return CompileResult(job.id, compiled)


def write(connection: socket.socket, result: CompileResult) -> None:
    """Write a result as a frame."""
    connection.sendall(frame(msgspec.msgpack.encode(result)))


def serve(worker: CompileWorker, control: socket.socket) -> None:
    """Fork a worker for each socket that arrives, until the client closes the control socket. A worker returns too."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the workers; their client sees their sockets close
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages of all objects that the server has made
    gc.disable()  # workers collect garbage between jobs, when no request waits
    server = os.getpid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                die_with_parent()
                if os.getppid() == server:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client needs it no longer
                        worker.run(connection)
                return


def main() -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the engine decides
    os.dup2(2, 1)  # libraries that print do so on standard error
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # else each worker would keep the socket open
    settings = msgspec.msgpack.decode(receive_frame(control), type=WorkerSettings)
    configure_logging("warning", "grammar compiler", format=settings.log_format)
    try:
        worker = CompileWorker(settings)
    except Exception as error:  # the client logs it, once for all attempts
        status = 501 if isinstance(error, RadixRTError) else 503
        reason = str(error) if isinstance(error, RadixRTError) else f"{type(error).__name__}: {error}"
        control.send(msgspec.msgpack.encode(FinishError(reason, code="unavailable", status=status)))
        return 1
    serve(worker, control)
    return 0


if __name__ == "__main__":
    sys.exit(main())
