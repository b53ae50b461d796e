"""Requests go on after the ModelRunner died; one that kills it ends alone."""

from __future__ import annotations

import pytest

from radixrt.constraint import StructuredOptions
from radixrt.messages.parts import ProgramHint
from radixrt.messages.wire import unpack_i32
from radixrt.parts.recovery import scheduler as recovery
from radixrt.parts.recovery.scheduler import Recovery
from tests.scheduler.fake_runner import VOCAB, Harness, expected_output
from tests.scheduler.scripted_grammar import ScriptedGrammar, expected_constrained
from tests.scheduler.test_scoring import CHOICES, PROMPT

DEADLY = VOCAB  # a token that no runner samples
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def _fill(h: Harness) -> None:
    """Requests of every kind, half of them on a shared prefix."""
    for i in range(4):
        h.add(f"plain{i}", [*PROMPT, i + 1], max_tokens=12 + i, ignore_eos=True)
        h.add(
            f"bound{i}", [1, 2, 3, 4 + i], max_tokens=30, ignore_eos=True, grammar=ScriptedGrammar(i),
            structured=StructuredOptions(jump_forward=i % 2 == 0),
        )  # fmt: skip
    h.add("scored", [*PROMPT, 3, 3], max_tokens=6, ignore_eos=True, prompt_logprobs=0)
    h.add_score("choices", {PROMPT: CHOICES})
    h.add("call", [*PROMPT, 9, 9], max_tokens=5, program=ProgramHint("p", fork_len=7, siblings=3, will_continue=True))


def _assert_as_if_nothing_had_happened(h: Harness, *, but: tuple[str, ...] = ()) -> None:
    assert h.scheduler.is_idle
    assert h.finishes.keys() == h.requests.keys() | h.score_requests.keys()
    for rid in h.score_requests:
        if rid not in but:
            h.assert_scores(rid)
    for rid, request in h.requests.items():
        if rid in but:
            continue
        if not rid.startswith("bound"):
            h.assert_output(rid)
            continue
        tokens, reason, early = expected_constrained(
            request.tokens(0).tolist(), request.sampling, h.max_len, int(rid.removeprefix("bound"))
        )
        assert (h.outputs[rid], h.finishes[rid].reason, h.finishes[rid].forced_close) == (tokens, reason, early)
    if "scored" in h.requests:
        assert len(h.prompt_logprobs["scored"].token_logprobs) // 4 == len(PROMPT) + 1


@DEPTHS
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("chunk", [3, 1000])
def test_every_kind_of_request_goes_on(depth: int, page_size: int, chunk: int) -> None:
    for turns in range(1, 14):
        h = Harness(
            num_slots=512, depth=depth, page_size=page_size, chunked_prefill_size=chunk, max_running_requests=16
        )
        _fill(h)
        for _ in range(turns):
            h.turn()
        h.submit()
        h.kill()
        h.restart()
        h.drain()
        _assert_as_if_nothing_had_happened(h)
        assert h.scheduler.counters.runner_restarts == 1
        assert h.scheduler.counters.cache_resets == {"runner_restarted": 1}
        assert h.scheduler.counters.retractions == 0


@DEPTHS
def test_nobody_is_blamed_for_deaths_that_it_survived(depth: int) -> None:
    h = Harness(num_slots=512, depth=depth, max_running_requests=16)
    _fill(h)
    for _ in range(5):
        for _ in range(3):
            h.turn()
        h.submit()
        h.kill()
        h.restart()
        while h.scheduler.part(Recovery).num_suspects and h.turn():
            pass
    h.drain()
    _assert_as_if_nothing_had_happened(h)
    assert max(h.deaths.values()) > 2


@DEPTHS
@pytest.mark.parametrize("chunk", [4, 1000])
def test_a_prompt_that_kills_the_runner_ends_alone(depth: int, chunk: int) -> None:
    h = Harness(num_slots=512, depth=depth, max_running_requests=16, chunked_prefill_size=chunk, deadly=[DEADLY])
    _fill(h)
    for _ in range(3):
        h.turn()
    h.add("killer", [*PROMPT, 8, DEADLY, 8, 8], max_tokens=5)
    h.add("late", [*PROMPT, 8], max_tokens=5)
    h.drain()
    _assert_as_if_nothing_had_happened(h, but=("killer",))
    error = h.finishes["killer"].error
    assert error is not None
    assert (error.code, error.status) == ("runner_killed", 500)
    assert not h.outputs["killer"]
    assert h.scheduler.counters.runner_restarts == 2
    assert [rid for rid, deaths in h.deaths.items() if deaths > 1] == ["killer"]


