"""One behaviour of the scheduler at a time, over the fake runner."""

from __future__ import annotations

import numpy as np
import pytest

from radixrt.constrained.grammar import Bitmask, Grammar, bitmask_words
from radixrt.constraint import StructuredOptions
from radixrt.messages.sections import READS, ReadSection, decode
from radixrt.messages.wire import unpack_i32
from radixrt.scheduler.queue_order import arrange
from radixrt.scheduler.schedule_batch import DECODE, EXTEND
from tests.scheduler.fake_runner import VOCAB, Harness, deltas_of, expected_output


def lens(step) -> list[int]:
    return unpack_i32(step.extend_lens).tolist()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("page_size", [1, 4])
def test_many_requests_get_exactly_their_tokens(depth, page_size):
    h = Harness(num_slots=400, depth=depth, page_size=page_size, chunked_prefill_size=7)
    for i in range(20):
        h.add(f"r{i}", [1, 2, 3, 4, 5, 6, i + 1, i + 2], max_tokens=1 + i % 7)
    h.drain()
    for i in range(20):
        h.assert_output(f"r{i}")


def test_second_turn_reuses_the_whole_first_one():
    h = Harness(num_slots=200, max_context=100)
    prompt = list(range(1, 30))
    h.add("first", prompt, max_tokens=8, ignore_eos=True)
    h.drain()
    history = prompt + h.outputs["first"]
    h.add("second", [*history, 7, 8, 9], max_tokens=2, ignore_eos=True)
    h.drain()
    # All of it but the last output token, whose keys nobody had computed.
    assert h.usages["second"].cached_tokens == len(history) - 1
    h.assert_output("second")


def test_a_fully_cached_prompt_still_computes_its_last_token():
    h = Harness()
    h.add("a", [1, 2, 3, 4, 5])
    h.drain()
    h.add("b", [1, 2, 3, 4, 5])
    h.drain()
    assert h.usages["b"].cached_tokens == 4
    h.assert_output("b")


def test_cached_tokens_come_in_whole_pages():
    h = Harness(page_size=4)
    h.add("a", list(range(1, 12)))
    h.drain()
    h.add("b", list(range(1, 12)))
    h.drain()
    assert h.usages["b"].cached_tokens == 8


def test_salts_share_nothing():
    h = Harness()
    prompt = list(range(1, 20))
    for rid, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        h.add(rid, prompt, cache_salt=salt)
        h.drain()
    assert [h.usages[r].cached_tokens for r in "abc"] == [0, 0, 18]


def test_decode_rows_ride_along_with_a_chunked_prefill():
    h = Harness(num_slots=400, max_context=300, chunked_prefill_size=16)
    h.add("short", [1, 2, 3], max_tokens=20, ignore_eos=True)
    h.turn()
    h.add("long", [4] * 100, max_tokens=1)
    h.turn()
    step = h.steps[-1]
    assert step.mode == EXTEND
    assert lens(step) == [16, 1]
    assert unpack_i32(step.input_ids)[-1] == -1
    assert list(step.samples) == [0, 1]
    h.drain()
    assert max(sum(lens(s)) for s in h.steps if s.mode == EXTEND) <= 17
    h.assert_output("short")
    h.assert_output("long")


def test_a_waiter_does_not_compute_what_an_earlier_one_is_computing():
    h = Harness(num_slots=800, max_context=300, chunked_prefill_size=64, max_running_requests=8)
    shared = [1 + i % 40 for i in range(256)]
    for i in range(6):
        h.add(f"r{i}", [*shared, 41 + i], max_tokens=1)
    h.drain()
    assert h.runner.tokens_computed == 256 + 6
    for i in range(6):
        h.assert_output(f"r{i}")


def test_without_a_cache_nobody_waits_for_another():
    h = Harness(num_slots=800, max_context=300, cache=False, max_running_requests=8)
    for i in range(4):
        h.add(f"r{i}", [*[1] * 100, 41 + i], max_tokens=1)
    h.turn()
    assert lens(h.steps[0]) == [101] * 4


