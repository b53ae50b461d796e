"""States of recurrent layers: which tokens are computed, and that every row reads the state of exactly its prefix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixrt.messages.parts import ProgramHint
from radixrt.messages.sections import STATES
from radixrt.messages.wire import unpack_i32
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.parts.states.row_states import states_of
from radixrt.scheduler.schedule_batch import DECODE
from tests.scheduler.fake_runner import VOCAB, Harness
from tests.scheduler.scripted_grammar import ScriptedGrammar
from tests.step_sections import states_in


def make(**options: Any) -> Harness:
    return Harness(**{"num_slots": 4096, "max_context": 2048, "num_states": 42, "max_running_requests": 10, **options})


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCAB, count).tolist()


def computed(h: Harness, *prompts: list[int], **fields: Any) -> int:
    """Number of prompt tokens that are computed for the prompts, sent one after another, each sampling one token."""
    before = h.runner.tokens_computed
    for prompt in prompts:
        run(h, prompt, **{"max_tokens": 1, **fields})
    return h.runner.tokens_computed - before


def run(h: Harness, prompt: list[int], **fields: Any) -> list[int]:
    """Serve a request to its end; returns its output."""
    rid = f"r{len(h.requests)}"
    h.add(rid, prompt, ignore_eos=True, **fields)
    h.drain()
    h.assert_output(rid)
    return h.outputs[rid]


PREFIX = tokens(0, 300)
BRANCHES = [[1 + i, *tokens(1 + i, 49)] for i in range(8)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunk", [1024, 64, 7])
def test_branches_that_arrive_together_compute_their_prefix_once(depth: int, chunk: int) -> None:
    h = make(depth=depth, chunked_prefill_size=chunk)
    for i, branch in enumerate(BRANCHES):
        h.add(f"b{i}", PREFIX + branch, max_tokens=1)
    h.drain()
    for i in range(8):
        h.assert_output(f"b{i}")
    assert h.runner.tokens_computed == 300 + 8 * 50
    assert sum(usage.cached_tokens for usage in h.usages.values()) == 7 * 300


def test_branches_of_a_hinted_fork_compute_their_prefix_once() -> None:
    h = make()
    hint = ProgramHint("p", fork_len=300, siblings=8)
    assert computed(h, *(PREFIX + branch for branch in BRANCHES), program=hint) == 300 + 8 * 50


@pytest.mark.parametrize("depth", [1, 2])
def test_states_inside_a_prompt_cost_no_step(depth: int) -> None:
    h = make(depth=depth)
    run(h, PREFIX + BRANCHES[0], max_tokens=1, program=ProgramHint("p", fork_len=300, siblings=8))
    assert h.scheduler.counters.extend_steps == 1
    assert cuts_of(h) == [(0, 300), (0, 349)]
    assert computed(h, PREFIX + BRANCHES[0], PREFIX + BRANCHES[1]) == 1 + 50


def test_replayed_tokens_and_new_ones_are_one_chunk() -> None:
    """The second branch leaves the state where the first one's keys end, and that before its own last token."""
    h = make()
    computed(h, PREFIX + BRANCHES[0], PREFIX + BRANCHES[1])
    assert h.scheduler.counters.extend_steps == 2
    assert cuts_of(h)[1:] == [(0, 300), (0, 349)]
    assert replayed(h) == 300


def test_a_chunk_ends_where_there_is_no_slot_for_a_second_state() -> None:
    """One slot: the request needs it for itself. Two: one of them is for the state that saves most."""
    one = make(num_states=2 + 1)
    computed(one, *[PREFIX] * 3)
    assert one.scheduler.counters.extend_steps == 2 * 3
    assert one.runner.tokens_computed == 3 * 300
    assert cuts_of(one) == []
    two = make(num_states=2 + 2, max_running_requests=1)
    assert computed(two, *[PREFIX] * 3) == 300 + 2
    assert computed(two, tokens(1, 64)) == 64
    assert cuts_of(two) == [(0, 299)], "64 tokens are not worth the state of 299"
    assert computed(two, PREFIX) == 1


def cuts_of(h: Harness) -> list[tuple[int, int]]:
    """Rows and lengths of the states that chunks have left inside."""
    found = []
    for step in h.steps:
        before = unpack_i32(step.seq_lens) - (unpack_i32(step.extend_lens) if step.extend_lens else 1)
        found += [
            (row, int(before[row]) + count)
            for row, count, _ in unpack_i32(states_in(step).cuts).reshape(-1, 3).tolist()
        ]
    return found


def test_without_a_hint_the_second_branch_leaves_the_state_for_all_later_ones() -> None:
    h = make()
    prompts = [PREFIX + branch for branch in BRANCHES]
    assert computed(h, *prompts) == 2 * 300 + 8 * 50
    assert h.usages["r2"].cached_tokens == 300


