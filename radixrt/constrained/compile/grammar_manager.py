"""`GrammarManager`: provides each constrained request with a grammar, without blocking the scheduler.

If the constraint of a request is cached, the next `poll` returns the request with a grammar. Otherwise the request
waits here while the constraint is compiled, and enters the scheduler's queue only afterwards. Requests with the same
constraint wait for the same compilation. A refusal is cached for a while, if it is the constraint's fault.

Worker processes compile constraints (`CompileClient`), and this process loads the results. A large grammar is loaded in
a thread, where the library releases the GIL. A small grammar takes a millisecond to load. While steps are in flight, it
is loaded in the thread too, because the running requests would wait; otherwise the calling thread loads it at once.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, get_args

import msgspec

from radixrt.constrained.compile.cache import TemplateCache
from radixrt.constrained.compile.client import CompileClient
from radixrt.constrained.compile.compiled import CompiledConstraint
from radixrt.constrained.compile.protocol import CompileResult, WorkerSettings
from radixrt.constrained.grammar import Grammar
from radixrt.constrained.matcher import LIBRARY, BackendName
from radixrt.constraint import BackendChoice, Constraint
from radixrt.messages.histogram import COMPILE_TIMES, Histogram
from radixrt.messages.parts import ConstraintInfo, FinishError, deadline_passed
from radixrt.messages.request import Request
from radixrt.messages.scheduler_stats import GrammarStats
from radixrt.task_thread import TaskThread

if TYPE_CHECKING:
    from radixrt.constrained.backends.choice import Backends
    from radixrt.constrained.runtime.grammar_template import GrammarTemplate
    from radixrt.constrained.vocabulary import Vocabulary

# The mask libraries and what compiles grammars are imported inside functions: a scheduler that starts on the cores of
# its ModelRunner imports them later.

logger = logging.getLogger(__name__)

FAILURE_S = 10.0
"""Seconds for which the refusal of a constraint is remembered."""
MAX_FAILURES = 256
LIBRARIES: tuple[BackendName, ...] = get_args(BackendName)
WARM_UP_S = 0.5
"""Seconds without a request after which a manager with `starts_idle` loads libraries and starts workers."""
SMALL_SOURCE = 1500
"""A grammar with fewer characters loads within about a millisecond. Larger grammars are always loaded in the thread."""


@dataclass(frozen=True)
class ReadyGrammar:
    """The end of a request's wait: a fresh grammar with its info, or the error that ends the request."""

    message: Request
    grammar: Grammar | None = None
    info: ConstraintInfo | None = None
    error: FinishError | None = None


@dataclass(frozen=True)
class _Waiting:
    message: Request
    since: float
    deadline: float


@dataclass
class _Compilation:
    """A constraint that is being compiled, and the requests that wait for the result.

    Attributes:
        job: the workers that compile it, and the id of their job; None if the calling thread compiles it.
    """

    key: str
    constraint: Constraint
    waiting: list[_Waiting] = field(default_factory=list)
    job: tuple[CompileClient, int] | None = None
    compiled: CompiledConstraint | None = None


