"""`Intake`: checks new requests; queues those that can be served, and writes the error finish of the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from radixrt.config import SchedulerConfig
from radixrt.constrained.grammar import Grammar
from radixrt.messages.parts import FINISH_ABORT, FINISH_ERROR, ConstraintInfo, Finish, FinishError, ReadValues
from radixrt.messages.request import Request, Row
from radixrt.messages.wire import unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.admission import Admission
from radixrt.scheduler.admission_control import AdmissionControl
from radixrt.scheduler.constrained import ConstrainedRequests
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.load import arrival_of
from radixrt.scheduler.programs import Programs
from radixrt.scheduler.recovery import Recovery
from radixrt.scheduler.req import Reads, Req
from radixrt.scheduler.request_group import RequestGroup
from radixrt.scheduler.request_table import RequestTable


class Intake:
    """See the module's docstring. It numbers requests in the order of their arrival and gives them their seeds.

    Args:
        max_len: longest sequence, prompt and output together, that the context and the KV pool hold.
        eos_ids: the model's own end tokens.
        random_seed: seed of the seeds given to requests that bring none.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        requests: RequestTable,
        control: AdmissionControl,
        admission: Admission,
        constrained: ConstrainedRequests,
        programs: Programs,
        recovery: Recovery,
        writer: DeltaWriter,
        *,
        reads_of: Callable[[Row], Reads | None],
        answer_of: Callable[[Sequence[Reads | None]], ReadValues],
        max_len: int,
        eos_ids: Iterable[int],
        random_seed: int,
    ) -> None:
        self._config = config
        self._requests = requests
        self._control = control
        self._admission = admission
        self._constrained = constrained
        self._programs = programs
        self._recovery = recovery
        self._writer = writer
        self._reads_of = reads_of
        self._answer_of = answer_of
        self._max_len = max_len
        self._eos_ids = frozenset(eos_ids)
        self._seeds = random.Random(random_seed)
        self._next_seq = 0

    def add(
        self, message: Request, now: float, grammar: Grammar | None = None, info: ConstraintInfo | None = None
    ) -> None:
        """Queue a request. One that cannot be served gets its error finish instead; nothing is raised.

        Args:
            grammar: the initial state of the request's constraint, if it has one; `info`: how it was compiled.
        """
        resumed = unpack_i32(message.resume_ids).tolist()
        longest = max(message.row_len(i) for i in range(len(message.rows))) if message.rows else 0
        error = self._refusal(message.rid, longest + len(resumed))
        error = error or (None if resumed else self.queue_error(message, now))  # one that has begun may wait
        sampling = message.sampling
        if error is None and sampling is None:
            error = _reads_nothing(message)
        elif error is None and sampling is not None:
            ids = message.tokens(0)
            error = self._recovery.refusal(ids, now)
            if error is None and grammar is not None:
                error = self._constrained.refusal(message.rid, sampling, grammar, self._max_len - len(ids))
        if error is not None:
            self._writer.refuse(message.rid, Finish(FINISH_ERROR, error=error), longest)
        elif sampling is None:
            self._add_group(message, now)
        else:
            self._add_row(message, sampling, now, grammar, info, resumed)

    def _add_row(
        self,
        message: Request,
        sampling: SamplingParams,
        now: float,
        grammar: Grammar | None,
        info: ConstraintInfo | None,
        resumed: list[int],
    ) -> None:
        """Queue a request that samples."""
        ids, envelope = message.tokens(0), message.envelope
        hint = envelope.program
        req = Req(
            envelope,
            ids,
            sampling,
            seq=self._take_seq(),
            seed=self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed,
            eos_ids=self._eos_ids,
            max_len=self._max_len,
            now=now,
            timeout_s=self._timeout_s(message),
            turn_len=message.turn_len,
            grammar=grammar,
            constraint_info=info,
            call=None if hint is None else self._programs.begin_call(hint, now, len(ids), envelope.priority),
            reads=self._reads_of(message.rows[0]),
        )
        self._requests.queue(req)
        if req.reads is not None and req.reads.is_done:  # a prompt of one token has no token to score
            self._writer.values(req, self._answer_of([req.reads]))
        self._admission.arrived(req)
        if (finish := self._constrained.start(req, resumed)) is not None:
            self._requests.end(req, finish, now)

    def _add_group(self, message: Request, now: float) -> None:
        """Queue the first row of a request that samples nothing."""
        group = RequestGroup(message, self._reads_of, seq=self._take_seq(), now=now, timeout_s=self._timeout_s(message))
        envelope = message.envelope
        if envelope.program is not None:
            group.call = self._programs.begin_call(envelope.program, now, priority=envelope.priority)
        self._requests.queue_group(group)

    def _take_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _timeout_s(self, message: Request) -> float:
        timeout_s = message.envelope.timeout_s
        return self._config.request_timeout_s if timeout_s is None else timeout_s

    def refuse(self, message: Request, error: FinishError) -> None:
        """Write the error finish of a request that is not queued."""
        self._writer.refuse(message.rid, Finish(FINISH_ERROR, error=error), message.num_tokens)

    def abandon(self, rid: str) -> None:
        """Write the finish of a request that was aborted before it was added."""
        self._writer.refuse(rid, Finish(FINISH_ABORT), 0)

    def _refusal(self, rid: str, length: int) -> FinishError | None:
        if rid in self._requests:
            return FinishError(f"request id {rid!r} is in use", param="rid", status=400)
        if not 0 < length < self._max_len:
            return FinishError(
                f"the prompt has {length} tokens; this engine takes 1 to {self._max_len - 1} "
                "(the context and the KV pool bound it)",
                param="prompt",
                code="context_length_exceeded",
                status=400,
            )
        return None

    def queue_error(self, message: Request, now: float, compiling: int = 0) -> FinishError | None:
        """The error of a further request when the queue is full or the request would wait too long; None otherwise.

        Args:
            compiling: number of requests that will join the queue once their grammar is compiled.
        """
        return self._control.refusal(arrival_of(message, self._max_len, self._timeout_s(message)), now, compiling)


def _reads_nothing(message: Request) -> FinishError | None:
    """Return the error of a request that samples nothing if a row of it reads nothing, so that it would never end."""
    for index in range(len(message.rows)):
        if message.first_read(index) == message.row_len(index):
            return FinishError(f"rows[{index}] reads nothing, and nothing is sampled", param="rows", status=400)
    return None
