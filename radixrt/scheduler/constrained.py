"""What is special about constrained requests: masks, jump-forward, and ends that are always valid.

All of it is decided here, in the scheduler, when a step is committed and every earlier token is known:

- a sampled token after which no valid end could be reached within the budget is dropped, and the output is closed along
  the grammar's shortest way instead; that costs no step, because nothing is left to sample;
- what the grammar leaves no choice about is appended without sampling (jump-forward), and computed by the next step as
  an EXTEND. A sample of the request that is still in flight then is ignored when it comes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.messages.parts import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, Finish, FinishError, LogprobColumns
from radixrt.messages.scheduler import TokenizedReq
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)

F = TypeVar("F")

JUMP_RATE_MEMORY = 64
"""Sampled tokens over which the share of those that led to a jump is averaged, about."""
WORTH_WAITING = 0.1
"""Above this share, steps do not run ahead of their own tokens (see `ConstrainedRequests.waits`)."""

MASK_LIMIT_S = 0.05
"""A request whose mask takes longer than this holds up everyone in its batch, and is ended."""
LOOK_S = 0.001
"""Masks that together take less than this are not timed one by one."""


class StepMasks:
    """The masks of one step, each kept once however many rows have it.

    Attributes:
        rows: indices of sampling rows; those that may sample anything are left out.
        index: of each row's mask in `masks`.
        masks: uint32 [mask_words] each.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.index: list[int] = []
        self.masks: list[Bitmask] = []
        self._places: dict[int, int] = {}  # in `masks`, by identity: equal masks of other arrays are not looked for

    def add(self, row: int, mask: Bitmask) -> None:
        at = self._places.setdefault(id(mask), len(self.masks))
        if at == len(self.masks):
            self.masks.append(mask)
        self.rows.append(row)
        self.index.append(at)


def append_token(req: Req, token: int) -> Finish | None:
    """Append an output token; the request's end, if this is it."""
    if req.prompt_len == req.max_len:  # max_tokens 0: only the prompt was to be scored
        return Finish(FINISH_LENGTH)
    req.append(token)
    if token in req.stop_ids:
        return Finish(FINISH_STOP, matched=token)
    if req.grammar is not None and req.grammar.is_terminated():
        return Finish(FINISH_STOP)
    if req.known_len >= req.max_len:
        return Finish(FINISH_LENGTH)
    return None