@DEPTHS
def test_a_sampled_token_that_kills_the_runner_ends_its_request_behind_it(depth: int) -> None:
    h = Harness(num_slots=512, depth=depth, max_running_requests=16)
    others: set[int] = {1, 2, 3, 4}
    for i in range(3):
        prompt = [20 + i, 2, 3, 4]
        h.add(f"plain{i}", prompt, max_tokens=9, ignore_eos=True)
        others.update(prompt + expected_output(prompt, h.requests[f"plain{i}"].sampling, h.max_len)[0])
    h.add("killer", [1, 2, 3, 4], max_tokens=30, ignore_eos=True)
    whole, _ = expected_output([1, 2, 3, 4], h.requests["killer"].sampling, h.max_len)
    last = next(at for at, token in enumerate(whole) if at >= 4 and token not in others and token not in whole[:at])
    h.runner.deadly = frozenset({whole[last]})
    h.drain()
    _assert_as_if_nothing_had_happened(h, but=("killer",))
    error = h.finishes["killer"].error
    assert error is not None
    assert error.code == "runner_killed"
    assert h.outputs["killer"] == whole[: last + 1]


def test_a_row_of_a_scoring_request_ends_all_of_it() -> None:
    h = Harness(num_slots=512, max_running_requests=16, deadly=[DEADLY])
    h.add("plain0", [1, 2, 3], max_tokens=9, ignore_eos=True)
    h.add_score("killer", {PROMPT: [*CHOICES, [1, DEADLY, 2]]})
    h.add_score("choices", {PROMPT: CHOICES})
    h.drain()
    _assert_as_if_nothing_had_happened(h, but=("killer",))
    error = h.finishes["killer"].error
    assert error is not None
    assert error.code == "runner_killed"


def test_two_killers_are_both_found() -> None:
    h = Harness(num_slots=512, depth=2, max_running_requests=16, deadly=[DEADLY])
    for i in range(6):
        h.add(f"{'killer' if i % 3 == 1 else 'plain'}{i}", [i + 1, 2, *[DEADLY] * (i % 3 == 1)], max_tokens=9)
    h.drain()
    _assert_as_if_nothing_had_happened(h, but=("killer1", "killer4"))
    assert h.scheduler.part(Recovery).stats(0.0)["killers"] == 2
    assert h.scheduler.counters.runner_restarts == 3
    assert [h.finishes[rid].reason for rid in ("killer1", "killer4")] == ["error", "error"]


def test_a_prompt_that_killed_the_runner_is_refused_for_a_while() -> None:
    h = Harness(num_slots=512, depth=2, max_running_requests=16, deadly=[DEADLY], request_timeout_s=1e6)
    for i in range(4):  # n = 4
        h.add(f"killer{i}", [1, 2, DEADLY, 3], max_tokens=9, seed=i)
    h.add("plain0", [1, 2, 3], max_tokens=9, ignore_eos=True)
    h.drain()
    h.add("killer4", [1, 2, DEADLY, 3])
    h.drain()
    killers = tuple(f"killer{i}" for i in range(5))
    _assert_as_if_nothing_had_happened(h, but=killers)
    for rid in killers:
        error = h.finishes[rid].error
        assert error is not None
        assert error.code == "runner_killed"
        assert ("with this prompt" in error.message) == (rid != "killer0")
    assert h.scheduler.counters.runner_restarts == 2
    assert h.scheduler.part(Recovery).stats(0.0)["killers"] == 1
    h.runner.deadly = frozenset()
    h.now += recovery.QUARANTINE_S
    h.add("cured", [1, 2, DEADLY, 3])
    h.drain()
    h.assert_output("cured")


@DEPTHS
def test_a_suspect_is_tried_alone_and_others_go_on_beside_the_trials(depth: int) -> None:
    h = Harness(num_slots=512, depth=depth, max_running_requests=16, chunked_prefill_size=5)
    for i in range(8):
        h.add(f"plain{i}", [1, 2, 3, i + 4, 5, 6, 7, 8, 9], max_tokens=40, ignore_eos=True)
    for _ in range(20):
        h.turn()
    h.submit()
    suspects = {req.rid for batch in h.inflight for req in batch.requests}
    h.kill()
    h.add("late", [4, 5, 6], max_tokens=4, ignore_eos=True)
    h.restart()
    first, cleared = len(h.batches), set()
    while h.scheduler.part(Recovery).num_suspects:
        h.now += 0.1
        h.turn()
        h.now += 0.1
        suspected = {req.rid for req in h.scheduler.waiting if h.scheduler.part(Recovery).suspects(req)}
        cleared |= suspects - suspected
    batches = [[req.rid for req in batch.requests] for batch in h.batches[first:]]
    assert len(suspects) == 8
    assert cleared == suspects
    assert "late" in batches[1], "a newcomer waits for one step of a trial"
    assert "late" in h.finishes, "and ends before all trials do"
    trials = [rids for rids in batches if len(rids) == 1 and rids[0] in suspects]
    assert {rids[0] for rids in trials} == suspects
    h.drain()
    _assert_as_if_nothing_had_happened(h)


