"""A runner without a model that detects every mistake of the scheduler.

Each slot holds a digest of all tokens up to its position, computed from what the row's slots really hold, and the next
token is a function of that digest. So a request's output equals `expected_output` only if every slot that it read held
exactly its own prefix, whatever was cached, shared, chunked, freed, re-used or retracted on the way.

A runner with states has recurrent layers too: a state slot holds the same digest, of all tokens that were read before.
A row raises if the state that it reads is not that of exactly its prefix.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from functools import partial

import numpy as np

from radixrt.config import SchedulerConfig
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.grammar import bitmask_words
from radixrt.executor.mask_table import MaskReader, MaskTable, StepMasks
from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS, split_extend
from radixrt.messages.parts import Finish, LogprobColumns, Pooling, ReadValues, Usage
from radixrt.messages.request import Request
from radixrt.messages.runner import CascadeCosts, ForwardStep, GrammarMask, PromptCosts, StepFailed, StepOutput
from radixrt.messages.scheduler import TokenBatch, TokenDelta
from radixrt.messages.sections import READS, ReadSection, decode
from radixrt.messages.state_slots import RESERVED_STATES, SCRATCH_STATE
from radixrt.messages.wire import pack_f32, pack_i32, unpack_f32, unpack_i32
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.parts.recovery.scheduler import Recovery
from radixrt.parts.simulated import StepRows, make_scheduler
from radixrt.parts.states.checkpoints import MIN_GAP, Checkpoints
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.invariants import check_scheduler
from radixrt.scheduler.schedule_batch import ScheduleBatch
from radixrt.scheduler.scheduler import Scheduler
from radixrt.tokenizer.reads import ChoiceTree
from tests.parts.chosen import scheduler_with
from tests.requests import embed_request, prompt_of, score_request
from tests.step_sections import shared_in, states_in

FREE = CascadeCosts(
    step_tokens=0, run_tokens=0, row_tokens=0, min_length=1, in_extend=True,
    prompts=PromptCosts(step=0, run=0, token=0, dense=0, min_length=1),
)  # fmt: skip
"""With these, rows share all that they can."""

VOCAB = 50
EOS = 0
MODULUS = (1 << 61) - 1


def digest(before: int, token: int) -> int:
    return (before * 1_000_003 + token * 7919 + 12345) % MODULUS


def next_token(state: int) -> int:
    return (state >> 7) % VOCAB


def target_score(state: int, token: int) -> float:
    """Stand-in for a log-probability: a function of all tokens up to here and of the scored one."""
    return -((digest(state, token) >> 9) % 4096) / 64


def expected_scores(message: Request) -> list[float]:
    """The answer to a scoring request, computed with no engine at all."""
    scores = []
    for index, row in enumerate(message.rows):
        states = [0]
        for token in message.tokens(index).tolist():
            states.append(digest(states[-1], token))
        reads = row.logprobs
        assert reads is not None
        pairs = zip(unpack_i32(reads.positions).tolist(), unpack_i32(reads.targets).tolist(), strict=True)
        scores += [target_score(states[position + 1], token) for position, token in pairs]
    return scores


def hidden_state(state: int) -> list[float]:
    """Stand-in for a final hidden state of two numbers; sums of a few of them are exact in float32."""
    return [float((state >> 9) % 4096), float((state >> 21) % 64)]


def expected_embeddings(message: Request) -> list[list[float]]:
    """The answer to an embedding request, computed with no engine at all."""
    vectors = []
    for index, row in enumerate(message.rows):
        states = [0]
        for token in message.tokens(index).tolist():
            states.append(digest(states[-1], token))
        assert row.hidden is not None
        first, count = unpack_i32(row.hidden.spans).tolist()
        pooled = states[1 + first : 1 + first + count]
        vectors.append(np.mean([hidden_state(state) for state in pooled], axis=0).astype(np.float32).tolist())
    return vectors


def expected_hidden_states(prompt: bytes) -> list[list[float]]:
    """The hidden states of a prompt, computed with no engine at all."""
    state, found = 0, []
    for token in unpack_i32(prompt).tolist():
        state = digest(state, token)
        found.append(hidden_state(state))
    return found


def expected_output(
    prompt: Iterable[int],
    sampling: SamplingParams,
    max_len: int,
    read: Callable[[int, int], int] = lambda token, position: token,
) -> tuple[list[int], str]:
    """The output that a request must generate, computed without an engine.

    Args:
        read: returns what the model reads for an output token at a position.
    """
    ids = list(prompt)
    state = 0
    for token in ids:
        state = digest(state, token)
    out: list[int] = []
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {EOS})
    most = max_len - len(ids) if sampling.max_tokens is None else min(sampling.max_tokens, max_len - len(ids))
    while True:
        token = next_token(state)
        out.append(token)
        state = digest(state, read(token, len(ids) + len(out) - 1))
        if token in stops:
            return out, "stop"
        if len(out) >= most:
            return out, "length"


class RunnerDied(Exception):
    """A step had a token that the runner does not survive."""


class FakeRunner:
    """Runs the steps of one scheduler; keeps the mirror and the slots' contents.

    Args:
        deadly: tokens that kill the runner as inputs.
        num_states: number of state slots, the two reserved ones included; 0 for a model without states.
        stages: pipeline stages; the ids of all tokens must be given if there are several.
    """

    def __init__(
        self, num_slots: int, max_requests: int, max_context: int, deadly: frozenset[int] = frozenset(),
        num_states: int = 0, stages: int = 1,
    ) -> None:  # fmt: skip
        self.stages = stages
        self.deadly = deadly
        self.states: list[int | None] = [0, *[None] * (num_states - 1)] if num_states else []
        self.mirror = np.zeros((max_requests + 1, max_context), np.int32)
        self.content: list[int | None] = [None] * (num_slots + 64)
        self.future = [-1] * (max_requests + 1)
        self.tokens_computed = 0
        self.masks: dict[int, GrammarMask] = {}
        self.params: dict[int, object] = {}

    def successor(self) -> FakeRunner:
        """A runner of the same size that knows nothing."""
        return FakeRunner(
            len(self.content) - 64, len(self.mirror) - 1, self.mirror.shape[1], self.deadly, len(self.states),
            self.stages,
        )  # fmt: skip

    def run(self, step: ForwardStep, mask: GrammarMask | None = None) -> StepOutput:
        allowed = {} if mask is None else _masks(mask)
        for write in step.row_writes:
            slots = unpack_i32(write.slots)
            self.mirror[write.req_pool_idx, write.start : write.start + len(slots)] = slots
        for row in step.sampling_rows:
            self.params[row.req_pool_idx] = row
        self.begin(step)
        rows = StepRows.of(step)
        idx, seq_lens, extends = rows.req_pool_idx, rows.seq_lens, rows.extend_lens
        locs, ids, samples = rows.out_cache_loc, rows.input_ids, rows.samples
        assert self.stages == 1 or (ids >= 0).all(), "a future token, which the first stage has not sampled"
        stored = locs[locs != 0]
        assert self.states or len(stored) == len(locs), "slot 0 is padding"
        assert len(set(idx.tolist())) == len(idx), "a row twice in one step"
        assert len(set(stored.tolist())) == len(stored), "a slot twice in one step"
        src, dst, cuts = self._check_states(step, extends)
        sampled: list[int] = []
        states = []  # after each of the step's tokens
        at = 0
        for i, (row, length, new) in enumerate(zip(idx.tolist(), seq_lens.tolist(), extends.tolist(), strict=True)):
            new_locs = locs[at : at + new]
            self.mirror[row, length - new : length][new_locs != 0] = new_locs[new_locs != 0]
            state = 0 if length == new else self.content[self.mirror[row, length - new - 1]]
            assert not src or self.states[src[i]] == state, "the state is not that of the row's prefix"
            assert state is not None, "read a slot that was never written"
            self._check_prefix(row, length - new)
            row_slots = self.mirror[row, length - new : length]
            for number, (loc, slot, token) in enumerate(
                zip(new_locs.tolist(), row_slots.tolist(), ids[at : at + new].tolist(), strict=True)
            ):
                if (i, number) in cuts:
                    self.states[cuts[i, number]] = state
                if token < 0:
                    token = self.future[row]
                    assert token >= 0, "a future token that was never sampled"
                if token in self.deadly:
                    raise RunnerDied
                token = self.read(token, row, length - new + number, at + number)
                state = digest(state, token)
                if loc:
                    self.content[slot] = state
                assert self.content[slot] == state, "a replayed token is not the one that the slot holds"
                states.append(state)
                self.tokens_computed += 1
            if dst:
                self.states[dst[i]] = state
            at += new
            if samples[i]:
                sampled.append(_nearest(next_token(state), allowed.get(len(sampled))))
                self.future[row] = sampled[-1]
        self._check_order(seq_lens, extends)
        self._check_shared(step, idx, seq_lens, extends)
        return StepOutput(step.step_id, pack_i32(sampled), values=_values(step, states))

    def begin(self, step: ForwardStep) -> None:
        """Read what else a step brings."""

    def read(self, token: int, row: int, position: int, index: int) -> int:
        """Return what the model reads at a position of a row.

        Args:
            index: of the token in the step.
        """
        return token

    def _check_states(
        self, step: ForwardStep, extends: np.ndarray
    ) -> tuple[list[int], list[int], dict[tuple[int, int], int]]:
        """The columns of states are there if the model has any, no slot is written twice, and no row reads a slot that
        another row writes. The cuts are slots by row and number of new tokens."""
        section = states_in(step)
        src, dst = unpack_i32(section.src).tolist(), unpack_i32(section.dst).tolist()
        cuts = unpack_i32(section.cuts).reshape(-1, 3).tolist()
        assert len(src) == len(dst) == (len(extends) if self.states else 0)
        writers = dict(zip(dst, range(len(dst)), strict=True)) | {slot: row for row, _, slot in cuts}
        assert len(writers) == len(dst) + len(cuts), "a state slot is written twice in one step"
        assert all(slot >= RESERVED_STATES for slot in writers), "a reserved state slot is written"
        assert SCRATCH_STATE not in src, "the scratch slot is read"
        assert all(writers.get(slot, row) == row for row, slot in enumerate(src)), "a row reads what another one writes"
        assert not {slot for _, _, slot in cuts} & set(src), "a cut overwrites a state before it is read"
        assert [cut[:2] for cut in cuts] == sorted(cut[:2] for cut in cuts)
        assert all(0 < count < extends[row] for row, count, _ in cuts)
        return src, dst, {(row, count): slot for row, count, slot in cuts}

    def _check_order(self, seq_lens: np.ndarray, extends: np.ndarray) -> None:
        """Rows stand as `split_extend` cuts: no row is in a part before one that it should be behind."""
        prefixes = seq_lens - extends
        single = (extends == 1) & (prefixes > 0)
        parts = split_extend(prefixes.astype(np.int32), extends.astype(np.int32))
        assert not single[: parts.single].any() or parts.single == len(extends)
        before = extends[: parts.fresh][~single[: parts.fresh]]
        assert (np.diff(before) <= 0).all()
        apart = int(extends[prefixes == 0].sum()) >= MIN_FRESH_TOKENS
        assert (prefixes[: parts.fresh] > 0).all() or not apart

    def _check_shared(self, step: ForwardStep, idx: np.ndarray, seq_lens: np.ndarray, extends: np.ndarray) -> None:
        """Groups hold the same slots for two rows or more, all prompts or all single tokens, and cover a prefix of each
        that its own tokens are not in."""
        rows = unpack_i32(shared_in(step).rows).tolist()
        covered = dict.fromkeys(rows, 0)
        for start, length, first, count in unpack_i32(shared_in(step).segments).reshape(-1, 4).tolist():
            members = rows[first : first + count]
            assert len(set(members)) == count >= 2
            assert length > 0
            slots = self.mirror[idx[members], start : start + length]
            assert (slots == slots[0]).all()
            assert len({bool(extends[row] == 1) for row in members}) == 1
            for row in members:
                assert covered[row] == start
                covered[row] = start + length
                assert covered[row] <= seq_lens[row] - extends[row]

    def _check_prefix(self, row: int, length: int) -> None:
        for slot in self.mirror[row, :length].tolist():
            assert slot != 0, "the row points at the padding slot"
            assert self.content[slot] is not None, "the row points at a slot that was never written"


def mask_message(step_id: int, masks: StepMasks) -> GrammarMask:
    """The message that carries the masks where no memory is mapped."""
    table = MaskTable(len(masks.masks), bitmask_words(VOCAB))
    return table.message(step_id, masks.rows, masks.index, masks.masks)


def _masks(mask: GrammarMask) -> dict[int, set[int]]:
    found, _ = MaskReader(None).read(mask, VOCAB)
    if found is None:
        return {}
    rows, words = found.rows.tolist(), found.table[found.slots]
    assert len(set(rows)) == len(rows)
    return {r: {t for t in range(VOCAB) if w[t // 32] >> (t % 32) & 1} for r, w in zip(rows, words, strict=True)}


def _nearest(token: int, allowed: set[int] | None) -> int:
    """The token itself if it is allowed, else the next one that is."""
    if allowed is None or not allowed:
        return token
    return next(t % VOCAB for t in range(token, token + VOCAB) if t % VOCAB in allowed)


def _values(step: ForwardStep, states: list[int]) -> ReadValues | None:
    """What the step's rows read, from the digest after each of its tokens."""
    section = decode(step.sections, READS, ReadSection)
    if section is None:
        return None
    index, targets = unpack_i32(section.index).tolist(), unpack_i32(section.targets).tolist()
    assert index == sorted(index)
    scores = [target_score(states[i], token) for i, token in zip(index, targets, strict=True)]
    columns, first = [], 0
    for count, _ in unpack_i32(section.counts).reshape(-1, 2).tolist():
        columns.append(LogprobColumns(pack_f32(scores[first : first + count]), b"", b"", 0))
        first += count
    assert first == len(scores)
    spans = unpack_i32(section.spans).reshape(-1, 2).tolist()
    hidden = [np.sum([hidden_state(state) for state in states[at : at + n]], axis=0) for at, n in spans]
    return ReadValues(columns, pack_f32(hidden))