def test_token_budget_and_request_budget():
    h = Harness(num_slots=400, max_context=100, chunked_prefill_size=50, max_running_requests=3)
    for i in range(6):
        h.add(f"r{i}", [i + 1] * 20, max_tokens=3)
    h.turn()
    assert lens(h.steps[0]) == [20, 20, 10]
    assert len(h.scheduler.active) == 3
    h.drain()
    assert all(len(unpack_i32(s.req_pool_idx)) <= 3 for s in h.steps)


@pytest.mark.parametrize("depth", [1, 2])
def test_retraction_under_memory_pressure_changes_no_token(depth):
    h = Harness(num_slots=64, max_context=60, depth=depth, schedule_conservativeness=0.0)
    for i in range(4):
        h.add(f"r{i}", [i + 1] * 8, max_tokens=40, ignore_eos=True)
    h.drain()
    assert h.scheduler.counters.retractions > 0
    for i in range(4):
        h.assert_output(f"r{i}")
        assert h.usages[f"r{i}"].cached_tokens == 0, "a re-admission is not a hit"


def test_eviction_makes_room():
    h = Harness(num_slots=40, max_context=40)
    for i in range(6):
        h.add(f"r{i}", [i + 1] * 20, max_tokens=3)
        h.drain()
        h.assert_output(f"r{i}")
    assert h.cache.evicted_tokens > 0


def test_a_request_alone_may_fill_the_pool():
    h = Harness(num_slots=32, max_context=64)
    h.add("r", [1] * 10, max_tokens=None, ignore_eos=True)
    h.drain()
    assert len(h.outputs["r"]) == 22
    assert h.finishes["r"].reason == "length"


def test_stop_tokens_and_eos():
    prompt = next([p] * 3 for p in range(1, VOCAB) if len(set(_free_run(p))) > 3)
    run = _free_run(prompt[0])
    stop = run[2]
    h = Harness()
    h.add("r", prompt, max_tokens=10, ignore_eos=True, stop_token_ids=(stop,))
    h.drain()
    assert h.outputs["r"] == run[: run.index(stop) + 1]
    assert h.finishes["r"].matched == stop


def _free_run(token: int) -> list[int]:
    from radixrt.sampling_params import SamplingParams

    return expected_output([token] * 3, SamplingParams(max_tokens=10, ignore_eos=True), 64)[0]


def test_priority_goes_first_and_fcfs_keeps_the_order():
    h = Harness(num_slots=400, max_running_requests=1, schedule_policy="fcfs")
    for rid, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        h.add(rid, [1, 2, 3], max_tokens=1, priority=priority)
    h.drain()
    assert list(h.finishes) == ["b", "d", "a", "c"]


def test_longest_prefix_match_goes_first_but_not_for_ever():
    h = Harness(num_slots=400, max_running_requests=1, schedule_policy="lpm")
    h.add("warm", list(range(1, 40)), max_tokens=1)
    h.drain()
    h.add("cold", [40] * 10, max_tokens=1)
    h.add("hot", [*range(1, 40), 30], max_tokens=1)
    h.drain()
    assert list(h.finishes) == ["warm", "hot", "cold"]
    h.add("cold2", [41] * 10, max_tokens=1)
    h.now += 11
    h.add("hot2", [*range(1, 40), 31], max_tokens=1)
    h.drain()
    assert list(h.finishes)[-2:] == ["cold2", "hot2"]


def test_a_few_cached_tokens_more_do_not_change_the_order_of_arrival():
    h = Harness(num_slots=400, max_running_requests=1, schedule_policy="lpm")
    h.add("warm", list(range(1, 40)), max_tokens=1)
    h.drain()
    h.add("first", [*range(1, 35), 40, 40], max_tokens=1)
    h.add("second", [*range(1, 39), 41, 41], max_tokens=1)
    h.drain()
    assert list(h.finishes) == ["warm", "first", "second"]


