"""`Intake`: checks new requests. A request that can be served is queued; any other request gets an error finish."""

from __future__ import annotations

import random
from collections.abc import Iterable

from radixrt.config import SchedulerConfig
from radixrt.messages.parts import FINISH_ABORT, FINISH_ERROR, Finish, FinishError
from radixrt.messages.request import Request
from radixrt.messages.wire import unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.part import Parts
from radixrt.scheduler.req import Req, Taker
from radixrt.scheduler.request_group import RequestGroup
from radixrt.scheduler.request_table import RequestTable


class Intake:
    """See the module's docstring. The intake also numbers requests in the order of arrival and gives them seeds.

    Args:
        max_len: longest sequence, prompt and output together, that the context and the KV pool hold.
        eos_ids: the model's own end tokens.
        random_seed: seed of the generator that gives a seed to each request without a seed.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        requests: RequestTable,
        kv: KVManager,
        parts: Parts,
        writer: DeltaWriter,
        *,
        max_len: int,
        eos_ids: Iterable[int],
        random_seed: int,
    ) -> None:
        self._config = config
        self._requests = requests
        self._kv = kv
        self._parts = parts
        self._writer = writer
        self._max_len = max_len
        self._eos_ids = frozenset(eos_ids)
        self._seeds = random.Random(random_seed)
        self._next_seq = 0

    def add(self, message: Request, now: float, taker: Taker | None = None) -> None:
        """Queue a request, or write its error finish if the request cannot be served. The method never raises.

        Args:
            taker: takes the request's sampled tokens; None if the core appends them.
        """
        error = self.refusal(message, now)
        if error is None and taker is not None:
            error = taker.refusal(self._max_len - message.row_len(0))
        if error is not None:
            self.refuse(message, error)
        elif message.sampling is None:
            group = RequestGroup(message, seq=self._take_seq(), now=now, timeout_s=self.timeout_s(message))
            self._requests.queue_group(group, now)
        else:
            self._add_row(message, message.sampling, now, taker)

    def _add_row(self, message: Request, sampling: SamplingParams, now: float, taker: Taker | None) -> None:
        """Queue a request that samples."""
        req = Req(
            message.envelope,
            message.tokens(0),
            sampling,
            seq=self._take_seq(),
            seed=self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed,
            eos_ids=self._eos_ids,
            max_len=self._max_len,
            now=now,
            timeout_s=self.timeout_s(message),
            turn_len=message.turn_len,
        )
        req.taker = taker
        self._requests.queue(req, message.rows[0], message, now)
        if req.reads is not None and req.reads.is_done:  # a prompt of one token has no token to score
            self._writer.values(req, req.reads.answer())
        self._kv.arrived(req, self._requests.active)
        # Output tokens that are known already are appended before they are computed: tokens that another replica has
        # sampled, or tokens that a grammar forces.
        resumed = unpack_i32(message.resume_ids).tolist()
        finish = _resume(req, resumed) if taker is None else taker.start(req, resumed)
        if finish is not None:
            self._requests.end(req, finish, now)

    def _take_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def timeout_s(self, message: Request) -> float:
        """Return the number of seconds from arrival to deadline."""
        timeout_s = message.envelope.timeout_s
        return self._config.request_timeout_s if timeout_s is None else timeout_s

    def refuse(self, message: Request, error: FinishError) -> None:
        """Write the error finish of a request that is not queued."""
        self._writer.refuse(message.rid, Finish(FINISH_ERROR, error=error), message.num_tokens)

    def abandon(self, rid: str) -> None:
        """Write the finish of a request that was aborted before it was added."""
        self._writer.refuse(rid, Finish(FINISH_ABORT), 0)

    def refusal(self, message: Request, now: float, *, compiling: int = 0) -> FinishError | None:
        """Return the error of a request that cannot be queued; None if it can.

        Args:
            compiling: number of requests in preparation, which will join the queue before this request.
        """
        if message.rid in self._requests:
            return FinishError(f"request id {message.rid!r} is in use", param="rid", status=400)
        longest = max(map(message.row_len, range(len(message.rows))), default=0) + len(message.resume_ids) // 4
        if not 0 < longest < self._max_len:
            return FinishError(
                f"the prompt has {longest} tokens; this engine takes 1 to {self._max_len - 1} "
                "(the context and the KV pool bound it)",
                param="prompt",
                code="context_length_exceeded",
                status=400,
            )
        if message.sampling is None and (error := _reads_nothing(message)) is not None:
            return error
        for refuse in self._parts.refuse:
            refused: FinishError | None = refuse(message, now, compiling=compiling)
            if refused is not None:
                return refused
        return None


def _resume(req: Req, tokens: list[int]) -> Finish | None:
    """Append the output tokens that come with a request; return a finish if these tokens complete the request."""
    for token in tokens:
        finish = req.take(token)
        if finish is not None:
            return finish
    return None


def _reads_nothing(message: Request) -> FinishError | None:
    """Return an error if a row of a request without sampling reads nothing: such a request would never end."""
    for index in range(len(message.rows)):
        if message.first_read(index) == message.row_len(index):
            return FinishError(f"rows[{index}] reads nothing, and nothing is sampled", param="rows", status=400)
    return None
