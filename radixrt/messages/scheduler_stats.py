"""`SchedulerStats`: statistics that the scheduler sends to the tokenizer process, and the structs of its fields."""

from __future__ import annotations

import msgspec

from radixrt.messages.histogram import Histogram
from radixrt.messages.wire import Message

EXTRAPOLATION = 4.0
"""Bound of predictions beyond the measured steps; see `StepTimes.bounded_chunk_seconds`."""


class GrammarStats(msgspec.Struct, frozen=True, array_like=True):
    """Counters of constraint compilation since the scheduler started, and the size of the grammar cache.

    Attributes:
        compile_times: seconds that each compiled constraint took.
        hits: requests whose grammar was in memory, or was being compiled for another request.
        disk_hits: compiled constraints found on disk.
        refusals: refused constraints by the keyword at fault (by kind, e.g. "regex", if it is not a schema).
        timeouts: compilations that exceeded their time limit.
        cache_bytes, cache_entries: size of the grammars in memory, and their number.
    """

    compile_times: Histogram | None = None
    hits: int = 0
    disk_hits: int = 0
    refusals: dict[str, int] = {}
    timeouts: int = 0
    cache_bytes: int = 0
    cache_entries: int = 0


class ProgramStats(msgspec.Struct, frozen=True, array_like=True):
    """Statistics of program hints: three gauges, then counters since the scheduler started.

    Attributes:
        programs: programs known at present.
        holds, held_tokens: nodes of the radix tree retained for a next request of a program, and their tokens.
        prompt_tokens, cached_tokens: token counts of requests with a hint.
        leases: fork prefixes that were retained.
        refused_holds: hints ignored because their program, or all programs together, retained too many tokens.
        releases: programs and branches that were released.
        expired: programs that expired without a release.
    """

    programs: int = 0
    holds: int = 0
    held_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    leases: int = 0
    refused_holds: int = 0
    releases: int = 0
    expired: int = 0


class StepTimes(msgspec.Struct, frozen=True, array_like=True):
    """Model of the seconds that a step takes, fitted by the scheduler (`radixrt.scheduler.step_time`):

        step + row * rows + context * context tokens  [ + extend + token * prompt tokens + pair * pairs ]

    The part in brackets belongs to steps with prompt chunks. All coefficients are in seconds and not negative.

    Attributes:
        step: fixed time of a step.
        row: time of a row with one new token behind others, most of them decode rows.
        context: time of one position that such a row attends to.
        extend: fixed time that prompt chunks add to a step.
        token: time of a prompt token.
        pair: time in which a prompt token attends to a position.
        error: running mean of the relative error of predictions, from 0 to 1: the difference between predicted and
            measured time over the longer of the two.
        decode_steps, extend_steps: number of steps that the two parts were fitted to.
        most_tokens, most_pairs: largest numbers of prompt tokens and pairs in these steps; 0 if unknown.
    """

    step: float
    row: float
    context: float
    extend: float
    token: float
    pair: float
    error: float = 0.0
    decode_steps: int = 0
    extend_steps: int = 0
    most_tokens: float = 0.0
    most_pairs: float = 0.0

    def seconds(self, rows: float, context: float, tokens: float = 0.0, pairs: float = 0.0) -> float:
        """Return the predicted time of a step; see `radixrt.messages.step_shape.StepShape` for its arguments."""
        seconds = self.step + self.row * rows + self.context * context
        return seconds + (self.chunk_seconds(tokens, pairs) if tokens else 0.0)

    def chunk_seconds(self, tokens: float, pairs: float) -> float:
        """Return the predicted time that prompt chunks add to a step."""
        return self.extend + self.token * tokens + self.pair * pairs

    def seconds_beside_rows(self, rows: float, context: float, max_gap_s: float) -> float:
        """Return the longest time of the prompt chunks of a step that shall take `max_gap_s` at most. Chunks may take
        as long as the rows of the step even if it then takes longer: prompts must not starve beside many rows.

        Args:
            rows, context: see `radixrt.messages.step_shape.StepShape`.
        """
        rows_s = self.seconds(rows, context)
        return max(max_gap_s - rows_s, rows_s)

    def prompt_seconds(self, tokens: int) -> float:
        """Return the predicted time that a prompt without cached tokens adds to a step."""
        return self.chunk_seconds(tokens, tokens * (tokens + 1) / 2)

    def bounded_chunk_seconds(self, tokens: float, pairs: float) -> float:
        """Return the predicted time that prompt chunks add to a step, at most EXTRAPOLATION times the predicted time of
        the largest chunks that the model was fitted to. Steps with a few prompt tokens do not determine how long a
        token takes, so that a long chunk may be predicted to take many times as long as it does."""
        seconds = self.chunk_seconds(tokens, pairs)
        if not self.most_tokens:
            return seconds
        known = self.chunk_seconds(min(tokens, self.most_tokens), min(pairs, self.most_pairs))
        return min(seconds, EXTRAPOLATION * known)


