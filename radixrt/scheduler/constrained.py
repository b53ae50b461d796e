"""Constrained requests: masks, jump-forward, and early ends that are always valid.

The scheduler decides all of it when a step is committed and every earlier token is known:

- a sampled token after which no valid output could be completed within the budget is dropped, and the output is closed
  with the grammar's shortest completion instead; that costs no step, because nothing is left to sample;
- tokens about which the grammar leaves no choice are appended without sampling (jump-forward), and computed by the next
  step as an EXTEND. A sample of the request that is still in flight then is ignored when it arrives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import msgspec

from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.constrained.masks.look_ahead import LookAhead
from radixrt.constrained.matcher import GrammarError
from radixrt.messages.parts import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, Finish, FinishError, LogprobColumns
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.req import ConstraintState, Req, ReqState
from radixrt.scheduler.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)

JUMP_RATE_MEMORY = 64
"""Approximate number of sampled tokens over which the share that led to a jump is averaged."""
WORTH_WAITING = 0.1
"""Above this share of jumps, no step is submitted before the tokens of the step before it are known; see
`ConstrainedRequests.waits`."""

MASK_LIMIT_S = 0.05
"""A request whose mask takes longer than this delays its whole batch, and is ended."""
LOOK_S = 0.001
"""Masks that together take less than this are not timed one by one."""


class StepMasks:
    """The masks of one step, each kept once however many rows have it.

    Attributes:
        rows: indices of the sampling rows that have a mask.
        index: index in `masks` of each row's mask.
        masks: arrays of uint32 [mask_words].
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.index: list[int] = []
        self.masks: list[Bitmask] = []
        self._indices: dict[int, int] = {}  # in `masks`, by id(mask): equal masks in other arrays are not detected

    def add(self, row: int, mask: Bitmask) -> None:
        at = self._indices.setdefault(id(mask), len(self.masks))
        if at == len(self.masks):
            self.masks.append(mask)
        self.rows.append(row)
        self.index.append(at)


def _with_choice(columns: LogprobColumns, grammar: Grammar) -> LogprobColumns:
    """Add to the columns of one token how many tokens the grammar allows next, and whether it determines the text."""
    allowed = int.from_bytes(grammar.mask().tobytes(), "little").bit_count()
    forced = allowed == 1 or bool(grammar.forced_continuation())
    return msgspec.structs.replace(columns, allowed=pack_i32([allowed]), forced=bytes([forced]))


def append_token(req: Req, token: int) -> Finish | None:
    """Append an output token; returns the request's finish if the token is its last."""
    if req.prompt_len == req.max_len:  # max_tokens 0: only the prompt was to be scored
        return Finish(FINISH_LENGTH)
    req.append(token)
    if token in req.stop_ids:
        return Finish(FINISH_STOP, matched=token)
    constraint = req.constraint
    if constraint is not None and constraint.grammar.is_terminated():
        return Finish(FINISH_STOP)
    return Finish(FINISH_LENGTH) if req.known_len >= req.max_len else None


