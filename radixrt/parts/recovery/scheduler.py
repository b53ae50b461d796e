"""Scheduler end of recovery: requests that were in flight when the ModelRunner died are tried one by one.

The core recomputes every active request from its known tokens, on an empty cache (`RequestTable.recover`). But any
request of the lost steps may have killed the runner, and might kill the next runner. So each *suspect* is tried first:
the suspect is computed alone, one step at a time, until it has the length that it had in the lost steps. Steps of
trials alternate with steps of all requests that are no suspects: new ones, those that waited, and those that have
survived their trials. Trials and other steps get half of the time each. One step is in flight at a time, so it is known
which requests a death concerns. If the runner dies during a trial, the cause is known: the request on trial ends with
an error, and all other requests continue. If it dies in another step, the requests of that step become suspects too.
For QUARANTINE_S seconds, every other request with the same prompt as a guilty one ends with an error as well: clients
retry, and each attempt would kill two runners.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from radixrt.messages.parts import FINISH_ERROR, Finish, FinishError
from radixrt.messages.request import Request
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.scheduler.part import Core, Part, Selection
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)

QUARANTINE_S = 300.0
MAX_QUARANTINED = 256
"""Bounds of the quarantine of prompts that killed the ModelRunner: seconds of a prompt, and number of prompts."""


class Recovery(Part):
    """See the module's docstring."""

    name = "restart"

    def __init__(self) -> None:
        self._killers = 0
        self._suspects: dict[Req, int] = {}  # length that the lost steps were to compute; the first is on trial
        self._seconds = {True: 0.0, False: 0.0}  # of trials, of other steps since the death
        self._last: tuple[bool, float] | None = None  # whether the last step was a trial, and when it was decided
        self._quarantine: dict[bytes, tuple[float, str]] = {}  # digest of a prompt -> end, message; the oldest first

    def attach(self, core: Core) -> None:
        self._requests = core.requests
        self._parts = core.scheduler.parts
        self._watch_steps()

    def _watch_steps(self) -> None:
        """Let steps ask the part while there are suspects."""
        if not self._suspects:
            self._seconds, self._last = {True: 0.0, False: 0.0}, None
        self._parts.enable(self, ("only", "committed"), on=bool(self._suspects))

    @property
    def num_suspects(self) -> int:
        """Number of suspects that have not survived a trial; some of them may have ended."""
        return len(self._suspects)

    def suspects(self, req: Req) -> bool:
        """Return True if a request has not survived a trial."""
        return req in self._suspects

    def stats(self, now: float) -> Mapping[str, Any]:
        return {"suspects": len(self._suspects), "killers": self._killers}

    def forgotten(self) -> None:
        self._suspects.clear()
        self._watch_steps()

    # --- the ModelRunner died ---

    def lost(self, batches: Iterable[ScheduleBatch], reason: str, now: float) -> None:
        for req in dict.fromkeys(req for batch in batches for req in batch.requests):
            if req.finish is not None:
                continue
            if req in self._suspects:
                self._end_guilty(req, reason, now)
            else:
                self._suspects[req] = req.kv.length
        self._watch_steps()
        logger.warning(
            "waiting for a new ModelRunner; requests that were in flight and will be tried: %d", len(self._suspects)
        )

    def _end_guilty(self, req: Req, reason: str, now: float) -> None:
        logger.error("request %s was in flight when the ModelRunner died twice, now alone", req.rid)
        self._killers += 1
        message = f"the ModelRunner died twice while it computed this request, the second time alone: {reason}"
        self._requests.end(req, Finish(FINISH_ERROR, error=_killed(message)), now)
        if req.member is not None:
            return
        if len(self._quarantine) == MAX_QUARANTINED:
            del self._quarantine[next(iter(self._quarantine))]
        same = f"the ModelRunner died twice while it computed a request with this prompt: {reason}"
        self._quarantine[_digest(req.ids[: req.prompt_len])] = now + QUARANTINE_S, same
        for other in list(self._requests.by_rid.values()):
            error = None if other.member is not None else self._quarantined(other.ids[: other.prompt_len], now)
            if error is not None:
                self._requests.end(other, Finish(FINISH_ERROR, error=error), now)

    def refuse(self, message: Request, now: float, *, compiling: int) -> FinishError | None:
        if not self._quarantine or message.sampling is None:
            return None
        return self._quarantined(message.tokens(0), now)

    def _quarantined(self, prompt: Int32Array, now: float) -> FinishError | None:
        """Return the error of a request whose prompt is in quarantine; None for other requests."""
        while self._quarantine:
            first = next(iter(self._quarantine))
            if self._quarantine[first][0] > now:
                break
            del self._quarantine[first]
        found = self._quarantine.get(_digest(prompt)) if self._quarantine else None
        return None if found is None else _killed(found[1])

    # --- trials ---

    def only(self, now: float) -> Sequence[Selection]:
        """Return the request on trial, and all requests that are no suspects; first those that had less time so far."""
        self._count_time(now)
        while self._suspects:
            first = next(iter(self._suspects))
            if first.finish is None:
                trial, others = Selection(first), Selection(None, self._suspects)
                return (trial, others) if self._seconds[True] <= self._seconds[False] else (others, trial)
            del self._suspects[first]
        self._watch_steps()
        return ()

    def committed(self, batch: ScheduleBatch) -> None:
        """Clear the request on trial, the only request of the batch, if it has survived the trial."""
        req = batch.requests[0]
        is_trial = req in self._suspects
        self._last = is_trial, batch.decided_at
        if not is_trial or self._suspects[req] > unpack_i32(batch.step.seq_lens)[0]:
            return
        del self._suspects[req]
        if not any(suspect.finish is None for suspect in self._suspects):
            self._suspects.clear()
            self._watch_steps()
            logger.info("no request in flight at the death of the ModelRunner has killed it again")

    def _count_time(self, now: float) -> None:
        """Add the time of the last step to the time of trials or to the time of others."""
        if self._last is not None:
            is_trial, since = self._last
            self._seconds[is_trial] += now - since
            self._last = None


def _digest(prompt: Int32Array) -> bytes:
    return hashlib.blake2b(prompt.tobytes(), digest_size=16).digest()


def _killed(message: str) -> FinishError:
    return FinishError(message, code="runner_killed")
