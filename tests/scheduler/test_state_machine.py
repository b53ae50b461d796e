"""Random sequences of all events of the scheduler, on pools that are too small for the requests."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from radixrt.constraint import StructuredOptions
from radixrt.messages.parts import ProgramHint
from radixrt.parts.programs.scheduler import Programs
from radixrt.parts.states.scheduler import HybridKVManager
from tests.scheduler.fake_runner import VOCAB, Harness
from tests.scheduler.scripted_grammar import ScriptedGrammar, expected_constrained

HINTS = st.one_of(
    st.none(),
    st.builds(
        ProgramHint,
        program=st.sampled_from(["p", "q", "s"]),
        branch=st.sampled_from(["", "0", "0/1", "0/2"]),
        fork_len=st.sampled_from([0, 1, 4, 8, 16, 10**6, -3]),  # right, wrong and absurd
        siblings=st.sampled_from([0, 1, 2, 10**9]),
        will_continue=st.booleans(),
    ),
)
DEADLY = VOCAB  # no runner samples it, and none survives it
PREFIXES = [[], [1], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4] * 5, [9] * 17, [7, 8, 9] * 12]


class SchedulerMachine(RuleBasedStateMachine):
    """All events of a scheduler.

    Attributes:
        parts: names of the scheduler's parts, as in `tests.parts.chosen`; None: as the engine assembles them. Requests
            ask for nothing that needs another part.
    """

    parts: frozenset[str] | None = None

    def has(self, part: str) -> bool:
        return self.parts is None or part in self.parts

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.aborted: set[str] = set()
        self.disturbed: set[str] = set()
        self.seeds: dict[str, int] = {}  # of the requests with a grammar

    @initialize(
        num_slots=st.sampled_from([24, 32, 48, 96]),
        page_size=st.sampled_from([1, 1, 2, 8]),
        stages=st.sampled_from([1, 1, 2, 3]),
        depth=st.sampled_from([1, 2]),
        cache=st.booleans(),
        eviction=st.sampled_from(["lru", "lfu", "fifo", "priority"]),
        policy=st.sampled_from(["fcfs", "lpm", "dfs-weight"]),
        chunk=st.sampled_from([1, 3, 16, 1000]),
        conservativeness=st.sampled_from([0.0, 0.3, 1.0]),
        rows=st.integers(1, 5),
        num_states=st.sampled_from([0, 0, 3, 4, 6, 9, 40]),
    )
    def start(
        self, num_slots, page_size, stages, depth, cache, eviction, policy, chunk, conservativeness, rows, num_states
    ) -> None:
        if self.parts is not None:
            stages = max(stages, 2) if self.has("stages") else 1
            num_states = max(num_states, 3) if self.has("states") else 0
        page_size = 1 if num_states else page_size
        self.h = Harness(
            num_slots=num_slots, page_size=page_size, stages=stages, depth=stages if stages > 1 else depth,
            cache=cache, eviction=eviction,
            schedule_policy=policy, chunked_prefill_size=chunk, schedule_conservativeness=conservativeness,
            max_running_requests=rows, max_queued_requests=8, request_timeout_s=50.0,
            deadly=[DEADLY], num_states=num_states, min_gap=2, parts=self.parts,
        )  # fmt: skip

    @rule(
        prefix=st.sampled_from(PREFIXES),
        suffix=st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=12),
        kills=st.sampled_from([False] * 7 + [True]),
        max_tokens=st.sampled_from([1, 2, 5, 30, None]),
        stops=st.lists(st.integers(0, VOCAB - 1), max_size=3),
        ignore_eos=st.booleans(),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "", "a"]),
        tenant=st.sampled_from(["", "a", "b"]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        hidden=st.sampled_from([None, None, "last", "prompt"]),
        seed=st.sampled_from([None, None, *range(6)]),
        jumps=st.booleans(),
        hint=HINTS,
    )
    def add(
        self, prefix, suffix, kills, max_tokens, stops, ignore_eos, priority, salt, tenant,
        prompt_logprobs, hidden, seed, jumps, hint,
    ) -> None:  # fmt: skip
        self.count += 1
        rid = f"r{self.count}"
        if not self.has("constraint"):
            seed = None
        if not self.has("reads"):
            prompt_logprobs = hidden = None
        if seed is not None:
            self.seeds[rid] = seed
        kills = kills and self.has("recovery")
        self.h.add(
            rid, prefix + suffix + [DEADLY] * kills, max_tokens=max_tokens, stop_token_ids=tuple(stops),
            ignore_eos=ignore_eos, priority=priority, cache_salt=salt, tenant=tenant,
            weight=2.0 if tenant == "b" else 1.0, prompt_logprobs=prompt_logprobs, return_hidden_states=hidden,
            grammar=None if seed is None else ScriptedGrammar(seed), structured=StructuredOptions(jump_forward=jumps),
            program=hint,
        )  # fmt: skip

    @precondition(lambda self: self.has("reads"))
    @rule(
        prefixes=st.lists(st.sampled_from([tuple(p) for p in PREFIXES[1:]]), min_size=1, max_size=2, unique=True),
        choices=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=6),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "", "a"]),
        tenant=st.sampled_from(["", "a", "b"]),
        hint=HINTS,
    )
    def score(self, prefixes, choices, priority, salt, tenant, hint) -> None:
        self.count += 1
        envelope = {"priority": priority, "cache_salt": salt, "tenant": tenant, "program": hint}
        self.h.add_score(f"r{self.count}", dict.fromkeys(prefixes, choices), **envelope)

    @precondition(lambda self: self.has("reads"))
    @rule(
        prompts=st.lists(
            st.tuples(st.sampled_from(PREFIXES), st.lists(st.integers(1, 4), min_size=1, max_size=4)),
            min_size=1, max_size=5,
        ),
        pooling=st.sampled_from(["last", "mean"]),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "", "a"]),
        tenant=st.sampled_from(["", "a", "b"]),
        hint=HINTS,
    )  # fmt: skip
    def embed(self, prompts, pooling, priority, salt, tenant, hint) -> None:
        self.count += 1
        envelope = {"priority": priority, "cache_salt": salt, "tenant": tenant, "program": hint}
        self.h.add_embed(f"r{self.count}", [prefix + suffix for prefix, suffix in prompts], pooling, **envelope)

    @precondition(lambda self: self.has("programs"))
    @rule(program=st.sampled_from(["p", "q", "nobody"]), branch=st.sampled_from([None, "", "0", "0/1", "nothing"]))
    def release(self, program, branch) -> None:
        self.h.scheduler.part(Programs).release(program, branch)
        self.h.verify()

    @rule(n=st.integers(1, 6))
    def turn(self, n: int) -> None:
        for _ in range(n):
            self.h.turn()

    @rule()
    def submit_only(self) -> None:
        if len(self.h.inflight) < self.h.depth:
            self.h.submit()

    @precondition(lambda self: self.count > 0)
    @rule(data=st.data())
    def abort(self, data) -> None:
        rid = f"r{data.draw(st.integers(1, self.count))}"
        self.disturbed.add(rid)
        self.h.scheduler.abort(rid, self.h.now)
        self.h.take()
        self.h.verify()

    @rule()
    def abort_unknown(self) -> None:
        self.h.scheduler.abort("nobody", self.h.now)

    @rule()
    def flush(self) -> None:
        self.h.scheduler.flush_cache()
        self.h.verify()

    @precondition(lambda self: self.h.inflight)
    @rule()
    def step_fails(self) -> None:
        self.disturbed.update(r.rid if r.member is None else r.member.group for r in self.h.inflight[0].requests)
        self.h.fail()

    @precondition(lambda self: self.h.scheduler.has_runner)
    @rule()
    def runner_dies(self) -> None:
        self.h.kill()

    @precondition(lambda self: not self.h.scheduler.has_runner)
    @rule()
    def runner_is_ready(self) -> None:
        self.h.restart()

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.h.now += seconds

    def teardown(self) -> None:
        if not hasattr(self, "h"):
            return
        h = self.h
        if not h.scheduler.has_runner:
            h.restart()
        h.drain()
        assert h.scheduler.is_idle
        assert h.finishes.keys() == h.requests.keys() | h.score_requests.keys() | h.embed_requests.keys(), (
            "every request ends exactly once"
        )
        for rid, finish in h.finishes.items():
            if finish.reason in ("stop", "length", "timeout"):
                if rid in h.score_requests:
                    h.assert_scores(rid)
                elif rid in h.embed_requests:
                    h.assert_embeddings(rid)
                else:
                    self._check_output(rid)
                    if rid not in self.disturbed:
                        h.assert_hidden_states(rid)
            elif finish.reason == "abort":
                assert rid in self.disturbed
            else:
                assert finish.error is not None
                if finish.error.code == "runner_killed":
                    assert h.deaths[rid] >= 2 or "with this prompt" in finish.error.message
                    continue
                known = ("timeout", "queue_full", "context_length_exceeded", "constraint_exceeds_max_tokens")
                assert finish.error.code in known or rid in self.disturbed, finish
        for rid, columns in h.prompt_logprobs.items():
            assert len(columns.token_logprobs) // 4 == h.requests[rid].row_len(0) - 1
        h.now += 1000.0
        h.scheduler.next_batch(h.now)
        if self.has("programs"):
            programs = h.scheduler.part(Programs).stats(0.0)["programs"]
            assert (programs.programs, programs.holds, programs.held_tokens) == (0, 0, 0), "nothing is kept for ever"
        h.verify()
        kv = h.scheduler.kv
        if isinstance(kv, HybridKVManager):
            slots = kv.states.slots
            assert slots.available() + len(kv.states.nodes) == slots.num_usable
        assert kv.allocator.available() + h.cache.evictable_size == kv.allocator.num_slots
        assert kv.rows.available() == h.config.max_running_requests

    def _check_output(self, rid: str) -> None:
        h = self.h
        seed = self.seeds.get(rid)
        if seed is None:
            h.assert_output(rid)
            return
        request, finish = h.requests[rid], h.finishes[rid]
        prompt = request.tokens(0).tolist()
        tokens, reason, early = expected_constrained(prompt, request.sampling, h.max_len, seed)
        if (h.outputs[rid], finish.reason, finish.forced_close) == (tokens, reason, early):
            return
        # Its time was up: what there was of it has been closed.
        assert finish.forced_close
        grammar = ScriptedGrammar(seed)
        sampled = h.outputs[rid]
        taken = next(i for i in range(len(sampled) + 1) if i == len(sampled) or sampled[i] != tokens[i])
        for token in tokens[:taken]:
            grammar.accept(token)
        assert len(sampled) <= len(tokens) + 4


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