class LoadStats(msgspec.Struct, frozen=True, array_like=True):
    """Load of the scheduler; predictions are 0 until enough requests have ended.

    Attributes:
        predicted_wait_s: predicted seconds until a small request of priority 0 that arrives now is admitted.
        queued_tokens: number of input tokens of the waiting requests that are in no cache and must be computed.
        queued_output_tokens: number of tokens that the waiting requests are expected to sample.
        prefill_tokens_per_s: rate of a step with nothing but a full chunk of one prompt.
        decode_tokens_per_s: rate of steps with the rows that run now and no prompt.
        step_times: model of the seconds that a step takes; with pipeline stages, in which each row gets a token.
    """

    predicted_wait_s: float = 0.0
    queued_tokens: int = 0
    queued_output_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    step_times: StepTimes | None = None


class StateStats(msgspec.Struct, frozen=True, array_like=True):
    """States of recurrent layers: gauges, and counters since the scheduler started.

    Attributes:
        total: number of state slots, without the two reserved ones.
        free: number of slots that nobody owns.
        cached: number of states in the radix cache.
        evicted: number of states evicted from it.
        recomputed_tokens: prompt tokens whose keys and values were cached, but which were computed again because the
            nearest state was before them.
    """

    total: int
    free: int
    cached: int
    evicted: int
    recomputed_tokens: int


class MoveStats(msgspec.Struct, frozen=True, array_like=True):
    """Counters of the moves of keys and values in one direction between two memories, since the scheduler started.

    Attributes:
        bytes: bytes of the finished moves, of all ranks.
        finished, failed: number of moves that all ranks have finished, and that at least one rank could not finish.
        seconds: times of the finished moves in the slowest rank.
    """

    bytes: int = 0
    finished: int = 0
    failed: int = 0
    seconds: Histogram | None = None


class TierStats(msgspec.Struct, frozen=True, array_like=True):
    """Keys and values in host memory and in files, by tier ("host", "disk"): two gauges, then counters since the
    scheduler started.

    Attributes:
        tokens_total, tokens_used: tokens for which the tier has places, and tokens that the tier keeps.
        moves: by kind: "out" and "in" from and to the KV pool, "save" and "load" to and from files, "pull" from the
            host memory of another replica.
        refused: moves that did not begin, by reason.
        fetched_tokens: cached prompt tokens that were fetched for a request, by tier; "peer" for another replica.
        fetch_token_s: predicted seconds of a token that comes into the KV pool, by tier, "peer" too; empty before the
            first one.
        state_tokens: tokens that take as long as a state of recurrent layers, which moves with a prefix.
    """

    tokens_total: dict[str, int] = {}
    tokens_used: dict[str, int] = {}
    moves: dict[str, MoveStats] = {}
    refused: dict[str, int] = {}
    fetched_tokens: dict[str, int] = {}
    fetch_token_s: dict[str, float] = {}
    state_tokens: int = 0


class MediaStats(msgspec.Struct, frozen=True, array_like=True):
    """Images in the encoder pool.

    Attributes:
        rows, rows_used: rows of the pool, and those that an image has.
        encoded: images that were encoded since the scheduler started.
        reused: images of requests that were in the pool already.
        position_s: predicted seconds of encoding, for each position of the last images.
    """

    rows: int
    rows_used: int
    encoded: int
    reused: int
    position_s: float = 0.0


class SchedulerStats(Message, frozen=True, array_like=True, tag=True):
    """Snapshot of the scheduler: gauges, and counters since it started. Fields with _s are in seconds.

    Attributes:
        runner_restarts: number of restarts of the ModelRunner.
        resumed: number of times that a request continued from its known tokens after a reset of the cache.
        cache_resets: number of resets of the prefix cache, by reason.
        suspects: number of requests to compute alone, because the ModelRunner died in one of their steps.
        killers: number of requests that ended because the ModelRunner died twice while computing the request.
        refused: number of requests refused because the queue was full or the predicted wait too long.
        states: states of recurrent layers; None if the model has none.
        tiers: keys and values outside of the KV pool; None if they are kept nowhere else.
        media: images of a model with a vision tower; None for a model that reads text alone.
        token_gaps: seconds between two sampled tokens of a request.
        step_tokens: tokens that each step computes.
        cache_clock: matches and inserts of the prefix cache so far.
    """

    waiting: int
    running: int
    slots_total: int
    slots_free: int
    slots_evictable: int
    slots_protected: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    evicted_tokens: int
    retractions: int
    finished: int
    extend_steps: int
    decode_steps: int
    schedule_s: float
    runner_s: float
    commit_s: float
    compiling: int = 0
    forced_tokens: int = 0
    forced_closes: int = 0
    mask_rows: int = 0
    mask_s: float = 0.0
    grammars: GrammarStats | None = None
    programs: ProgramStats | None = None
    runner_restarts: int = 0
    resumed: int = 0
    cache_resets: dict[str, int] = {}
    suspects: int = 0
    killers: int = 0
    refused: int = 0
    load: LoadStats | None = None
    states: StateStats | None = None
    token_gaps: Histogram | None = None
    step_tokens: Histogram | None = None
    cache_clock: int = 0
    tiers: TierStats | None = None
    media: MediaStats | None = None