def test_dfs_weight_takes_the_heaviest_subtree_together():
    h = Harness(num_slots=400, max_running_requests=1)
    for rid, root in (("x", 1), ("y", 2)):
        h.add(rid, [root] * 10, max_tokens=1)
        h.drain()
    for i, root in enumerate([1, 2, 1, 2, 2]):
        h.add(f"{root}-{i}", [*[root] * 10, 20 + i], max_tokens=1)
    waiting = h.scheduler.waiting
    assert [r.rid[0] for r in arrange("dfs-weight", waiting, h.scheduler.kv, h.now)] == ["2", "2", "2", "1", "1"]


def test_queue_limit():
    h = Harness(max_queued_requests=2)
    for i in range(4):
        h.add(f"r{i}", [1, 2, 3])
    h.take()
    assert set(h.finishes) == {"r2", "r3"}
    assert h.finishes["r2"].error.status == 429
    h.drain()
    h.assert_output("r0")


def test_deadline_ends_a_request_wherever_it_is():
    h = Harness(num_slots=400, max_running_requests=1)
    h.add("running", [1] * 5, max_tokens=None, ignore_eos=True, timeout_s=5.0)
    h.add("waiting", [2] * 5, timeout_s=5.0)
    h.turn()
    h.now = 6.0
    h.drain()
    assert (h.finishes["running"].reason, h.finishes["running"].error) == ("timeout", None)
    assert len(h.outputs["running"]) >= 1  # the answer is the output so far
    error = h.finishes["waiting"].error
    assert (error.code, error.status) == ("timeout", 408)
    for name in ("after 6.0 s", "timeout", "--request-timeout-s", "max_tokens"):
        assert name in error.message


def test_a_retracted_request_ends_at_its_deadline_with_its_output():
    h = Harness(num_slots=40, max_context=40, schedule_conservativeness=0.0)
    for rid in "ab":
        h.add(rid, [ord(rid) % 30, 2, 3, 4, 5], max_tokens=None, ignore_eos=True, timeout_s=5.0)
    for _ in range(60):
        if any(req.stats.retractions for req in h.scheduler.waiting):
            break
        h.turn()
    (waiting,) = [req.rid for req in h.scheduler.waiting]
    output = h.outputs[waiting][:]
    h.now = 6.0
    h.drain()
    assert h.finishes[waiting].reason == "timeout"
    assert h.outputs[waiting] == output


def test_prompts_that_cannot_fit_are_refused():
    h = Harness(num_slots=32, max_context=64)
    h.add("long", [1] * 32)
    h.add("empty", [])
    h.drain()
    assert {r: f.error.code for r, f in h.finishes.items()} == dict.fromkeys(
        ("long", "empty"), "context_length_exceeded"
    )


def test_a_live_rid_cannot_be_used_twice():
    h = Harness()
    h.add("r", [1, 2, 3], max_tokens=3)
    h.scheduler.intake.add(h.requests["r"], h.now)
    deltas = deltas_of(h.scheduler.take_deltas())
    assert deltas[0].finish.error.param == "rid"
    h.drain()
    h.assert_output("r")


def test_a_failed_step_ends_its_requests_and_recomputes_the_others():
    h = Harness(num_slots=400, depth=2, max_running_requests=2, chunked_prefill_size=4)
    h.add("victim", [1] * 4, max_tokens=9, ignore_eos=True)
    h.submit()
    h.add("other", [2] * 4, max_tokens=9, ignore_eos=True)
    h.submit()
    h.fail()
    h.drain()
    assert "boom" in h.finishes["victim"].error.message
    h.assert_output("other")


def test_prompt_logprobs_cover_the_whole_prompt_and_use_no_cache():
    h = Harness(num_slots=400, chunked_prefill_size=8)
    prompt = [1 + i % 5 for i in range(20)]
    h.add("warm", prompt)
    h.drain()
    h.add("r", prompt, prompt_logprobs=0, max_tokens=0)
    before = len(h.steps)
    h.drain()
    sections = [decode(step.sections, READS, ReadSection) for step in h.steps[before:]]
    assert np.concatenate([unpack_i32(section.targets) for section in sections]).tolist() == prompt[1:]
    assert h.outputs["r"] == []
    assert h.usages["r"].cached_tokens == 0
    assert h.finishes["r"].reason == "length"