class ConstrainedRequests:
    """Drives the grammars of the scheduler's requests; shares its KV manager, writer and counters."""

    def __init__(self, kv: KVManager, writer: DeltaWriter, counters: Counters) -> None:
        self._kv = kv
        self._writer = writer
        self._counters = counters
        self._jump_rate = 0.5  # of sampled tokens; the first few correct it

    def waits(self, running: list[Req]) -> bool:
        """Whether a next step over these requests had better wait for the tokens in flight.

        A jump throws the sample away that is in flight. Where all rows may jump and often do, a step that waits gets
        further than one that runs ahead; where others share the batch, they pay for it anyway.
        """
        return self._jump_rate > WORTH_WAITING and bool(running) and all(r.jumps for r in running)

    def refusal(self, message: TokenizedReq, grammar: Grammar, room: int) -> FinishError | None:
        """Why a request cannot be served whose prompt leaves `room` tokens; None if it can."""
        asked = message.sampling.max_tokens
        try:
            need = max(len(grammar.closing()), 1)
        except Exception as error:
            return FinishError(f"the request's grammar failed: {error}", code="constraint_failed")
        if need <= (room if asked is None else min(asked, room)):
            return None
        shortest = f"the shortest output that satisfies the constraint has {need} tokens"
        if asked is not None and asked < need:
            return FinishError(
                f"max_tokens is {asked}, but {shortest}; ask for at least that many",
                param="max_tokens", code="constraint_exceeds_max_tokens", status=400,
            )  # fmt: skip
        return FinishError(
            f"the prompt leaves room for {room} tokens, but {shortest}",
            param="prompt", code="context_length_exceeded", status=400,
        )  # fmt: skip

    # --- masks ---

    def masks(self, batch: ScheduleBatch) -> tuple[StepMasks, list[tuple[Req, Finish]]]:
        """The masks of the batch's constrained rows, and the requests whose grammar failed on it.

        All earlier steps are committed, so every grammar is up to date.
        """
        masks = StepMasks()
        failed: list[tuple[Req, Finish]] = []
        started = stamp = time.thread_time()  # not what others on this core took meanwhile
        looked = time.perf_counter()
        for i in batch.grammar_rows:
            req = batch.sampled[i]
            if req.finish is not None or req.grammar is None or req.stale_samples:
                continue
            try:
                masks.add(i, req.grammar.mask())
            except Exception as error:
                failed.append((req, _failed(req, error)))
                stamp, looked = time.thread_time(), time.perf_counter()
                continue
            now = time.perf_counter()
            if now - looked > LOOK_S:  # rarely: the thread's own time is a system call
                before, stamp, looked = stamp, time.thread_time(), now
                if stamp - before > MASK_LIMIT_S:
                    took = f"one mask of the request's grammar took {1e3 * (stamp - before):.0f} ms"
                    failed.append((req, _error(f"{took}; at most {1e3 * MASK_LIMIT_S:.0f} ms are allowed")))
        self._counters.mask_s += time.thread_time() - started
        self._counters.mask_rows += len(masks.rows)
        return masks, failed

    def settle(self, running: list[Req]) -> list[tuple[Req, Finish]]:
        """Let the grammars do what they put off; returns the requests whose grammar failed on it."""
        failed = []
        for req in running:
            if req.grammar is not None:
                try:
                    req.grammar.settle()
                except Exception as error:
                    failed.append((req, _failed(req, error)))
        return failed

    # --- tokens ---

    def take(self, req: Req, token: int, columns: LogprobColumns | None) -> Finish | None:
        """Take a sampled token of a constrained request; its end, if it comes to one."""
        grammar = req.grammar
        assert grammar is not None
        try:
            if not grammar.fits(token, req.max_len - req.known_len - 1):
                return self.close(req)
            if not grammar.accept(token):
                logger.error("request %s: its grammar refuses token %d, which its mask allowed", req.rid, token)
                return _error("the sampled token is not allowed by the request's grammar")
            finish = append_token(req, token)
            self._writer.token(req, token, columns)
            if finish is not None:
                return self._ended(req, finish)
            if not req.jumps:
                return None
            before = req.forced_tokens
            finish = self.jump(req)
            self._jump_rate += ((req.forced_tokens > before) - self._jump_rate) / JUMP_RATE_MEMORY
            return finish
        except Exception as error:
            return _failed(req, error)

    def start(self, req: Req) -> Finish | None:
        """Append what a new request's output must begin with; its end, if that is all."""
        return self._guarded(req, self.jump) if req.jumps else None

    def expire(self, req: Req) -> Finish:
        """The end of a request whose time is up: what there is of it becomes a valid answer."""
        return self._guarded(req, self.close)

    @staticmethod
    def _guarded(req: Req, act: Callable[[Req], F]) -> F | Finish:
        try:
            return act(req)
        except Exception as error:
            return _failed(req, error)

    def jump(self, req: Req) -> Finish | None:
        """Jump-forward: append what must come next.

        Even a single token, which a step in flight would bring as well: so the output does not depend on how many steps
        are in flight, and its tokens are the tokenizer's own.
        """
        grammar = req.grammar
        assert grammar is not None
        forced = grammar.forced_continuation()
        if not forced:
            return None
        if req.num_output:
            forced = self._heal(req, grammar, forced)
        finish: Finish | None = None
        taken = 0
        for token in forced:
            if not grammar.fits(token, req.max_len - req.known_len - 1):
                finish = self.close(req)
                break
            if not grammar.accept(token):
                logger.error("request %s: its grammar refuses token %d, which it forced", req.rid, token)
                finish = _error("a token that the request's grammar forces is not allowed by it")
                break
            finish = append_token(req, token)
            self._writer.unsampled(req, [token])
            taken += 1
            if finish is not None:
                finish = self._ended(req, finish)
                break
        req.forced_tokens += taken
        self._counters.forced_tokens += taken
        req.stale_samples += req.num_pending
        req.num_pending = 0
        if req.state is ReqState.RUNNING:
            req.state = ReqState.PREFILL
            req.sampling_row_due = req.sampling.needs_penalties  # forced tokens count, the ignored sample does not
        return finish

    def _heal(self, req: Req, grammar: Grammar, forced: list[int]) -> list[int]:
        """Take the last token back where it and the forced text together are tokenized otherwise; returns what follows.

        So the sequence is what the tokenizer makes of its text, and later prompts that hold it find it in the cache.
        """
        healed = grammar.healed(int(req.ids[req.known_len - 1]), forced)
        if healed is None:
            return forced
        grammar.rollback(1)
        req.take_back()
        self._writer.take_back(req)
        self._kv.truncate(req, req.known_len)
        return healed

    def _ended(self, req: Req, finish: Finish) -> Finish:
        """A full budget where the output may end but could go on is an early end as well, with nothing left to add."""
        return self.close(req) if finish.reason == FINISH_LENGTH else finish

    def close(self, req: Req) -> Finish:
        """End the output along the grammar's shortest way; no step is needed for it."""
        grammar = req.grammar
        assert grammar is not None
        tokens = grammar.closing()
        if req.state is not ReqState.WAITING:
            self._kv.truncate(req, req.known_len)  # what is in flight computes tokens that are not part of the output
        for token in tokens:
            req.append(token)
        self._writer.unsampled(req, tokens)
        req.closing_tokens = len(tokens)
        self._counters.forced_closes += 1
        return Finish(req.sampling.structured.on_length, forced_close=True)


def _failed(req: Req, error: Exception) -> Finish:
    logger.error("request %s: its grammar failed: %s: %s", req.rid, type(error).__name__, error)
    return _error(f"the request's grammar failed: {error}")


def _error(message: str) -> Finish:
    return Finish(FINISH_ERROR, error=FinishError(message, code="constraint_failed"))
