"""The order of the parts, the scheduler's core without any part, and each part without the others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import radixrt.parts
from radixrt.constraint import StructuredOptions
from radixrt.messages.cache_events import CacheEvents, RequestEnded, WatchCacheReq
from radixrt.messages.parts import ProgramHint
from radixrt.messages.sections import READS, SHARING, STATES
from radixrt.messages.wire import unpack_i32
from radixrt.parts.programs.scheduler import Programs
from radixrt.parts.recovery.scheduler import Recovery
from radixrt.parts.stages.scheduler import StagePacing
from radixrt.parts.states.scheduler import HybridKVManager
from radixrt.parts.watch.scheduler import Watch
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.part import TakerPart
from tests.parts.chosen import CHOICES
from tests.scheduler.fake_runner import VOCAB, Harness
from tests.scheduler.scripted_grammar import ScriptedGrammar, expected_constrained
from tests.scheduler.test_state_machine import SchedulerMachine

ALWAYS = ["ReadsPart", "Constraints", "Programs", "Recovery", "Overload", "Tenants", "Watch"]
each_choice = pytest.mark.parametrize("choice", CHOICES)


def kinds(h: Harness) -> list[str]:
    return [type(part).__name__ for part in h.scheduler.parts.all]


def alone(choice: str, **options: object) -> Harness:
    """A harness with one choice of parts, and the pools and the depth that the parts need."""
    needs: dict[str, dict[str, object]] = {"states": {"num_states": 16}, "stages": {"stages": 2, "depth": 2}}
    return Harness(parts=CHOICES[choice], **{**needs.get(choice, {}), **options})  # type: ignore[arg-type]


# --- order ---


def test_the_order_of_the_parts() -> None:
    h = Harness(num_states=8, stages=2)
    assert kinds(h) == [*ALWAYS, "StatesPart", "Sharing"]
    assert isinstance(h.scheduler.kv, HybridKVManager)
    assert isinstance(h.scheduler.pacing, StagePacing)


def test_parts_that_a_model_does_not_need_are_left_out() -> None:
    assert kinds(Harness()) == [*ALWAYS, "Sharing"]
    h = Harness(cache=False)
    assert kinds(h) == ALWAYS, "without a tree no two rows share a prefix"
    assert type(h.scheduler.kv) is KVManager
    assert h.scheduler.pacing.stages == 1


def test_one_part_at_most_takes_sampled_tokens() -> None:
    h = Harness(num_states=8, stages=2)
    assert [part for part in h.scheduler.parts.all if isinstance(part, TakerPart)] == [h.scheduler.parts.taker]


def test_names_of_parts_differ() -> None:
    names = [part.name for part in Harness(num_states=8).scheduler.parts.all]
    assert "" not in names
    assert len(set(names)) == len(names)


def test_each_part_is_tested_alone() -> None:
    folders = {file.parent.name for file in Path(radixrt.parts.__file__).parent.glob("*/scheduler.py")}
    assert folders == CHOICES.keys() - {"none"}


# --- no part, and each part alone ---


@each_choice
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunk", [3, 1000])
def test_greedy_generation(choice: str, depth: int, chunk: int) -> None:
    h = alone(choice, depth=depth, num_slots=96, chunked_prefill_size=chunk)
    rids = [f"r{i}" for i in range(6)]
    for i, rid in enumerate(rids):
        h.add(rid, [1, 2, 3, 4, 5, 6, 7, 8, 9 + i % 3, 10 + i], max_tokens=8, ignore_eos=True)
    h.drain()
    for rid in rids:
        h.assert_output(rid)
    assert h.scheduler.is_idle


@each_choice
def test_random_events(choice: str) -> None:
    class Machine(SchedulerMachine):
        parts = CHOICES[choice]

    run_state_machine_as_test(Machine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None))


def test_steps_without_parts_have_no_section() -> None:
    h = alone("none")
    h.add("a", [1, 2, 3, 4, 5])
    h.add("b", [1, 2, 3, 4, 6])
    h.drain()
    assert h.steps
    assert {tuple(step.sections) for step in h.steps} == {()}
    assert not any(batch.masked_rows for batch in h.batches)
    moments = vars(h.scheduler.parts)
    assert {name: found for name, found in moments.items() if isinstance(found, tuple) and found} == {}


def test_reads_alone_serve_scores_embeddings_and_values_of_prompts() -> None:
    h = alone("reads")
    h.add_score("scores", {(1, 2, 3): [[4, 5], [4, 6], [7]]})
    h.add_embed("mean", [[1, 2, 3, 9], [8]], "mean")
    h.add("values", [1, 2, 3, 5], prompt_logprobs=0, return_hidden_states="prompt")
    h.drain()
    h.assert_scores("scores")
    h.assert_embeddings("mean")
    h.assert_output("values")
    h.assert_hidden_states("values")
    assert len(unpack_i32(h.prompt_logprobs["values"].token_logprobs)) == 3
    assert {name for step in h.steps for name in step.sections} == {READS}


@pytest.mark.parametrize("jumps", [True, False])
def test_the_constraint_alone_serves_grammars(jumps: bool) -> None:
    h = alone("constraint", num_slots=160)
    for seed in range(6):
        h.add(
            f"g{seed}",
            [1, 2, 3, 4, 5 + seed],
            max_tokens=20,
            ignore_eos=True,
            grammar=ScriptedGrammar(seed),
            structured=StructuredOptions(jump_forward=jumps),
        )
    h.drain()
    assert any(batch.masked_rows for batch in h.batches)
    for seed in range(6):
        rid = f"g{seed}"
        request = h.requests[rid]
        tokens, reason, early = expected_constrained(request.tokens(0).tolist(), request.sampling, h.max_len, seed)
        assert (h.outputs[rid], h.finishes[rid].reason, h.finishes[rid].forced_close) == (tokens, reason, early)


def test_programs_alone_keep_the_prefix_of_a_fork() -> None:
    fork = list(range(1, 33))

    def cached_of_the_last_branch(hinted: bool) -> int:
        h = alone("programs", num_slots=128)
        for i in range(2):
            if i == 1:
                for tag in range(4):
                    h.add(f"other{tag}", [40 + tag] * 50, max_tokens=1)
                    h.drain()
            hint = ProgramHint("p", f"0/{i}", fork_len=len(fork), siblings=4 - i) if hinted else None
            h.add(f"branch{i}", [*fork, 40 + i], program=hint)
            h.drain()
            h.assert_output(f"branch{i}")
        return h.usages["branch1"].cached_tokens

    assert cached_of_the_last_branch(hinted=True) == len(fork)
    assert cached_of_the_last_branch(hinted=False) == 0


def test_recovery_alone_ends_the_prompt_that_kills_the_runner() -> None:
    deadly = VOCAB
    h = alone("recovery", deadly=[deadly])
    for rid, last in (("a", 4), ("killer", deadly), ("b", 5)):
        h.add(rid, [1, 2, 3, last], ignore_eos=True)
    h.drain()
    h.assert_output("a")
    h.assert_output("b")
    error = h.finishes["killer"].error
    assert error is not None
    assert error.code == "runner_killed"
    assert h.scheduler.part(Recovery).stats(0.0)["killers"] == 1


def test_overload_alone_bounds_the_queue() -> None:
    h = alone("overload", max_running_requests=1, max_queued_requests=2, max_queue_wait_s=math.inf)
    for i in range(5):
        h.add(f"r{i}", [1, 2, 3 + i])
    h.drain()
    refused = {rid: finish.error.code for rid, finish in h.finishes.items() if finish.error is not None}
    assert refused == dict.fromkeys(("r2", "r3", "r4"), "queue_full")
    h.assert_output("r0")
    h.assert_output("r1")


def test_watching_sees_requests_end() -> None:
    h = alone("watch")
    watch = h.scheduler.part(Watch)
    assert list(watch.turn(h.now)) == [], "nobody watches yet"
    list(watch.handles()[WatchCacheReq](WatchCacheReq(True, requests=True), h.now))
    h.add("r", [1, 2, 3])
    h.drain()
    h.now += 1.0
    events = [event for message in watch.turn(h.now) if isinstance(message, CacheEvents) for event in message.events]
    assert [event.rid for event in events if isinstance(event, RequestEnded)] == ["r"]


def test_states_alone_give_each_step_its_state_slots() -> None:
    h = alone("states")
    h.add("a", [1, 2, 3, 4], ignore_eos=True)
    h.drain()
    h.add("b", [1, 2, 3, 4, 5], ignore_eos=True)
    h.drain()
    h.assert_output("a")
    h.assert_output("b")
    assert {tuple(step.sections) for step in h.steps} == {(STATES,)}


def test_sharing_alone_finds_the_prefix_of_two_rows() -> None:
    h = alone("sharing")
    for rid, last in (("a", 7), ("b", 8)):
        h.add(rid, [1, 2, 3, 4, 5, last], max_tokens=6, ignore_eos=True)
    h.drain()
    h.assert_output("a")
    h.assert_output("b")
    assert {name for step in h.steps for name in step.sections} == {SHARING}


def test_stages_alone_split_the_rows_of_a_step() -> None:
    h = alone("stages", max_running_requests=4)
    for i in range(4):
        h.add(f"r{i}", [1, 2, 3 + i], max_tokens=8, ignore_eos=True)
    h.drain()
    for i in range(4):
        h.assert_output(f"r{i}")
    decode = [step for step in h.steps if not step.samples]
    assert decode
    assert max(len(unpack_i32(step.req_pool_idx)) for step in decode) == 2
    assert all(step.input_ids for step in decode), "each row carries the id of its last token"


def test_a_missing_part_is_an_error_that_names_it() -> None:
    with pytest.raises(KeyError, match="Programs"):
        alone("none").scheduler.part(Programs)