def deltas_of(batch: TokenBatch | None) -> list[TokenDelta]:
    """Everything in a batch as deltas; a request must be in it only once."""
    if batch is None:
        return []
    plain = zip(batch.rids, unpack_i32(batch.token_ids).tolist(), strict=True)
    deltas = batch.deltas + [TokenDelta(rid, pack_i32([token])) for rid, token in plain]
    assert len({delta.rid for delta in deltas}) == len(deltas)
    return deltas


class Harness:
    """A scheduler and a fake runner, stepped by hand.

    Args:
        parts: names of the scheduler's parts, as in `tests.parts.chosen`; None: as the engine assembles them.

    Attributes:
        make_scheduler: returns another scheduler like the first one.
    """

    def __init__(
        self, *, num_slots: int = 64, page_size: int = 1, depth: int = 1, max_context: int = 64, cache: bool = True,
        eviction: str = "lru", check: bool = True, cascade: CascadeCosts = FREE, deadly: Iterable[int] = (),
        num_states: int = 0, min_gap: int = MIN_GAP, stages: int = 1, grammars: GrammarManager | None = None,
        shared_cores: bool = False, parts: Collection[str] | None = None, **config: object,
    ) -> None:  # fmt: skip
        self.config = SchedulerConfig(**{"max_running_requests": 4, "chunked_prefill_size": 1024, **config})  # type: ignore[arg-type]
        make = make_scheduler if parts is None else partial(scheduler_with, parts)
        self.make_scheduler = partial(
            make, self.config, num_slots, context_length=max_context, eos_ids=[EOS], vocab_size=VOCAB,
            page_size=page_size, eviction=eviction, prefix_cache=cache, num_states=num_states, cascade=cascade,
            checkpoints=Checkpoints(min_gap), stages=stages, grammars=grammars, shared_cores=shared_cores,
        )  # fmt: skip
        self.scheduler: Scheduler = self.make_scheduler()
        self.cache = self.scheduler.kv.cache
        self.runner = FakeRunner(
            num_slots + page_size, self.config.max_running_requests, max_context, frozenset(deadly), num_states, stages
        )
        self.max_len = min(max_context, num_slots)
        self.depth = depth
        self.check = check
        self.now = 0.0
        self.inflight: deque[ScheduleBatch] = deque()
        self.poisoned: set[int] = set()
        self.deaths: Counter[str] = Counter()
        self.steps: list[ForwardStep] = []
        self.batches: list[ScheduleBatch] = []
        self.outputs: dict[str, list[int]] = {}
        self.finishes: dict[str, Finish] = {}
        self.usages: dict[str, Usage] = {}
        self.prompt_logprobs: dict[str, LogprobColumns] = {}
        self.hidden_states: dict[str, list[list[float]]] = {}
        self.requests: dict[str, Request] = {}
        self.score_requests: dict[str, Request] = {}
        self.embed_requests: dict[str, Request] = {}
        self.values: dict[str, list[float]] = {}

    def add(self, rid: str, prompt: list[int], *, grammar: object = None, **fields: object) -> None:
        names = ("priority", "cache_salt", "timeout_s", "program", "turn_len", "tenant", "weight")
        envelope = {name: fields.pop(name) for name in names if name in fields}
        sampling = SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **fields})  # type: ignore[arg-type]
        message = Request.generate(rid, pack_i32(prompt), sampling, **envelope)  # type: ignore[arg-type]
        self.requests.setdefault(rid, message)
        if grammar is None:
            self.scheduler.intake.add(message, self.now)
        else:
            self.scheduler.part(Constraints).add(message, self.now, grammar)  # type: ignore[arg-type]

    def add_score(self, rid: str, choices: dict[tuple[int, ...], list[list[int]]], **envelope: object) -> None:
        """Score choices after each of the prefixes."""
        prefixes = [pack_i32(prefix) for prefix in choices]
        rows = [
            row for i, (prefix, after) in enumerate(choices.items()) for row in ChoiceTree(len(prefix), after).rows(i)
        ]
        message = score_request(rid, prefixes, rows, **envelope)
        self.score_requests.setdefault(rid, message)
        self.scheduler.intake.add(message, self.now)

    def add_embed(self, rid: str, prompts: list[list[int]], pooling: Pooling, **envelope: object) -> None:
        message = embed_request(rid, [pack_i32(ids) for ids in prompts], pooling, **envelope)
        self.embed_requests.setdefault(rid, message)
        self.scheduler.intake.add(message, self.now)

    def submit(self) -> bool:
        """One next_batch; True if it gave a step."""
        batch = self.scheduler.next_batch(self.now)
        if batch is None:
            return False
        self.inflight.append(batch)
        self.steps.append(batch.step)
        self.batches.append(batch)
        if self.scheduler.pacing.stages > 1:
            self.send_masks(batch)
        self.verify()
        return True

    def send_masks(self, batch: ScheduleBatch) -> None:
        if batch.masked_rows:
            self.runner.masks[batch.step_id] = mask_message(
                batch.step_id, self.scheduler.parts.taker.masks(batch, self.now)
            )
            self.take()

    def commit(self) -> bool:
        if not self.inflight:
            return False
        batch = self.inflight.popleft()
        if self.scheduler.pacing.stages == 1:
            self.send_masks(batch)
        if batch.step_id in self.poisoned:  # it ran on what the failed step left unwritten: its answer is worthless
            output = StepOutput(batch.step_id, pack_i32([VOCAB - 1] * len(batch.sampled)))
        else:
            try:
                output = self.runner.run(batch.step, self.runner.masks.get(batch.step_id))
            except RunnerDied:
                self.inflight.appendleft(batch)
                self.kill()
                self.restart()
                return True
        self.scheduler.commit(batch, output, self.now)
        self.scheduler.step_time.learn()
        self.scheduler.parts.taker.settle(self.now)
        self.take()
        self.verify()
        return True

    def fail(self) -> None:
        batch = self.inflight.popleft()
        self.poisoned.update(b.step_id for b in self.inflight)
        self.scheduler.fail(batch, StepFailed(batch.step_id, 0, "boom", fatal=False).error, self.now)
        self.take()
        self.verify()

    def kill(self) -> None:
        """The runner dies: nothing that it computed or was to compute is left."""
        lost = {req for batch in self.inflight for req in batch.requests}
        for part in self.scheduler.parts.all:
            if isinstance(part, Recovery):
                assert len(lost) <= 1 or not any(part.suspects(req) for req in lost), "a suspect was not alone"
        self.deaths.update(req.rid if req.member is None else req.member.group for req in lost)
        self.scheduler.runner_lost(self.inflight, "it was told to", self.now)
        self.inflight.clear()
        self.runner = self.runner.successor()
        assert self.scheduler.next_batch(self.now) is None
        self.take()
        self.verify()

    def restart(self) -> None:
        self.scheduler.runner_ready()
        self.verify()

    def turn(self) -> bool:
        """One iteration of the loop, at this harness's depth."""
        did = False
        while len(self.inflight) < self.depth and self.submit():
            did = True
        return self.commit() or did

    def drain(self, limit: int = 10_000) -> None:
        while self.turn():
            limit -= 1
            assert limit, "the scheduler does not come to an end"
        self.take()

    def take(self) -> None:
        for delta in deltas_of(self.scheduler.take_deltas()):
            assert delta.rid not in self.finishes, "a delta after the finish"
            self.outputs.setdefault(delta.rid, []).extend(unpack_i32(delta.token_ids).tolist())
            if delta.values is not None:
                self._take_values(delta.rid, delta.values)
            if delta.finish is not None:
                self.finishes[delta.rid] = delta.finish
                assert delta.usage is not None
                self.usages[delta.rid] = delta.usage

    def _take_values(self, rid: str, values: ReadValues) -> None:
        hidden = unpack_f32(values.hidden).tolist()
        if rid in self.score_requests or rid in self.embed_requests:
            (columns,) = values.logprobs or [LogprobColumns(b"", b"", b"", 0)]
            self.values[rid] = unpack_f32(columns.token_logprobs).tolist() + hidden
            return
        if values.logprobs:
            assert rid not in self.prompt_logprobs
            self.prompt_logprobs[rid] = values.logprobs[0]
        if hidden:
            assert rid not in self.hidden_states
            self.hidden_states[rid] = np.array(hidden).reshape(-1, 2).tolist()

    def verify(self) -> None:
        if self.check:
            check_scheduler(self.scheduler)

    def assert_scores(self, rid: str) -> None:
        """The scoring request ended on its own, with exactly the scores that its rows determine."""
        assert self.finishes[rid].reason == "stop"
        assert self.values[rid] == expected_scores(self.score_requests[rid])

    def assert_embeddings(self, rid: str) -> None:
        """The embedding request ended on its own, with exactly the vectors that its prompts determine."""
        assert self.finishes[rid].reason == "stop"
        assert np.array(self.values[rid]).reshape(-1, 2).tolist() == expected_embeddings(self.embed_requests[rid])

    def assert_hidden_states(self, rid: str) -> None:
        """The request returned the hidden states that it asked for, and no others."""
        request = self.requests[rid]
        states = expected_hidden_states(prompt_of(request))
        assert request.sampling is not None
        wanted = {None: [], "last": states[-1:], "prompt": states}[request.sampling.return_hidden_states]
        assert self.hidden_states.get(rid, []) == wanted

    def assert_output(self, rid: str) -> None:
        """The request ended on its own, with exactly the tokens that its prompt determines, or at its deadline, with
        the first of these tokens."""
        request = self.requests[rid]
        assert request.sampling is not None
        tokens, reason = expected_output(request.tokens(0).tolist(), request.sampling, self.max_len)
        if self.finishes[rid].reason == "timeout":
            assert 0 < len(self.outputs[rid]) <= len(tokens)
            tokens, reason = tokens[: len(self.outputs[rid])], "timeout"
        assert self.outputs[rid] == tokens
        assert self.finishes[rid].reason == reason
        assert self.usages[rid].completion_tokens == len(tokens)