NO_JUMPS = StructuredOptions(jump_forward=False)


class FixedSequence(Grammar):
    """Allows one sequence of tokens and nothing else."""

    def __init__(self, tokens: list[int], vocab_size: int = VOCAB) -> None:
        self.tokens = tokens
        self.vocab_size = vocab_size
        self.at = 0

    def mask(self) -> Bitmask:
        row = np.zeros(bitmask_words(self.vocab_size), np.uint32)
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            row[token // 32] = 1 << (token % 32)
        return row

    def accept(self, token: int) -> bool:
        if self.at >= len(self.tokens) or self.tokens[self.at] != token:
            return False
        self.at += 1
        return True

    def is_terminated(self) -> bool:
        return self.at == len(self.tokens)

    def rollback(self, num_tokens: int) -> None:
        self.at -= num_tokens

    def forced_continuation(self) -> list[int]:
        return self.tokens[self.at :]

    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        return None

    def fits(self, token: int, remaining: int) -> bool:
        return len(self.tokens) - self.at - 1 <= remaining

    def closing(self) -> list[int]:
        return self.tokens[self.at :]


@pytest.mark.parametrize("depth", [1, 2])
def test_grammar_masks_follow_the_tokens(depth):
    h = Harness(depth=depth)
    run = _free_run(1)[:5]
    h.add("free", [2, 2, 2], max_tokens=6, ignore_eos=True)
    h.add("bound", [1, 1, 1], max_tokens=9, ignore_eos=True, structured=NO_JUMPS, grammar=FixedSequence(run))
    h.drain()
    assert h.outputs["bound"] == run
    assert h.finishes["bound"].reason == "stop"
    h.assert_output("free")
    masks = [np.frombuffer(h.runner.masks[b.step_id].bits, np.uint32) for b in h.batches if b.masked_rows]
    allowed = [[t for t in range(VOCAB) if m[t // 32] >> (t % 32) & 1] for m in masks[:5]]
    assert allowed == [[t] for t in run]


def test_a_token_outside_the_grammar_ends_that_request_alone():
    h = Harness()
    h.add("free", [2, 2, 2], max_tokens=6, ignore_eos=True)
    grammar = FixedSequence([(_free_run(1)[0] + 1) % VOCAB])
    grammar.mask = lambda: np.full(bitmask_words(VOCAB), 0xFFFFFFFF, np.uint32)
    h.add("bound", [1, 1, 1], max_tokens=9, structured=NO_JUMPS, grammar=grammar)
    h.drain()
    assert "grammar" in h.finishes["bound"].error.message
    h.assert_output("free")


def test_decode_steps_carry_no_tokens():
    h = Harness()
    h.add("r", [1, 2, 3], max_tokens=5, ignore_eos=True)
    h.drain()
    decode = [s for s in h.steps if s.mode == DECODE]
    assert len(decode) == 4
    assert all(s.input_ids == b"" and s.extend_lens == b"" and not s.sampling_rows for s in decode)


@pytest.mark.parametrize("depth", [1, 2])
def test_times_between_tokens_and_sizes_of_steps_are_counted(depth):
    """Rows that sample in step are counted together, one that was retracted by itself: each with its own time."""
    h = Harness(num_slots=40, depth=depth)
    for i in range(4):
        h.add(f"r{i}", [i + 1, 2, 3], max_tokens=12, ignore_eos=True)
    last: dict[str, float] = {}
    seen: dict[str, int] = {}
    expected = []
    while h.turn():
        for rid, tokens in h.outputs.items():
            if len(tokens) > seen.get(rid, 0):
                if rid in last:
                    expected.append(h.now - last[rid])
                last[rid], seen[rid] = h.now, len(tokens)
        h.now += 0.02
    gaps, steps = h.scheduler.counters.token_gaps, h.scheduler.counters.step_tokens
    assert h.scheduler.counters.retractions
    assert sum(gaps.counts) == len(expected) == 4 * 11
    assert gaps.total == pytest.approx(sum(expected))
    assert sum(steps.counts) == len(h.steps)
    assert steps.total == sum(batch.num_tokens for batch in h.batches)
