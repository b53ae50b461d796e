"""`Intake`: checks new requests; queues those that can be served, and writes the error finish of the others."""

from __future__ import annotations

import random
from collections.abc import Iterable

from radixrt.config import SchedulerConfig
from radixrt.constrained.grammar import Grammar
from radixrt.messages.parts import FINISH_ABORT, FINISH_ERROR, ConstraintInfo, Finish, FinishError
from radixrt.messages.scheduler import TokenizedReq
from radixrt.messages.wire import unpack_i32
from radixrt.scheduler.admission import Admission
from radixrt.scheduler.admission_control import AdmissionControl
from radixrt.scheduler.constrained import ConstrainedRequests
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.load import arrival_of
from radixrt.scheduler.programs import Programs
from radixrt.scheduler.recovery import Recovery
from radixrt.scheduler.req import Req
from radixrt.scheduler.request_group import GroupMessage, longest_row, make_group
from radixrt.scheduler.request_table import RequestTable


class Intake:
    """See the module's docstring. It numbers requests in the order of their arrival and gives them their seeds.

    Args:
        max_len: longest sequence, prompt and output together, that the context and the KV pool hold.
        eos_ids: the model's own end tokens.
        random_seed: seed of the seeds given to requests that bring none.
    """

    def __init__(
        self, config: SchedulerConfig, requests: RequestTable, control: AdmissionControl, admission: Admission,
        constrained: ConstrainedRequests, programs: Programs, recovery: Recovery, writer: DeltaWriter, *,
        max_len: int, eos_ids: Iterable[int], random_seed: int,
    ) -> None:  # fmt: skip
        self._config = config
        self._requests = requests
        self._control = control
        self._admission = admission
        self._constrained = constrained
        self._programs = programs
        self._recovery = recovery
        self._writer = writer
        self._max_len = max_len
        self._eos_ids = frozenset(eos_ids)
        self._seeds = random.Random(random_seed)
        self._next_seq = 0

    def add(
        self, message: TokenizedReq, now: float, grammar: Grammar | None = None, info: ConstraintInfo | None = None
    ) -> None:
        """Queue a request. One that cannot be served gets its error finish instead; nothing is raised.

        Args:
            grammar: the initial state of the request's constraint, if it has one; `info`: how it was compiled.
        """
        ids, resumed = unpack_i32(message.input_ids), unpack_i32(message.resume_ids).tolist()
        error = self._refusal(message.rid, len(ids) + len(resumed)) or self._recovery.refusal(ids, now)
        error = error or (None if resumed else self.queue_error(message, now))  # one that has begun may wait
        if error is None and grammar is not None:
            error = self._constrained.refusal(message, grammar, self._max_len - len(ids))
        if error is not None:
            self.refuse(message, error)
            return
        seed, seq = message.sampling.seed, self._take_seq()
        hint = message.program
        req = Req(
            message, ids, seq=seq, seed=self._seeds.getrandbits(63) if seed is None else seed, eos_ids=self._eos_ids,
            max_len=self._max_len, now=now, timeout_s=self._timeout_s(message), grammar=grammar, constraint_info=info,
            call=None if hint is None else self._programs.begin_call(hint, now, len(ids), message.priority),
        )  # fmt: skip
        self._requests.queue(req)
        self._admission.arrived(req)
        if (finish := self._constrained.start(req, resumed)) is not None:
            self._requests.end(req, finish, now)

    def add_group(self, message: GroupMessage, now: float) -> None:
        """Queue a scoring or embedding request; as `add`."""
        length = longest_row(message)
        error = self._refusal(message.rid, length) or self.queue_error(message, now)
        if error is not None:
            self._writer.refuse(message.rid, Finish(FINISH_ERROR, error=error), length)
            return
        group = make_group(message, seq=self._take_seq(), now=now, timeout_s=self._timeout_s(message))
        if message.program is not None:
            group.call = self._programs.begin_call(message.program, now, priority=message.priority)
        self._requests.queue_group(group)

    def _take_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _timeout_s(self, message: TokenizedReq | GroupMessage) -> float:
        return self._config.request_timeout_s if message.timeout_s is None else message.timeout_s

    def refuse(self, message: TokenizedReq, error: FinishError) -> None:
        """Write the error finish of a request that is not queued."""
        self._writer.refuse(message.rid, Finish(FINISH_ERROR, error=error), len(message.input_ids) // 4)

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
                param="prompt", code="context_length_exceeded", status=400,
            )  # fmt: skip
        return None

    def queue_error(self, message: TokenizedReq | GroupMessage, now: float, compiling: int = 0) -> FinishError | None:
        """The error of a further request when the queue is full or the request would wait too long; None otherwise.

        Args:
            compiling: number of requests that will join the queue once their grammar is compiled.
        """
        return self._control.refusal(arrival_of(message, self._max_len, self._timeout_s(message)), now, compiling)
