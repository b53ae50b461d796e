"""Scheduler end of constraint: masks, jump-forward, and early ends that are always valid.

The part decides the following when a step is committed, because every earlier token is known then:

- If no valid output could be completed within the budget after a sampled token, the token is dropped, and the grammar's
  shortest completion ends the output. The completion costs no step, because nothing is left to sample.
- If the output only repeats itself (`StructuredOptions.max_repetition`), it ends with the completion too: a model that
  is caught in a loop inside a string would go on until max_tokens.
- If the grammar leaves no choice about the next tokens, they are appended without sampling (jump-forward), and the next
  step computes them as a prefill chunk. A sample of the request that is in flight then is ignored when it arrives.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.grammar import Grammar, bitmask_words
from radixrt.constrained.matcher import GrammarError
from radixrt.constrained.runtime.look_ahead import LookAhead
from radixrt.executor.mask_table import StepMasks
from radixrt.messages.parts import (
    FINISH_ERROR,
    FINISH_LENGTH,
    FINISH_STOP,
    FINISH_TIMEOUT,
    ConstraintInfo,
    Finish,
    FinishError,
    LogprobColumns,
)
from radixrt.messages.request import Request
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.constraint.mask_limit import MaskLimit
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.part import Core, End, TakerPart
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)

JUMP_RATE_MEMORY = 64
"""Approximate number of sampled tokens in the running mean of the share of tokens that led to a jump."""
WORTH_WAITING = 0.1
"""Above this share of jumps, no step is submitted before the tokens of the previous step are known; see
`Constraints.may_step`."""

LOOK_EVERY = 64
"""Number of output tokens between two searches for a repetition."""
MIN_REPEATS = 8
"""Number of times that the repeated tokens of a repetition stand in it, at least."""

LOOK_S = 0.001
"""Masks are timed one by one only if several masks together take longer than this time, in seconds."""


def _with_choice(columns: LogprobColumns, grammar: Grammar) -> LogprobColumns:
    """Add to a token's columns the number of tokens that the grammar allows, and whether the grammar determines the
    text."""
    allowed = int.from_bytes(grammar.mask().tobytes(), "little").bit_count()
    forced = allowed == 1 or bool(grammar.forced_continuation())
    return msgspec.structs.replace(columns, allowed=pack_i32([allowed]), forced=bytes([forced]))


class Constraint:
    """`Taker` of a request with a constraint: the grammar's state, and counts of the tokens that the grammar decided.

    Attributes:
        may_take_back: jump-forward is on. Forced tokens are appended without sampling, and the last token before them
            may be replaced if it and the forced text together are tokenized differently.
        next_look: length of the sequence at which the output is searched for a repetition.
        repetition: the output was closed because of a repetition.
        forced_tokens: number of output tokens about which the grammar left no choice.
        closing_tokens: number of output tokens of the completion that ended the output early.
        stale_samples: number of samples in flight to ignore, the oldest first: forced tokens have replaced them.
    """

    __slots__ = (
        "_compiled",
        "_part",
        "_request",
        "closing_tokens",
        "forced_tokens",
        "grammar",
        "may_take_back",
        "next_look",
        "repetition",
        "stale_samples",
    )

    def __init__(self, part: Constraints, message: Request, grammar: Grammar, compiled: ConstraintInfo | None) -> None:
        sampling = message.sampling
        assert sampling is not None  # a constraint is a sampling parameter
        self._part = part
        self._request = message.rid, sampling
        self._compiled = compiled
        self.grammar = grammar
        # A forced token is not sampled, so it has no log-probabilities. With forced tokens behind a prompt, the whole
        # prompt may come from the cache, and the values that the request reads at it would not be computed.
        row = message.rows[0]
        reads = row.logprobs is not None or row.hidden is not None
        self.may_take_back = sampling.structured.jump_forward and sampling.logprobs is None and not reads
        self.forced_tokens = 0
        self.closing_tokens = 0
        self.stale_samples = 0
        self.repetition = False
        self.look_after(message.row_len(0), 0)

    def look_after(self, prompt_len: int, num_output: int) -> None:
        """Set the time of the next search for a repetition, which depends on the number of output tokens alone."""
        most = self._request[1].structured.max_repetition
        wait = max(most, num_output - num_output % LOOK_EVERY + LOOK_EVERY) if most else sys.maxsize
        self.next_look = prompt_len + wait

    def refusal(self, room: int) -> FinishError | None:
        rid, sampling = self._request
        asked = sampling.max_tokens
        try:
            need = max(len(self.grammar.closing()), 1)
        except Exception as error:
            return _failure(rid, sampling, error)
        if need <= (room if asked is None else min(asked, room)):
            return None
        shortest = f"the shortest output that satisfies the constraint has {need} tokens"
        if asked is not None and asked < need:
            return FinishError(
                f"max_tokens is {asked}, but {shortest}; ask for at least that many",
                param="max_tokens",
                code="constraint_exceeds_max_tokens",
                status=400,
            )
        return FinishError(
            f"the prompt leaves room for {room} tokens, but {shortest}",
            param="prompt",
            code="context_length_exceeded",
            status=400,
        )

    def start(self, req: Req, resumed: list[int]) -> Finish | None:
        return self._part.start(req, self, resumed)

    def ignores(self) -> bool:
        if not self.stale_samples:
            return False
        self.stale_samples -= 1
        return True

    def take(self, req: Req, token: int, columns: LogprobColumns | None) -> Finish | None:
        return self._part.take(req, self, token, columns)

    def requeued(self) -> None:
        self.stale_samples = 0

    def expire(self, req: Req) -> Finish | None:
        """Complete an output that has begun to a valid answer."""
        return self._part.expire(req, self) if req.num_output > self.forced_tokens else None

    @property
    def info(self) -> ConstraintInfo | None:
        compiled = self._compiled
        if compiled is None:
            return None
        return ConstraintInfo(
            compiled.backend,
            compiled.ignored,
            self.forced_tokens,
            self.closing_tokens,
            compiled.compile_s,
            compiled.cached,
            self.repetition,
        )


class Constraints(TakerPart):
    """Prepares the requests with a constraint, and advances their grammars.

    Args:
        vocab_size: size of grammar masks, in tokens.
        grammars: compiles the constraints of requests before they join the queue; None if the caller passes grammars to
            `add`.
        shared_cores: the runner computes steps on the cores that also compile grammars.
    """

    name = "constraint"

    def __init__(self, vocab_size: int, grammars: GrammarManager | None = None, *, shared_cores: bool = False) -> None:
        self.mask_words = bitmask_words(vocab_size)
        self._grammars = grammars
        self._shared_cores = shared_cores
        self._ahead = LookAhead()
        self._jump_rate = 0.5  # share of sampled tokens that led to a jump; the first few correct it
        self._forced_tokens = self._forced_closes = self._mask_rows = 0
        self._mask_s = 0.0
        self._mask_limit = MaskLimit()
        self._rows: set[Req] = set()  # constrained requests, queued or active

    def attach(self, core: Core) -> None:
        self._parts = core.scheduler.parts
        self._watch_steps()
        self._kv = core.kv
        self._requests = core.requests
        self._intake = core.intake
        self._writer = core.writer
        # If steps carry the ids of their decode rows, a row waits for its sampled token anyway.
        self._waits_for_ids = core.scheduler.pacing.gives_ids

    def stats(self, now: float) -> Mapping[str, Any]:
        return {
            "compiling": self.num_preparing,
            "forced_tokens": self._forced_tokens,
            "forced_closes": self._forced_closes,
            "mask_rows": self._mask_rows,
            "mask_s": self._mask_s,
            "grammars": None if self._grammars is None else self._grammars.stats(),
        }

    # --- requests that wait for their grammar ---

    @property
    def num_preparing(self) -> int:
        return 0 if self._grammars is None else self._grammars.num_pending

    def preparing(self) -> Iterable[Request]:
        return () if self._grammars is None else self._grammars.pending()

    @property
    def sockets(self) -> list[Any]:
        return [] if self._grammars is None else [*self._grammars.sockets()]

    def prepare(self, message: Request, now: float) -> bool:
        """Begin to compile the constraint of a request that may join the queue; return False without a constraint."""
        if self._grammars is None or message.sampling is None or message.sampling.constraint is None:
            return False
        error = self._intake.refusal(message, now, compiling=self._grammars.num_pending)
        if error is None:
            self._grammars.submit(message, now)
        else:
            self._intake.refuse(message, error)
        return True

    def poll(self, now: float, *, steps_in_flight: bool) -> bool:
        """Queue the requests whose grammar is compiled; a request whose grammar failed to compile gets an error."""
        if self._grammars is None:
            return False
        crowded = self._shared_cores and steps_in_flight
        idle = not self._requests.by_rid
        ready = self._grammars.poll(now, steps_in_flight=steps_in_flight, crowded=crowded, idle=idle)
        for each in ready:
            if each.grammar is None:
                assert each.error is not None
                self._intake.refuse(each.message, each.error)
            else:
                self.add(each.message, now, each.grammar, each.info)
        return bool(ready)

    def add(self, message: Request, now: float, grammar: Grammar, info: ConstraintInfo | None = None) -> None:
        """Queue a request with the initial state of its grammar.

        Args:
            info: report about the compilation; None to report nothing.
        """
        self._intake.add(message, now, Constraint(self, message, grammar, info))

    def abort(self, rid: str) -> bool:
        if self._grammars is None or not self._grammars.abort(rid):
            return False
        self._intake.abandon(rid)
        return True

    def forgotten(self) -> None:
        self._rows.clear()
        self._watch_steps()
        if self._grammars is not None:
            self._grammars.forget()

    def close(self) -> None:
        """Stop the grammar compilers."""
        if self._grammars is not None:
            self._grammars.close()

    def ended(self, end: End) -> None:
        if end.req in self._rows:
            self._rows.discard(end.req)
            self._watch_steps()

    # --- steps ---

    def _watch_steps(self) -> None:
        """Let steps ask the part while there are constrained requests."""
        self._parts.enable(self, ("may_step", "settle"), on=bool(self._rows))

    def may_step(self, decode: list[Req]) -> bool:
        """Return False if the next step over these rows should wait for the tokens in flight.

        A jump discards the sample in flight. If all rows may jump and jumps are frequent, waiting for the tokens makes
        more progress than submitting a step early. If other rows share the batch, they would pay for the wait.
        """
        if self._jump_rate <= WORTH_WAITING or self._waits_for_ids or not decode:
            return True
        return not all(req.taker is not None and req.taker.may_take_back for req in decode)

    def masks(self, batch: ScheduleBatch, now: float) -> StepMasks:
        """Return the masks of the batch's constrained rows; all earlier tokens of these rows are known.

        A grammar that fails, or takes too long, ends its own request.
        """
        masks = StepMasks()
        failed: list[tuple[Req, Finish]] = []
        started = stamp = time.thread_time()  # excludes the time of other threads on this core
        looked = time.perf_counter()
        sampled = batch.sampled
        for i in batch.masked_rows:
            req = sampled[i]
            constraint = cast("Constraint", req.taker)
            if req.finish is not None or constraint.stale_samples:
                continue
            try:
                masks.add(i, constraint.grammar.mask())
            except Exception as error:
                failed.append((req, _failed(req, error)))
                stamp, looked = time.thread_time(), time.perf_counter()
                continue
            looked_at = time.perf_counter()
            if looked_at - looked > LOOK_S:  # rarely, because reading the thread's CPU time is a system call
                before, stamp, looked = stamp, time.thread_time(), looked_at
                if (slow := self._mask_limit.error(req.sampling, stamp - before)) is not None:
                    failed.append((req, Finish(FINISH_ERROR, error=slow)))
                    stamp, looked = time.thread_time(), time.perf_counter()
        self._mask_s += time.thread_time() - started
        self._mask_rows += len(masks.rows)
        self._end(failed, now)
        return masks

    def settle(self, now: float) -> bool:
        """Do the grammars' deferred work. A grammar that fails ends its own request."""
        failed = []
        for req, constraint in self._constrained():
            try:
                constraint.grammar.settle()
            except Exception as error:
                failed.append((req, _failed(req, error)))
        self._end(failed, now)
        return bool(failed)

    def look_ahead(self) -> Iterator[None]:
        for req, constraint in self._constrained():
            if req.finish is None:
                self._ahead.add(constraint.grammar, req.max_len - req.known_len - 1)
        while self._ahead.turn():
            yield

    def _constrained(self) -> Iterator[tuple[Req, Constraint]]:
        """Yield the active requests that have a constraint."""
        for req in self._requests.active:
            if req.taker is not None:
                yield req, cast("Constraint", req.taker)

    def _end(self, failed: Iterable[tuple[Req, Finish]], now: float) -> None:
        for req, finish in failed:
            self._requests.end(req, finish, now)

    # --- tokens ---

    def take(self, req: Req, state: Constraint, token: int, columns: LogprobColumns | None) -> Finish | None:
        """Take a sampled token of a constrained request; returns its finish if it ends."""
        grammar, remaining = state.grammar, req.max_len - req.known_len - 1
        try:
            usual = columns is None and state.may_take_back and remaining > 0 and token not in req.stop_ids
            # Most tokens leave the grammar a choice and the budget enough room: one call does the rest of this method.
            if usual and grammar.accept_freely(token, remaining):
                req.append(token)
                self._writer.token(req, token, None)
                self._jump_rate -= self._jump_rate / JUMP_RATE_MEMORY
                return None if req.known_len < state.next_look else self._look(req, state)
            # After a token that does not fit, no valid output can be completed within max_tokens: end before it.
            if not grammar.fits(token, remaining):
                return self._close(req, state)
            if columns is not None:
                columns = _with_choice(columns, grammar)
            if not grammar.accept(token):
                logger.error("request %s: its grammar refuses token %d, which its mask allowed", req.rid, token)
                return _error("the sampled token is not allowed by the request's grammar")
            finish = _append(req, state, token)
            self._writer.token(req, token, columns)
            if finish is not None:
                return self._ended(req, state, finish)
            if state.may_take_back:
                before = state.forced_tokens
                finish = self._jump(req, state)
                self._jump_rate += ((state.forced_tokens > before) - self._jump_rate) / JUMP_RATE_MEMORY
            if finish is None and req.known_len >= state.next_look:
                finish = self._look(req, state)
            return finish
        except Exception as error:
            return _failed(req, error)

    def start(self, req: Req, state: Constraint, resumed: list[int]) -> Finish | None:
        """Append the first output tokens of a new request; return a finish if they complete the request.

        Args:
            resumed: output tokens that come with the request (`Request.resume_ids`). They end with the tokens that the
                grammar forced behind the last sampled token.
        """
        self._rows.add(req)
        self._watch_steps()
        try:
            if not resumed:
                return self._jump(req, state) if state.may_take_back else None
            for token in resumed:
                if not state.grammar.accept(token):
                    return _error(f"resume_ids holds token {token}, which the request's grammar does not allow there")
                if (finish := _append(req, state, token)) is not None:
                    return finish
            state.look_after(req.prompt_len, req.num_output)
        except Exception as error:
            return _failed(req, error)
        return None

    def expire(self, req: Req, state: Constraint) -> Finish:
        """Complete the output of a request whose deadline has passed to a valid answer; return the finish."""
        try:
            finish = self._close(req, state)
        except Exception as error:
            return _failed(req, error)
        # "stop" is the client's wish for each early end.
        return msgspec.structs.replace(finish, reason=FINISH_TIMEOUT) if finish.reason == FINISH_LENGTH else finish

    def _look(self, req: Req, state: Constraint) -> Finish | None:
        """Search the output for a repetition, and close an output that has one; return the finish."""
        state.look_after(req.prompt_len, req.num_output)
        if not _repeats(req.ids[req.known_len - req.sampling.structured.max_repetition : req.known_len]):
            return None
        state.repetition = True
        logger.info("request %s: its output repeats itself and is closed", req.rid)
        return self._close(req, state)

    def _jump(self, req: Req, state: Constraint) -> Finish | None:
        """Jump-forward: append the tokens that the grammar forces next.

        A single forced token is appended too, although a step in flight samples the same token: so the output does not
        depend on the number of steps in flight, and the text is tokenized as the tokenizer would.
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
            finish = _append(req, state, token)
            self._writer.unsampled(req, [token])
            taken += 1
            if finish is not None:
                finish = self._ended(req, state, finish)
                break
        state.forced_tokens += taken
        self._forced_tokens += taken
        # Samples in flight belong to positions that now hold forced tokens. The forced tokens have no keys and values
        # yet, so the request returns to PREFILL.
        state.stale_samples += req.num_pending
        req.num_pending = 0
        if req.state is ReqState.RUNNING:
            req.state = ReqState.PREFILL
            req.sampling_row_due = req.sampling.needs_penalties  # forced tokens count, the ignored sample does not
        return finish

    def _heal(self, req: Req, grammar: Grammar, forced: list[int]) -> list[int]:
        """Return the tokens to append for a forced text. The last output token is taken back if the tokenizer would
        split the last token and the forced text together differently (token healing).

        So the sequence equals the tokenization of its text, and later prompts with the same text match it in the cache.
        """
        healed = grammar.healed(int(req.ids[req.known_len - 1]), forced)
        if healed is None:
            return forced
        grammar.rollback(1)
        req.take_back()
        self._writer.take_back(req)
        self._kv.truncate(req, req.known_len)
        return healed

    def _ended(self, req: Req, state: Constraint, finish: Finish) -> Finish:
        """Treat an output that is complete but reached max_tokens, and could continue, as an early end without closing
        tokens."""
        return self._close(req, state) if finish.reason == FINISH_LENGTH else finish

    def _close(self, req: Req, state: Constraint) -> Finish:
        """End the output with the grammar's shortest completion, which needs no step. Without a completion the output
        ends as it is."""
        tokens = state.grammar.closing()
        if req.state is not ReqState.WAITING:
            self._kv.truncate(req, req.known_len)  # steps in flight compute tokens that are not part of the output
        if not state.grammar.closes:
            return Finish(FINISH_LENGTH)
        for token in tokens:
            req.append(token)
        self._writer.unsampled(req, tokens)
        state.closing_tokens = len(tokens)
        self._forced_closes += 1
        return Finish(req.sampling.structured.on_length, forced_close=True)


def _repeats(ids: Int32Array) -> bool:
    """Return True if the tokens are the same few again and again, at least MIN_REPEATS times."""
    tokens = ids.tobytes()
    width = ids.itemsize
    return any(tokens[width * n :] == tokens[: -width * n] for n in range(1, len(ids) // MIN_REPEATS + 1))


def _append(req: Req, state: Constraint, token: int) -> Finish | None:
    """Append an output token that the grammar has accepted; return the request's finish if the token is its last."""
    before = req.known_len
    finish = req.take(token)
    ends = finish is None or finish.reason == FINISH_LENGTH
    if ends and req.known_len > before and state.grammar.is_terminated():
        return Finish(FINISH_STOP)
    return finish


def _failed(req: Req, error: Exception) -> Finish:
    return Finish(FINISH_ERROR, error=_failure(req.rid, req.sampling, error))


def _failure(rid: str, sampling: SamplingParams, error: Exception) -> FinishError:
    """Return the error of a request whose grammar has failed. A grammar that is too complex is the client's error,
    and lack of memory the machine's."""
    if isinstance(error, GrammarError):
        kind = None if sampling.constraint is None else sampling.constraint.kind
        logger.info("request %s: its grammar is too complex: %s", rid, error)
        message = f"{kind or 'the constraint'} cannot be enforced any further: {error}"
        return FinishError(message, param=kind, code="grammar_too_complex", status=400)
    if isinstance(error, MemoryError):
        logger.error("request %s: its grammar found no memory: %s", rid, error)
        return FinishError(
            "the machine has no memory left for the request's grammar; try again", code="busy", status=503
        )
    logger.error("request %s: its grammar failed: %s: %s", rid, type(error).__name__, error)
    return FinishError(f"the request's grammar failed, a defect of radixrt: {error}", code="constraint_failed")


def _error(message: str) -> Finish:
    return Finish(FINISH_ERROR, error=FinishError(message, code="constraint_failed"))
