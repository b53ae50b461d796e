"""A process that compiles constraints: `python -m radixrt.constrained.compile.worker`.

`CompileClient` starts the process, sends jobs and kills the process if necessary, so that endless loops, memory use and
crashes of a library affect this process alone. The process reads frames of length-prefixed MessagePack from stdin and
writes frames to the original stdout. The first frame names the vocabulary to load. The process exits when stdin closes.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.cache import CompileCache
from radixrt.constrained.compile.compiler import compile_constraint, refusal
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
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from radixrt.errors import RadixRTError
from radixrt.logs import configure_logging
from radixrt.messages.parts import FinishError

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
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit_memory() -> None:
    """Limit the growth of the process to MEMORY_BYTES from now on. Allocations beyond the limit fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = virtual_memory() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def unlimit_memory() -> None:
    """Lift the limit for loading a library, because a library maps much memory without using it."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _read_stdin(frames: queue.SimpleQueue[bytes]) -> None:
    reader = FrameReader()
    with contextlib.suppress(OSError):
        while piece := os.read(0, 1 << 16):
            for one in reader.feed(piece):
                frames.put(one)
    os._exit(0)  # the engine is gone, so nobody needs the current job


class CompileWorker:
    """The loop of the process.

    Args:
        out: file descriptor that results are written to.
    """

    def __init__(self, settings: WorkerSettings, out: int) -> None:
        vocabulary = Vocabulary.from_folder(settings.tokenizer, settings.vocab_size, settings.eos_ids)
        self._backends = Backends(vocabulary, before_import=self._announce_import, after_import=self._announce_imported)
        self._cache: CompileCache | None = None
        if settings.cache_folder is not None:
            self._cache = CompileCache(Path(settings.cache_folder), vocabulary.fingerprint, settings.cache_bytes)
        self._out = out
        for constraint in WARM_UP:  # imports and tables that the first request would otherwise wait for
            compile_constraint(constraint, self._backends, thorough=True)

    def run(self, frames: queue.SimpleQueue[bytes]) -> None:
        """Serve jobs until a new process should take over."""
        gc.freeze()
        gc.disable()  # garbage is collected between jobs, when no request waits
        limit_memory()
        start_bytes = virtual_memory()
        self._write(CompileResult(READY))
        decoder = msgspec.msgpack.Decoder(CompileJob)
        while True:
            job = decoder.decode(frames.get())
            result = self._compile(job)
            is_last = virtual_memory() > start_bytes + BLOATED_BYTES
            self._write(msgspec.structs.replace(result, is_last=True) if is_last else result)
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
            deadline = time.monotonic() + job.timeout_s
            compiled = compile_constraint(job.constraint, self._backends, deadline, thorough=job.thorough)
        except Exception as error:
            refused, keyword = refusal(error, job.constraint)
            return CompileResult(job.id, error=refused, keyword=keyword)
        return CompileResult(job.id, compiled)

    def _announce_import(self) -> None:
        self._write(CompileResult(LOADING))
        unlimit_memory()

    def _announce_imported(self) -> None:
        limit_memory()
        self._write(CompileResult(LOADED))

    def _write(self, result: CompileResult) -> None:
        write(self._out, result)


def write(out: int, result: CompileResult) -> None:
    """Write a result to a file descriptor."""
    data = frame(msgspec.msgpack.encode(result))
    while data:
        data = data[os.write(out, data) :]


def main() -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the engine decides
    out = os.dup(1)
    os.dup2(2, 1)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_stdin, args=(frames,), daemon=True).start()
    settings = msgspec.msgpack.decode(frames.get(), type=WorkerSettings)
    configure_logging("warning", "grammar compiler", format=settings.log_format)
    try:
        worker = CompileWorker(settings, out)
    except Exception as error:  # the client logs it, once for all attempts
        status = 501 if isinstance(error, RadixRTError) else 503
        reason = str(error) if isinstance(error, RadixRTError) else f"{type(error).__name__}: {error}"
        write(out, CompileResult(FAILED, error=FinishError(reason, code="unavailable", status=status)))
        return 1
    worker.run(frames)
    return 0


if __name__ == "__main__":
    sys.exit(main())