class GrammarManager:
    """See the module's docstring.

    Args:
        make_vocabulary: loads the model's vocabulary.
        inline: compile in the calling thread, without processes, threads and disk. Exceptions are constraints for
            xgrammar and Lark grammars, whose compilation cannot be interrupted in this process: the first of them
            starts a worker.
        worker: settings of the workers: vocabulary and disk cache; None for no workers, not even for xgrammar.
        compile_timeout_s: processor time that compiling a constraint may take, in seconds; then it is refused.
        default_timeout_s: timeout of requests that set none, in seconds.
        cache_bytes: approximate memory for loaded constraints.
        backend: library for requests that do not choose a library.
        closed: whether objects are closed for requests that do not say so.
        starts_idle: load the libraries and start the workers when the engine has been idle for WARM_UP_S seconds, or
            with the first constraint. Default: at once.
    """

    def __init__(
        self,
        make_vocabulary: Callable[[], Vocabulary],
        *,
        inline: bool,
        worker: WorkerSettings | None = None,
        compile_timeout_s: float = 10.0,
        default_timeout_s: float = 600.0,
        cache_bytes: int = 256 * 1024 * 1024,
        backend: BackendChoice = "auto",
        closed: bool = False,
        starts_idle: bool = False,
    ) -> None:
        self._make_vocabulary = make_vocabulary
        self._compile_timeout_s = compile_timeout_s
        self._default_timeout_s = default_timeout_s
        self._backend = backend
        self._closed = closed
        self._templates = TemplateCache(cache_bytes)
        self._failures: OrderedDict[str, tuple[float, FinishError, str]] = OrderedDict()
        self._compilations: dict[str, _Compilation] = {}
        self._jobs: dict[int, _Compilation] = {}
        self._next_job = 0
        self._ready: list[ReadyGrammar] = []
        self._counts = _Counts()
        self._backends: Backends | None = None
        self._load_error: FinishError | None = None
        self._clients: dict[BackendName, CompileClient] = {}
        self._loader: TaskThread[str, Backends | GrammarTemplate] | None = None
        self._loading: dict[str, bool] = {}  # grammars in the loader's thread, and whether each is small
        self._steps_in_flight = False
        self._inline = inline
        self._worker = worker
        self._is_warm = False
        self._idle_since = math.inf
        if not inline and worker is not None:
            self._open(worker)
            if not starts_idle:
                self._warm_up()

    def _open(self, worker: WorkerSettings) -> None:
        """Create the clients of compile workers, and the loader's thread, which have nothing to do yet."""
        for library in LIBRARIES:
            self._clients[library] = CompileClient(msgspec.structs.replace(worker, library=library))
        self._loader = TaskThread("radixrt-grammar-loader")

    def _warm_up(self) -> None:
        """Start the compile workers of the default library, and load the library in the loader's thread. The workers of
        the other library start with the first constraint for it. Idempotent."""
        if self._is_warm or self._loader is None:
            return
        self._is_warm = True
        self._clients[LIBRARY].start(time.monotonic())
        if self._backends is None:
            self._loader.submit("", self._load_backends)

    # --- requests ---

    def submit(self, message: Request, now: float) -> None:
        """Accept a request with a constraint (`message.sampling.constraint`). `poll` returns the request later."""
        self._warm_up()
        constraint = self._constraint(message)
        key = constraint.key
        timeout_s = self._default_timeout_s if message.envelope.timeout_s is None else message.envelope.timeout_s
        waiting = _Waiting(message, now, now + timeout_s)
        # The constraint may be loaded already, may have been refused recently, or may be compiling for another request.
        known = self._templates.get(key)
        if known is not None:
            self._counts.hits += 1
            self._ready.append(self._finish(waiting, *known, now, cached=True))
            return
        failure = self._failures.get(key)
        if failure is not None and failure[0] > now:
            self._refuse(waiting, failure[1], failure[2])
            return
        compilation = self._compilations.get(key)
        if compilation is not None:
            self._counts.hits += 1
            compilation.waiting.append(waiting)
            if compilation.job is not None:
                compiler, job = compilation.job
                compiler.join(job, message.envelope.tenant)
            return
        compilation = self._compilations[key] = _Compilation(key, constraint, [waiting])
        client = self._client_for(constraint)
        if client is None:
            self._compile_here(compilation, now)
        else:
            self._next_job += 1
            self._jobs[self._next_job] = compilation
            compilation.job = client, self._next_job
            tenant = message.envelope.tenant
            client.submit(self._next_job, constraint, now, self._compile_timeout_s, tenant=tenant)

    def abort(self, rid: str) -> bool:
        """Drop the waiting request with this id. Return False if there is no such request."""
        for i, ready in enumerate(self._ready):
            if ready.message.rid == rid:
                del self._ready[i]
                return True
        for compilation in self._compilations.values():
            for waiting in compilation.waiting:
                if waiting.message.rid == rid:
                    compilation.waiting.remove(waiting)
                    self._drop_unwanted(compilation)
                    return True
        return False

    def forget(self) -> None:
        """Drop all waiting requests. Constraints whose compilation has begun are still compiled and cached."""
        self._ready.clear()
        for compilation in list(self._compilations.values()):
            compilation.waiting.clear()
            self._drop_unwanted(compilation)

    def poll(
        self, now: float, *, steps_in_flight: bool = False, crowded: bool = False, idle: bool = False
    ) -> list[ReadyGrammar]:
        """Return the requests whose grammar is ready, was refused, or missed the request's deadline. Never blocks.

        Args:
            steps_in_flight: running requests wait for the calling thread.
            crowded: the running requests compute on the cores that compile workers would need as well.
            idle: the engine has no request.
        """
        self._steps_in_flight = steps_in_flight
        self._idle_since = min(self._idle_since, now) if idle else math.inf
        if now - self._idle_since >= WARM_UP_S:
            self._warm_up()
        if self._loader is not None:
            for key, result in self._loader.take():
                self._loaded(key, result, now)
        for client in self._clients.values():
            for answer in client.poll(now, crowded=crowded):
                self._answered(answer, now)
        for compilation in list(self._compilations.values()):
            for waiting in [one for one in compilation.waiting if one.deadline <= now]:
                compilation.waiting.remove(waiting)
                self._drop_unwanted(compilation)
                waited = now - waiting.since
                error = deadline_passed(waited, ", while its constraint was compiled")
                self._ready.append(ReadyGrammar(waiting.message, error=error))
        ready, self._ready = self._ready, []
        return ready

    def pending(self) -> Iterator[Request]:
        """Yield the waiting requests."""
        yield from (each.message for each in self._ready)
        for compilation in self._compilations.values():
            yield from (each.message for each in compilation.waiting)

    @property
    def num_pending(self) -> int:
        """Number of waiting requests."""
        return len(self._ready) + sum(len(each.waiting) for each in self._compilations.values())

    def sockets(self) -> list[int]:
        """Return file descriptors, of which one is readable when `poll` may have results. They never change, except
        with inline=True, where the first constraint that needs a worker adds them."""
        descriptors = [] if self._loader is None else [self._loader.fileno()]
        return descriptors + [client.fileno() for client in self._clients.values()]

    def stats(self) -> GrammarStats:
        """Return the counters since the start."""
        counts = self._counts
        return GrammarStats(
            compile_times=counts.compile_times.copy(),
            hits=counts.hits,
            disk_hits=counts.disk_hits,
            refusals=dict(counts.refusals),
            timeouts=sum(client.timeouts for client in self._clients.values()),
            cache_bytes=self._templates.num_bytes,
            cache_entries=len(self._templates),
        )

    def close(self) -> None:
        """End the workers and the thread, and drop the waiting requests. Idempotent."""
        self._worker = None
        while self._clients:
            self._clients.popitem()[1].close()
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    # --- one constraint ---

    def _constraint(self, message: Request) -> Constraint:
        constraint = None if message.sampling is None else message.sampling.constraint
        if constraint is None:
            raise ValueError("a request without a constraint needs no grammar")
        options = constraint.options
        if self._backend != "auto" and options.backend == "auto":
            options = msgspec.structs.replace(options, backend=self._backend)
        if options.closed is None and self._closed and constraint.kind in ("json_schema", "structural_tag"):
            options = msgspec.structs.replace(options, closed=True)
        return constraint if options is constraint.options else msgspec.structs.replace(constraint, options=options)

    def _client_for(self, constraint: Constraint) -> CompileClient | None:
        """Return the client that compiles a constraint; None if the calling thread compiles it."""
        if self._worker is None or (self._inline and not _is_foreign(constraint)):
            return None
        if not self._clients:
            self._open(self._worker)
            self._warm_up()
        return self._clients["xgrammar" if constraint.options.backend == "xgrammar" else LIBRARY]

    def _drop_unwanted(self, compilation: _Compilation) -> None:
        """Forget a compilation that has not begun, and for which no request waits any more."""
        if not compilation.waiting and compilation.job is not None:
            client, job = compilation.job
            if client.withdraw(job):
                del self._jobs[job], self._compilations[compilation.key]

    def _compile_here(self, compilation: _Compilation, now: float) -> None:
        from radixrt.constrained.compile.compiler import compile_constraint, load, refusal

        started = time.monotonic()
        try:
            if self._backends is None:
                self._backends = self._load_backends()
            deadline = time.thread_time() + self._compile_timeout_s
            compiled = compile_constraint(compilation.constraint, self._backends, deadline)
            self._compiled(compilation, compiled)
            template = load(compiled, self._backends)
        except Exception as error:
            self._failed(compilation, *refusal(error, compilation.constraint), now)
            return
        self._usable(compilation, template, now + time.monotonic() - started)

    def _answered(self, answer: CompileResult, now: float) -> None:
        compilation = self._jobs.pop(answer.id)
        if answer.error is not None or answer.compiled is None:
            error = answer.error or FinishError("the constraint was not compiled")
            self._failed(compilation, error, answer.keyword, now)
            return
        self._counts.disk_hits += answer.from_disk
        self._compiled(compilation, answer.compiled, from_disk=answer.from_disk)
        self._load(compilation, now)

    def _compiled(self, compilation: _Compilation, compiled: CompiledConstraint, *, from_disk: bool = False) -> None:
        compilation.compiled = compiled
        if not from_disk:
            self._counts.compile_times.observe(compiled.compile_s)

    def _load(self, compilation: _Compilation, now: float) -> None:
        """Load a compiled constraint, here or in the loader's thread. Until the vocabulary is loaded, do nothing."""
        from radixrt.constrained.compile.compiler import load, refusal

        compiled, backends = compilation.compiled, self._backends
        assert compiled is not None
        assert self._loader is not None
        if self._load_error is not None:
            self._failed(compilation, self._load_error, compilation.constraint.kind, now)
        elif backends is None or compilation.key in self._loading:
            return  # when the vocabulary is loaded, `_loaded` calls this method again for every grammar
        elif self._loads_here(compiled):
            try:
                template = load(compiled, backends)
            except Exception as error:
                self._failed(compilation, *refusal(error, compilation.constraint), now)
            else:
                self._usable(compilation, template, now)
        else:
            self._loading[compilation.key] = _is_small(compiled)
            self._loader.submit(compilation.key, lambda: load(compiled, backends))

    def _loads_here(self, compiled: CompiledConstraint) -> bool:
        """Return True if the calling thread should load a grammar. While steps are in flight, only if the grammar would
        otherwise wait for a large grammar in the loader's thread."""
        return _is_small(compiled) and (not self._steps_in_flight or not all(self._loading.values()))

    def _loaded(self, key: str, result: Backends | GrammarTemplate | Exception, now: float) -> None:
        from radixrt.constrained.backends.choice import Backends
        from radixrt.constrained.compile.compiler import refusal
        from radixrt.constrained.runtime.grammar_template import GrammarTemplate

        if key:
            del self._loading[key]
            compilation = self._compilations[key]
            if isinstance(result, GrammarTemplate):
                self._usable(compilation, result, now)
            elif isinstance(result, Exception):
                self._failed(compilation, *refusal(result, compilation.constraint), now)
            return
        if isinstance(result, Backends):
            self._backends = self._backends or result
            if not self._inline:
                gc.freeze()  # the vocabulary stays: to walk it took a collection 10 to 26 ms, which every row waits for
        elif self._backends is None:  # else the calling thread could make them
            self._load_error = FinishError(f"constraints cannot be served: {result}", status=501)
        for compilation in [each for each in self._compilations.values() if each.compiled is not None]:
            self._load(compilation, now)

    def _usable(self, compilation: _Compilation, template: GrammarTemplate, now: float) -> None:
        assert compilation.compiled is not None
        del self._compilations[compilation.key]
        self._templates.put(compilation.key, template, compilation.compiled)
        for waiting in compilation.waiting:
            self._ready.append(self._finish(waiting, template, compilation.compiled, now, cached=False))

    def _failed(self, compilation: _Compilation, error: FinishError, keyword: str, now: float) -> None:
        del self._compilations[compilation.key]
        if error.status != 503:  # a 503 is the machine's fault, and another attempt may succeed
            self._failures[compilation.key] = (now + FAILURE_S, error, keyword)
        while len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)
        for waiting in compilation.waiting:
            self._refuse(waiting, error, keyword)

    def _refuse(self, waiting: _Waiting, error: FinishError, keyword: str) -> None:
        self._counts.refusals[keyword] = self._counts.refusals.get(keyword, 0) + 1
        if error.status == 500:  # a defect of radixrt; other refusals are reported to the client only
            logger.error("request %s: %s", waiting.message.rid, error.message)
        self._ready.append(ReadyGrammar(waiting.message, error=error))

    def _finish(
        self, waiting: _Waiting, template: GrammarTemplate, compiled: CompiledConstraint, now: float, *, cached: bool
    ) -> ReadyGrammar:
        from radixrt.constrained.compile.compiler import refusal
        from radixrt.constrained.runtime.reasoning import ReasoningGrammar, marker_of

        sampling = waiting.message.sampling
        assert sampling is not None  # a constraint is a sampling parameter
        options = sampling.structured
        try:
            stops = sampling.stop_token_ids
            grammar: Grammar = template.new(stops)
            if options.reasoning_end is not None:
                marker = marker_of(template.vocabulary, options.reasoning_end)
                marker.check_stops(stops)
                grammar = ReasoningGrammar(marker, grammar, options.reasoning_budget)
        except Exception as error:
            refused, _ = refusal(error, self._constraint(waiting.message))
            return ReadyGrammar(waiting.message, error=refused)
        info = ConstraintInfo(
            backend=compiled.backend, ignored=compiled.ignored, compile_s=max(now - waiting.since, 0.0), cached=cached
        )
        return ReadyGrammar(waiting.message, grammar, info)

    def _load_backends(self) -> Backends:
        import radixrt.constrained.compile.compiler  # noqa: F401 (loads what grammars need, in this thread)
        from radixrt.constrained.backends.choice import Backends
        from radixrt.constrained.regex.json_text import UNESCAPED

        backends = Backends(self._make_vocabulary())
        backends.get("llguidance").load('start: "a"')
        vocabulary = backends.vocabulary
        _ = vocabulary.tokens_of(UNESCAPED), vocabulary.num_chars  # cached now, so that the first string need not wait
        return backends


def _is_foreign(constraint: Constraint) -> bool:
    """Return True if compiling a constraint cannot be interrupted in this process."""
    from radixrt.constrained.lark_input.translate import is_lark

    return constraint.options.backend == "xgrammar" or (constraint.kind == "ebnf" and is_lark(constraint.source))


def _is_small(compiled: CompiledConstraint) -> bool:
    return compiled.backend == "llguidance" and len(compiled.source) < SMALL_SOURCE


@dataclass
class _Counts:
    compile_times: Histogram = field(default_factory=partial(Histogram.empty, COMPILE_TIMES))
    hits: int = 0
    disk_hits: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