def test_a_long_prompt_leaves_states_where_its_chunks_end_while_slots_are_free() -> None:
    h = make(chunked_prefill_size=600)
    long = tokens(20, 1500)
    assert computed(h, long, [*long[:1300], 1, *tokens(21, 99)]) == 1500 + 1400 - 1200


def test_states_that_nobody_asked_for_displace_no_others() -> None:
    h = make(chunked_prefill_size=600, num_states=2 + 3, max_running_requests=1)
    assert computed(h, PREFIX, tokens(20, 1500), PREFIX) == 300 + 1500 + 1


def test_a_flush_drops_the_states_of_running_requests_too() -> None:
    h = make()
    h.add("r", PREFIX, max_tokens=20, ignore_eos=True)
    for _ in range(4):
        h.turn()
    assert len(h.scheduler.kv.states.nodes) == 1
    h.scheduler.flush_cache()
    assert len(h.scheduler.kv.states.nodes) == 0
    h.drain()
    h.assert_output("r")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_retracted_request_goes_on_from_a_state_of_its_own(depth: int) -> None:
    h = make(num_slots=260, depth=depth, schedule_conservativeness=0.0)
    for i in range(3):
        h.add(f"r{i}", tokens(i, 60), max_tokens=40, ignore_eos=True)
    h.drain()
    for i in range(3):
        h.assert_output(f"r{i}")
    assert h.scheduler.counters.retractions
    # The others take the slots of what it had sampled, but it need not compute its prompt again.
    assert h.runner.tokens_computed < 3 * 100 + 40


def test_states_are_lost_with_the_runner_and_nothing_else_is() -> None:
    h = make(depth=2)
    for i in range(3):
        h.add(f"r{i}", PREFIX + BRANCHES[i], max_tokens=20, ignore_eos=True)
    for _ in range(8):
        h.turn()
    h.kill()
    assert h.scheduler.kv.states.slots.available() == 40
    h.restart()
    h.drain()
    for i in range(3):
        h.assert_output(f"r{i}")


def test_a_pool_for_fewer_states_than_rows_runs_fewer_requests() -> None:
    h = make(num_states=2 + 3)
    for i in range(8):
        h.add(f"r{i}", tokens(i, 50 + i), max_tokens=20, ignore_eos=True)
    while h.turn():
        assert len(h.scheduler.active) <= 3
    for i in range(8):
        h.assert_output(f"r{i}")


def test_the_usage_says_what_was_matched_and_what_was_missing() -> None:
    h = make()
    computed(h, *(PREFIX + branch for branch in BRANCHES[:3]))
    assert [(u.matched_tokens, u.cached_tokens) for u in h.usages.values()] == [(0, 0), (300, 0), (300, 300)]
    stats = h.scheduler.kv.states.stats(h.scheduler.counters.recomputed_tokens)
    assert stats.recomputed_tokens == 300
    assert (stats.total, stats.free + stats.cached, stats.evicted) == (40, 40, 0)


def test_many_partings_do_not_cut_a_prompt_into_small_pieces() -> None:
    h = make(max_running_requests=2)
    long = tokens(3, 1900)
    h.add("long", long, max_tokens=1)
    for i in range(40):
        h.add(f"r{i}", [*long[: 40 * (i + 1)], VOCAB - 1, *tokens(i, 9)], max_tokens=1)
    h.submit()
    assert len(states_of(h.scheduler.active[0]).cuts) <= 8
    h.drain()
    for i in range(40):
        h.assert_output(f"r{i}")


def test_a_branch_that_arrives_while_the_first_one_is_computed_waits_for_it() -> None:
    h = make(chunked_prefill_size=90)
    h.add("first", PREFIX + BRANCHES[0], max_tokens=1)
    h.turn()
    h.add("second", PREFIX + BRANCHES[1], max_tokens=1)
    h.drain()
    assert h.runner.tokens_computed == 300 + 2 * 50
    h.assert_output("second")


@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_prompt_again_computes_its_last_token_only(depth: int) -> None:
    h = make(depth=depth)
    assert computed(h, *[PREFIX] * 5) == 300 + 4
    together = make(depth=depth)
    for i in range(5):
        together.add(f"r{i}", PREFIX, max_tokens=1)
    together.drain()
    assert together.runner.tokens_computed == 300 + 4


@pytest.mark.parametrize("depth", [1, 2])
def test_a_chat_turn_computes_its_new_tokens_only(depth: int) -> None:
    h = make(depth=depth)
    prompt = PREFIX
    for turn in range(4):
        before = h.runner.tokens_computed
        answer = run(h, prompt, max_tokens=40)
        fresh = 300 if turn == 0 else 50
        # With one step in flight the last token of the answer before this turn was not computed.
        assert h.runner.tokens_computed - before <= fresh + 40
        assert h.usages[f"r{turn}"].cached_tokens >= len(prompt) - fresh - (turn > 0)
        prompt = prompt + answer + tokens(10 + turn, 50)