class ConstrainedRequests:
    """Advances the grammars of the scheduler's requests; shares its KV manager, writer and counters."""

    def __init__(self, kv: KVManager, writer: DeltaWriter, counters: Counters) -> None:
        self._kv = kv
        self._writer = writer
        self._counters = counters
        self._ahead = LookAhead()
        self._jump_rate = 0.5  # share of sampled tokens that led to a jump; the first few correct it

    def waits(self, running: list[Req]) -> bool:
        """Return True if the next step over these requests should wait for the tokens in flight.

        A jump discards the sample that is in flight. Where all rows may jump and often do, a step that waits makes more
        progress than one that is submitted early; where other rows share the batch, they would pay for the wait.
        """
        return (
            self._jump_rate > WORTH_WAITING
            and bool(running)
            and all(r.constraint is not None and r.constraint.jumps for r in running)
        )

    def refusal(self, rid: str, sampling: SamplingParams, grammar: Grammar, room: int) -> FinishError | None:
        """The error of a request that cannot be served because its prompt leaves only `room` tokens; None if it can."""
        asked = sampling.max_tokens
        try:
            need = max(len(grammar.closing()), 1)
        except Exception as error:
            return _failure(rid, sampling, error)
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
        """The masks of the batch's constrained rows, and the requests whose grammar failed.

        All earlier steps are committed, so every grammar is up to date.
        """
        masks = StepMasks()
        failed: list[tuple[Req, Finish]] = []
        started = stamp = time.thread_time()  # excludes the time of other threads on this core
        looked = time.perf_counter()
        sampled = batch.sampled
        for i in batch.grammar_rows:
            req = sampled[i]
            constraint = req.constraint
            if req.finish is not None or constraint is None or constraint.stale_samples:
                continue
            try:
                masks.add(i, constraint.grammar.mask())
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
        """Do the grammars' deferred work; returns the requests whose grammar failed."""
        failed = []
        for req in running:
            if req.constraint is not None:
                try:
                    req.constraint.grammar.settle()
                except Exception as error:
                    failed.append((req, _failed(req, error)))
        return failed

    def look_ahead(self, running: list[Req]) -> Iterator[None]:
        """Work out what the next tokens of these requests may need, a little before each value."""
        for req in running:
            if req.constraint is not None and req.finish is None:
                self._ahead.add(req.constraint.grammar, req.max_len - req.known_len - 1)
        while self._ahead.turn():
            yield

    # --- tokens ---

    def take(self, req: Req, state: ConstraintState, token: int, columns: LogprobColumns | None) -> Finish | None:
        """Take a sampled token of a constrained request; returns its finish if it ends."""
        grammar, remaining = state.grammar, req.max_len - req.known_len - 1
        try:
            usual = columns is None and state.jumps and remaining > 0 and token not in req.stop_ids
            if usual and grammar.accept_freely(token, remaining):  # most tokens: the rest of this method in one call
                req.append(token)
                self._writer.token(req, token, None)
                self._jump_rate -= self._jump_rate / JUMP_RATE_MEMORY
                return None
            if not grammar.fits(token, remaining):
                return self._close(req, state)
            if columns is not None:
                columns = _with_choice(columns, grammar)
            if not grammar.accept(token):
                logger.error("request %s: its grammar refuses token %d, which its mask allowed", req.rid, token)
                return _error("the sampled token is not allowed by the request's grammar")
            finish = append_token(req, token)
            self._writer.token(req, token, columns)
            if finish is not None:
                return self._ended(req, state, finish)
            if not state.jumps:
                return None
            before = state.forced_tokens
            finish = self._jump(req, state)
            self._jump_rate += ((state.forced_tokens > before) - self._jump_rate) / JUMP_RATE_MEMORY
            return finish
        except Exception as error:
            return _failed(req, error)

    def start(self, req: Req, resumed: list[int]) -> Finish | None:
        """Append the beginning of a new request's output, forced or `resumed`; returns its finish if that is all of it.

        Args:
            resumed: output that the request brings (`Request.resume_ids`), of any kind of request. What a grammar
                forces behind it came together with the last of these tokens.
        """
        state = req.constraint
        if resumed:
            return self._resume(req, resumed)
        if state is None or not state.jumps:
            return None
        try:
            return self._jump(req, state)
        except Exception as error:
            return _failed(req, error)

    def _resume(self, req: Req, tokens: list[int]) -> Finish | None:
        state = req.constraint
        try:
            for token in tokens:
                if state is not None and not state.grammar.accept(token):
                    return _error(f"resume_ids holds token {token}, which the request's grammar does not allow there")
                finish = append_token(req, token)
                if finish is not None:
                    return finish
        except Exception as error:
            return _failed(req, error)
        return None

    def expire(self, req: Req) -> Finish:
        """Close the output of a request whose deadline passed into a valid answer; returns its finish."""
        assert req.constraint is not None
        try:
            return self._close(req, req.constraint)
        except Exception as error:
            return _failed(req, error)

    def _jump(self, req: Req, state: ConstraintState) -> Finish | None:
        """Jump-forward: append the tokens that must come next.

        A single token is appended too, though a step in flight would sample it as well: so the output does not depend
        on how many steps are in flight, and its tokens are the tokenizer's own.
        """
        grammar = state.grammar
        forced = grammar.forced_continuation()
        if not forced:
            return None
        if req.num_output:
            forced = self._heal(req, grammar, forced)
        finish: Finish | None = None
        taken = 0
        for token in forced:
            if not grammar.fits(token, req.max_len - req.known_len - 1):
                finish = self._close(req, state)
                break
            if not grammar.accept(token):
                logger.error("request %s: its grammar refuses token %d, which it forced", req.rid, token)
                finish = _error("a token that the request's grammar forces is not allowed by it")
                break
            finish = append_token(req, token)
            self._writer.unsampled(req, [token])
            taken += 1
            if finish is not None:
                finish = self._ended(req, state, finish)
                break
        state.forced_tokens += taken
        self._counters.forced_tokens += taken
        state.stale_samples += req.num_pending
        req.num_pending = 0
        if req.state is ReqState.RUNNING:
            req.state = ReqState.PREFILL
            req.sampling_row_due = req.sampling.needs_penalties  # forced tokens count, the ignored sample does not
        return finish

    def _heal(self, req: Req, grammar: Grammar, forced: list[int]) -> list[int]:
        """Take the last token back where it and the forced text together are tokenized differently; returns the tokens
        to append.

        So the sequence equals the tokenization of its text, and later prompts with that text find it in the cache.
        """
        healed = grammar.healed(int(req.ids[req.known_len - 1]), forced)
        if healed is None:
            return forced
        grammar.rollback(1)
        req.take_back()
        self._writer.take_back(req)
        self._kv.truncate(req, req.known_len)
        return healed

    def _ended(self, req: Req, state: ConstraintState, finish: Finish) -> Finish:
        """Report a used-up budget where the output may end but could go on as an early end too, with nothing to add."""
        return self._close(req, state) if finish.reason == FINISH_LENGTH else finish

    def _close(self, req: Req, state: ConstraintState) -> Finish:
        """End the output with the grammar's shortest completion, which needs no step; as it is, if there is none."""
        tokens = state.grammar.closing()
        if req.state is not ReqState.WAITING:
            self._kv.truncate(req, req.known_len)  # steps in flight compute tokens that are not part of the output
        if not state.grammar.closes:
            return Finish(FINISH_LENGTH)
        for token in tokens:
            req.append(token)
        self._writer.unsampled(req, tokens)
        state.closing_tokens = len(tokens)
        self._counters.forced_closes += 1
        return Finish(req.sampling.structured.on_length, forced_close=True)


def _failed(req: Req, error: Exception) -> Finish:
    return Finish(FINISH_ERROR, error=_failure(req.rid, req.sampling, error))


def _failure(rid: str, sampling: SamplingParams, error: Exception) -> FinishError:
    """Return the error of a request whose grammar cannot go on: the client's if it is too complex for its library."""
    if isinstance(error, GrammarError):
        kind = None if sampling.constraint is None else sampling.constraint.kind
        logger.info("request %s: its grammar is too complex: %s", rid, error)
        message = f"{kind or 'the constraint'} cannot be enforced any further: {error}"
        return FinishError(message, param=kind, code="grammar_too_complex", status=400)
    logger.error("request %s: its grammar failed: %s: %s", rid, type(error).__name__, error)
    return FinishError(f"the request's grammar failed, a defect of radixrt: {error}", code="constraint_failed")


def _error(message: str) -> Finish:
    return Finish(FINISH_ERROR, error=FinishError(message, code="constraint_failed"))
