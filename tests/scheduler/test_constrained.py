"""Constrained requests in the scheduler: forced tokens, early ends, healing, and grammars that fail."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.matcher import GrammarError
from radixrt.constraint import StructuredOptions
from radixrt.errors import InvariantError
from radixrt.messages.parts import ConstraintInfo
from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.parts.constraint import mask_limit
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.sampling_params import SamplingParams
from tests.scheduler.fake_runner import VOCAB, Harness, deltas_of
from tests.scheduler.scripted_grammar import ScriptedGrammar, expected_constrained
from tests.scheduler.test_scheduler import FixedSequence, _free_run

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
PAGES = pytest.mark.parametrize("page_size", [1, 8])


def _run(grammars: dict[str, ScriptedGrammar], *, jumps: bool, depth: int, page_size: int = 1, **config) -> Harness:
    h = Harness(depth=depth, page_size=page_size, num_slots=160, **config)
    for i, (rid, grammar) in enumerate(grammars.items()):
        h.add(
            rid, [1, 2, 3, 4, 5 + i % 3, 6], max_tokens=30, ignore_eos=True, grammar=grammar,
            structured=StructuredOptions(jump_forward=jumps),
        )  # fmt: skip
    h.add("free", [1, 2, 3, 9], max_tokens=20, ignore_eos=True)
    h.drain()
    h.assert_output("free")
    return h


def test_forced_tokens_are_published_with_the_rest_of_the_output():
    """Once behind the prompt and once at the end, however often the output jumped; then all of it is found again."""
    h, published = Harness(), []
    publish = h.scheduler._kv.publish
    h.scheduler._kv.publish = lambda req: (published.append(req.known_len), publish(req))
    h.add("r", [1, 2, 3], max_tokens=60, grammar=ScriptedGrammar(3), structured=StructuredOptions(jump_forward=True))
    h.drain()
    assert h.scheduler.part(Constraints).stats(0.0)["forced_tokens"] > 2
    output = h.outputs["r"]
    assert published == [3, 3 + len(output)]
    assert h.scheduler._kv.cache.match_len(np.array([1, 2, 3, *output], np.int32)) >= 2 + len(output)


@DEPTHS
@PAGES
@pytest.mark.parametrize("jumps", [True, False])
@pytest.mark.parametrize("chunk", [2, 1000])
def test_forced_tokens_and_early_ends_change_nothing_but_the_number_of_steps(depth, page_size, jumps, chunk):
    seeds = {f"g{seed}": seed for seed in range(12)}
    h = _run(
        {rid: ScriptedGrammar(seed) for rid, seed in seeds.items()}, jumps=jumps, depth=depth, page_size=page_size,
        chunked_prefill_size=chunk,
    )  # fmt: skip
    closed = 0
    for rid, seed in seeds.items():
        request = h.requests[rid]
        prompt = request.tokens(0).tolist()
        tokens, reason, early = expected_constrained(prompt, request.sampling, h.max_len, seed)
        assert h.outputs[rid] == tokens
        assert (h.finishes[rid].reason, h.finishes[rid].forced_close) == (reason, early)
        assert len(tokens) <= 30
        closed += early
    assert closed > 2
    assert (h.scheduler.part(Constraints).stats(0.0)["forced_tokens"] > 20) == jumps
    assert h.scheduler.part(Constraints).stats(0.0)["forced_closes"] == closed


def test_jumping_saves_steps():
    run = _free_run(1)[:4] + list(range(1, 30))
    steps = {}
    for jumps in (True, False):
        h = Harness()
        h.add("r", [1], max_tokens=40, grammar=FixedSequence(run), structured=StructuredOptions(jump_forward=jumps))
        h.drain()
        assert h.outputs["r"] == run
        steps[jumps] = len(h.steps)
    assert steps == {True: 0, False: len(run)}


@DEPTHS
@PAGES
def test_a_healed_token_is_replaced_before_anyone_sees_it(depth, page_size):
    """With healing, every forced run replaces the token before it: the digest of what was really computed shows it."""
    h = _run(
        {f"g{seed}": ScriptedGrammar(seed, heals=True) for seed in range(12)}, jumps=True, depth=depth,
        page_size=page_size,
    )  # fmt: skip
    assert h.scheduler.part(Constraints).stats(0.0)["forced_tokens"] > 20
    # Whatever was generated, a second request with it as its prompt finds it all in the cache, and nothing wrong.
    computed = h.runner.tokens_computed
    for seed in range(12):
        prompt = h.requests[f"g{seed}"].tokens(0).tolist() + h.outputs[f"g{seed}"]
        h.add(f"again{seed}", prompt, max_tokens=1, ignore_eos=True)
        h.drain()
        h.assert_output(f"again{seed}")
    assert h.runner.tokens_computed > computed


@DEPTHS
def test_forced_and_closing_tokens_are_reported(depth):
    h = Harness(depth=depth)
    grammar = ScriptedGrammar(3)
    message = Request.generate("r", pack_i32([1, 2]), SamplingParams(max_tokens=20, ignore_eos=True))
    h.requests["r"] = message
    h.scheduler.part(Constraints).add(message, 0.0, grammar, ConstraintInfo("scripted", ["/a: not"], compile_s=0.5))
    deltas = []
    while h.inflight or h.scheduler.next_batch is None or not h.scheduler.is_idle:
        while len(h.inflight) < depth and h.submit():
            pass
        batch = h.inflight.popleft()
        h.scheduler.parts.taker.masks(batch, 0.0)
        h.scheduler.commit(batch, h.runner.run(batch.step), 0.0)
        deltas += deltas_of(h.scheduler.take_deltas())
    info = deltas[-1].constraint
    assert (info.backend, info.ignored, info.compile_s) == ("scripted", ["/a: not"], 0.5)
    assert info.forced_tokens == h.scheduler.part(Constraints).stats(0.0)["forced_tokens"]
    assert all(d.constraint is None for d in deltas[:-1])


def test_a_budget_under_the_shortest_output_is_refused_with_that_minimum():
    h = Harness()
    h.add("r", [1, 2], max_tokens=4, grammar=FixedSequence([1, 2, 3, 4, 5]))
    h.drain()
    error = h.finishes["r"].error
    assert (error.param, error.status, error.code) == ("max_tokens", 400, "constraint_exceeds_max_tokens")
    assert "5 tokens" in error.message


def test_a_prompt_that_leaves_too_little_room_is_refused():
    h = Harness(max_context=12)
    h.add("r", [1] * 8, max_tokens=None, grammar=FixedSequence([1, 2, 3, 4, 5]))
    h.drain()
    assert h.finishes["r"].error.param == "prompt"
    assert "room for 4 tokens" in h.finishes["r"].error.message


def test_the_finish_reason_of_an_early_end_is_the_clients_choice():
    h = Harness(num_slots=160)
    for reason in ("length", "stop"):
        for seed in range(8):
            h.add(
                f"{reason}{seed}", [1, 2, 3], max_tokens=6, ignore_eos=True, grammar=ScriptedGrammar(seed),
                structured=StructuredOptions(on_length=reason),
            )  # fmt: skip
    h.drain()
    early = [rid for rid, finish in h.finishes.items() if finish.forced_close]
    assert len(early) > 4
    assert all(h.finishes[rid].reason == rid[:-1] for rid in early)


class Loop(FixedSequence):
    """A grammar whose only continuation is sampled token by token."""

    def forced_continuation(self):
        return []


@DEPTHS
@pytest.mark.parametrize("jumps", [True, False])
@pytest.mark.parametrize(
    ("block", "most", "sampled"),
    [
        ([1, 2, 3], 64, 64),  # 21 times
        (list(range(1, 9)), 64, 64),  # 8 times
        (list(range(1, 10)), 64, None),  # 7 times within 64 tokens
        ([1, 2, 3], 100, 100),
        ([1, 2, 3], 0, None),  # never
    ],
)
def test_an_output_that_repeats_itself_is_closed(depth, jumps, block, most, sampled):
    run = [*block * (240 // len(block)), 11, 12]
    h = Harness(depth=depth, num_slots=320, max_context=320)
    structured = StructuredOptions(jump_forward=jumps, max_repetition=most)
    h.add("r", [1, 1], max_tokens=300, ignore_eos=True, structured=structured, grammar=Loop(run))
    h.drain()
    assert h.outputs["r"] == run  # the closing suffix of this grammar is the rest of it
    assert h.finishes["r"].forced_close == (sampled is not None)
    assert len(h.steps) <= (sampled or len(run)) + depth
    assert h.scheduler.part(Constraints).stats(0.0)["forced_closes"] == (sampled is not None)


def test_repetitions_are_looked_for_at_the_same_tokens_after_a_restart():
    """A request that another replica continues ends where it would have ended there."""
    ends = {}
    for resumed in (0, 10, 150, 191):
        run = [*range(1, 12)] * 13 + [5, 6] * 100
        h = Harness(num_slots=500, max_context=500)
        sampling = SamplingParams(
            max_tokens=400, temperature=0.0, ignore_eos=True, structured=StructuredOptions(max_repetition=32)
        )
        message = Request.generate("r", pack_i32([1, 1]), sampling, resume_ids=pack_i32(run[:resumed]))
        h.requests["r"] = message
        h.scheduler.part(Constraints).add(message, 0.0, Loop(run))
        h.drain()
        assert h.finishes["r"].forced_close
        ends[resumed] = resumed + len(h.steps)
    assert len(set(ends.values())) == 1


@DEPTHS
def test_a_deadline_closes_what_there_is(depth):
    h = Harness(depth=depth, num_slots=160)
    grammar = ScriptedGrammar(5)
    h.add("r", [1, 2, 3], max_tokens=60, ignore_eos=True, timeout_s=10.0, grammar=grammar)
    h.add("waits", [4], max_tokens=3, ignore_eos=True, timeout_s=10.0, grammar=None)
    for _ in range(4):
        h.turn()
    tokens = h.outputs["r"][:]
    h.now = 11.0
    h.drain()
    assert (h.finishes["r"].reason, h.finishes["r"].forced_close) == ("timeout", True)
    assert h.outputs["r"][: len(tokens)] == tokens
    assert len(h.outputs["r"]) == len(grammar.history) - 1 + grammar.reserve(grammar.history)


def test_no_jumps_where_log_probabilities_are_asked():
    h = Harness()
    h.add("r", [1], max_tokens=9, logprobs=None, prompt_logprobs=0, grammar=FixedSequence([1, 2, 3]))
    h.drain()
    assert h.outputs["r"] == [1, 2, 3]
    assert h.scheduler.part(Constraints).stats(0.0)["forced_tokens"] == 0


@DEPTHS
def test_penalties_are_told_of_forced_tokens(depth):
    h = Harness(depth=depth, num_slots=160)
    h.add("r", [1, 2], max_tokens=30, ignore_eos=True, frequency_penalty=1.0, grammar=ScriptedGrammar(1))
    h.drain()
    rows = [row for step in h.steps for row in step.sampling_rows]
    assert h.scheduler.part(Constraints).stats(0.0)["forced_tokens"]
    assert len(rows) > 1
    output = h.outputs["r"]
    for row in rows:
        sent = unpack_i32(row.output_ids).tolist()
        assert sent == output[: len(sent)]


class Broken(FixedSequence):
    def __init__(self, where: str) -> None:
        super().__init__([1, 2, 3, 4])
        self.where = where

    def __getattribute__(self, name: str):
        if name == super().__getattribute__("where") if "where" in super().__getattribute__("__dict__") else False:

            def fail(*args: object) -> object:
                raise RuntimeError(f"{name} is broken")

            return fail
        return super().__getattribute__(name)


@DEPTHS
@pytest.mark.parametrize("jumps", [True, False])
@pytest.mark.parametrize("where", ["mask", "accept", "fits", "closing", "forced_continuation", "healed", "settle"])
def test_a_grammar_that_raises_ends_its_own_request(where, jumps, depth):
    h = Harness(depth=depth)
    h.add("free", [2, 2, 2], max_tokens=8, ignore_eos=True)
    h.add("bad", [1], max_tokens=9, grammar=Broken(where), structured=StructuredOptions(jump_forward=jumps))
    h.drain()
    h.assert_output("free")
    used = {"accept": True, "fits": True, "closing": True, "forced_continuation": jumps, "settle": not jumps}
    used["mask"] = not jumps
    if used.get(where, False):
        assert "is broken" in h.finishes["bad"].error.message
    else:
        assert h.outputs["bad"] == [1, 2, 3, 4]


@DEPTHS
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (GrammarError, 400, "grammar_too_complex"),
        (InvariantError, 500, "constraint_failed"),
        (MemoryError, 503, "busy"),
    ],
)
def test_a_grammar_that_is_too_complex_is_the_clients_to_mend(error, status, code, depth):
    class Complex(FixedSequence):
        def mask(self) -> Bitmask:
            if self.at == 2:
                raise error("too many options")
            return super().mask()

    h = Harness(depth=depth)
    given = {"regex": "x", "structured": StructuredOptions(jump_forward=False)}
    h.add("complex", [1], max_tokens=9, grammar=Complex([1, 2, 3, 4]), **given)
    h.drain()
    found = h.finishes["complex"].error
    assert (found.status, found.code) == (status, code)
    assert ("no memory" if status == 503 else "too many options") in found.message
    assert (found.param == "regex") == (status == 400)
    assert h.outputs["complex"] == [1, 2]


@DEPTHS
@pytest.mark.parametrize(
    ("slowdown", "status", "code"),
    [(0.5, 400, "grammar_too_complex"), (1.0, 400, "grammar_too_complex"), (99.0, 503, "busy")],
)
def test_a_slow_mask_ends_its_own_request(depth, slowdown, status, code, monkeypatch):
    """It is the client's to mend, unless the machine computes everything as slowly."""
    monkeypatch.setattr(mask_limit, "MASK_LIMIT_S", 0.005)
    references = itertools.chain([1.0], itertools.repeat(slowdown))
    monkeypatch.setattr(mask_limit, "reference_s", lambda: next(references))

    class Slow(FixedSequence):
        def mask(self) -> Bitmask:
            if self.at == 2:
                end = time.thread_time() + 0.02
                while time.thread_time() < end:
                    pass
            return super().mask()

    h = Harness(depth=depth)
    h.add("free", [2, 2, 2], max_tokens=8, ignore_eos=True)
    given = {"regex": "x", "structured": StructuredOptions(jump_forward=False)}
    h.add("slow", [1], max_tokens=9, grammar=Slow([1, 2, 3, 4]), **given)
    h.drain()
    h.assert_output("free")
    error = h.finishes["slow"].error
    assert "took" in error.message
    assert (error.status, error.code, error.param) == (status, code, "regex" if status == 400 else None)
    assert h.outputs["slow"] == [1, 2]


def test_the_reference_of_masks_is_a_computation():
    assert 0 < mask_limit.reference_s() < mask_limit.MASK_LIMIT_S


def test_tokens_of_the_vocabulary_only():
    assert all(0 < t < VOCAB for t in ScriptedGrammar(0).run)