def test_a_newcomer_that_kills_the_runner_beside_trials_is_found() -> None:
    h = Harness(num_slots=512, depth=2, max_running_requests=16, deadly=[DEADLY])
    for i in range(6):
        h.add(f"plain{i}", [1, 2, 3, i + 4], max_tokens=30, ignore_eos=True)
    for _ in range(4):
        h.turn()
    h.submit()
    h.kill()
    h.add("killer", [5, 6, DEADLY, 7], max_tokens=5)
    h.add("late", [5, 6, 8], max_tokens=9, ignore_eos=True)
    h.restart()
    h.drain()
    _assert_as_if_nothing_had_happened(h, but=("killer",))
    error = h.finishes["killer"].error
    assert error is not None
    assert error.code == "runner_killed"
    assert h.scheduler.counters.runner_restarts == 3


@DEPTHS
def test_a_trial_gets_the_row_that_it_needs(depth: int) -> None:
    h = Harness(num_slots=64, depth=depth, max_running_requests=1)
    h.add("plain0", [1, 2, 3], max_tokens=20, ignore_eos=True)
    for _ in range(5):
        h.turn()
    h.submit()
    h.kill()
    for i in range(1, 6):
        h.add(f"plain{i}", [i + 1, 2, 3], max_tokens=20, ignore_eos=True)
    h.restart()
    turns = 0
    while h.scheduler.part(Recovery).num_suspects:
        h.now += 0.1
        h.turn()
        turns += 1
    assert turns < 60
    h.drain()
    _assert_as_if_nothing_had_happened(h)


def test_an_aborted_suspect_is_not_waited_for() -> None:
    h = Harness(num_slots=512, max_running_requests=16)
    for i in range(3):
        h.add(f"plain{i}", [1, 2, 3, i + 4], max_tokens=12, ignore_eos=True)
    h.turn()
    h.submit()
    h.kill()
    h.scheduler.abort("plain0", h.now)
    h.restart()
    h.submit()
    h.scheduler.abort("plain1", h.now)
    h.drain()
    assert [h.finishes[f"plain{i}"].reason for i in range(3)] == ["abort", "abort", "length"]
    h.assert_output("plain2")
    assert h.scheduler.part(Recovery).num_suspects == 0


def test_without_a_runner_all_but_steps_goes_on() -> None:
    h = Harness(num_slots=512, max_running_requests=16)
    h.add("plain0", [1, 2, 3], max_tokens=12, ignore_eos=True)
    h.add("slow", [1, 2, 3, 4], max_tokens=12, timeout_s=5.0)
    h.add("bound1", [1, 2, 3, 4], max_tokens=30, ignore_eos=True, grammar=ScriptedGrammar(1), timeout_s=5.0)
    for _ in range(4):
        h.turn()
    h.submit()
    h.kill()
    h.add("plain1", [1, 2, 3, 4, 5], max_tokens=3)
    h.add("unwanted", [1, 2], max_tokens=3)
    h.scheduler.abort("unwanted", h.now)
    h.scheduler.flush_cache()
    h.now += 6.0
    assert not h.turn()
    h.take()
    assert (h.finishes["slow"].reason, h.finishes["slow"].error) == ("timeout", None)
    assert h.finishes["bound1"].forced_close, "the output so far is closed into a valid one"
    assert h.finishes["unwanted"].reason == "abort"
    h.kill()  # while it starts
    h.restart()
    h.drain()
    h.assert_output("plain0")
    h.assert_output("plain1")


def test_what_the_new_runner_samples_with_is_what_the_old_one_did() -> None:
    h = Harness(num_slots=512, depth=2)
    h.add("drawn", [1, 2, 3], temperature=0.7, seed=77, max_tokens=20, ignore_eos=True, repetition_penalty=1.2)
    h.add("unseeded", [1, 2, 4], temperature=0.7, max_tokens=20, ignore_eos=True)
    for _ in range(6):
        h.turn()
    before = {row.req_pool_idx: row for step in h.steps for row in step.sampling_rows}
    seeds = {req.rid: before[req.kv.req_pool_idx].seed for req in h.scheduler.active}
    known = {req.rid: req.known_ids.tolist() for req in h.scheduler.active}
    h.kill()
    h.restart()
    first = len(h.batches)
    h.drain()
    for batch in h.batches[first : first + 2]:
        (row,), (req,) = batch.step.sampling_rows, batch.requests
        assert row.seed == seeds[req.rid]
        assert unpack_i32(batch.step.seq_lens).tolist() == [len(known[req.rid])], "the position of the random number"
        if req.rid == "drawn":
            assert row.seed == 77
            assert unpack_i32(row.prompt_ids).tolist() + unpack_i32(row.output_ids).tolist() == known[req.rid]