def test_a_turn_whose_generation_prompt_is_rendered_differently_later_is_continued_from_its_end() -> None:
    h = make()
    header, reasoning = [7, 8, 9], [11, 12]
    prompt = PREFIX
    before = h.runner.tokens_computed
    answer = run(h, prompt + header + reasoning, max_tokens=10, turn_len=len(prompt))
    prompt = prompt + header + answer[4:] + tokens(5, 50)
    run(h, prompt + header + reasoning, max_tokens=1, turn_len=len(prompt))
    assert h.usages["r1"].cached_tokens == 300
    assert h.runner.tokens_computed - before <= 300 + 5 + 10 + 3 + 6 + 50 + 5


def test_scored_choices_share_the_state_behind_their_prefix() -> None:
    h = make()
    choices = [[1 + i, *tokens(i, 9)] for i in range(6)]
    for _ in range(2):
        before = h.runner.tokens_computed
        h.add_score(f"s{before}", {tuple(PREFIX): choices})
        h.drain()
        h.assert_scores(f"s{before}")
        # The state is behind the token before the prefix's last one, which each row computes: a choice's first token
        # is scored there.
        assert h.runner.tokens_computed - before <= (300 if before == 0 else 1) + 6 * 9 + 5
    assert len(h.scheduler.kv.states.nodes) == 1  # nothing goes on from a choice


def test_embedded_texts_share_the_state_of_their_prefix() -> None:
    h = make()
    h.add_embed("e", [PREFIX + branch for branch in BRANCHES], "last")
    h.drain()
    h.assert_embeddings("e")
    assert h.runner.tokens_computed == 300 + 8 * 50
    h.add_embed("m", [PREFIX + branch for branch in BRANCHES], "mean")
    h.drain()
    h.assert_embeddings("m")


def jumping(num_states: int, rows: int = 16, depth: int = 2) -> Harness:
    """Requests whose grammars force tokens now and then, each time in place of the token before them."""
    h = make(num_states=num_states, depth=depth, max_running_requests=rows)
    for i in range(6):
        grammar = ScriptedGrammar(i, heals=True)
        h.add(f"r{i}", tokens(i, 100), max_tokens=40, ignore_eos=True, grammar=grammar)
    # Beside constrained rows alone no step would be submitted before the tokens of the last one are known.
    h.add("free", tokens(9, 40), max_tokens=80, ignore_eos=True)
    h.drain()
    h.assert_output("free")
    return h


def replayed(h: Harness) -> int:
    return sum(int(np.count_nonzero(unpack_i32(step.out_cache_loc) == 0)) for step in h.steps)


def test_a_token_that_is_taken_back_costs_nothing_while_there_are_spare_slots() -> None:
    plain, spare, none = jumping(0), jumping(2 + 16 + 6), jumping(2 + 16)
    assert plain.outputs == spare.outputs == none.outputs
    assert plain.scheduler.part(Constraints).stats(0.0)["forced_tokens"] > 20
    assert replayed(spare) == 0
    # Without a spare slot a request goes on from the state behind its prompt of 100 tokens, not from the beginning.
    assert replayed(none) > 0
    assert max(max(unpack_i32(step.extend_lens), default=0) for step in none.steps[1:]) < 100
    one_step = jumping(2 + 16 + 6, depth=1)
    assert replayed(one_step) == 0
    decodes = [step for step in one_step.steps if step.mode == DECODE]
    assert all(states_in(step).src == states_in(step).dst for step in decodes), (
        "a spare slot, though all tokens are known"
    )


def test_a_token_is_taken_back_though_there_is_a_slot_for_no_more_than_the_rows() -> None:
    assert jumping(2 + 7, rows=7).outputs == jumping(0, rows=7).outputs


def test_spare_slots_are_not_those_that_another_request_needs() -> None:
    h = make(num_states=2 + 2, max_running_requests=2, depth=2)
    h.add("jumps", tokens(0, 40), max_tokens=60, ignore_eos=True, grammar=ScriptedGrammar(8))
    for _ in range(4):
        h.turn()
    h.add("plain", tokens(1, 40), max_tokens=5, ignore_eos=True)
    while "plain" not in h.finishes:
        h.turn()
    assert "jumps" not in h.finishes
    h.drain()
    h.assert_output("plain")


def test_a_model_without_states_sends_no_columns_of_them() -> None:
    h = make(num_states=0)
    run(h, PREFIX)
    assert all(STATES not in step.sections for step in h.steps)


def test_with_the_cache_off_every_request_has_one_slot() -> None:
    h = make(cache=False, num_states=3, max_running_requests=4)
    for i in range(5):
        h.add(f"r{i}", PREFIX[: 40 + i])
    h.drain()
    for i in range(5):
        h.assert_output(f"r{i}")
    assert all(slot == 2 for step in h.steps for slot in unpack_i32(states_in(step).dst))
