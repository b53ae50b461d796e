"""Scoring requests in the scheduler: exact for any cache state, page size, chunk size and other requests."""

from __future__ import annotations

import random

import pytest

from radixrt.messages.reads import LogprobRead
from radixrt.messages.request import Row
from radixrt.messages.wire import pack_i32, unpack_i32
from tests.requests import score_request
from tests.scheduler.fake_runner import EOS, Harness

PROMPT = (5, 6, 7, 8, 9, 10, 11)
CHOICES = [[1], [1, 2], [1, 2, 3], [1, 4], [2, 2, 2, 2], [3]]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_scores_are_those_of_the_sequences(page_size: int, depth: int, cache: bool, chunk: int) -> None:
    h = Harness(
        num_slots=128, page_size=page_size, depth=depth, cache=cache, chunked_prefill_size=chunk, max_running_requests=3
    )
    h.add_score("a", {PROMPT: CHOICES})
    h.add("other", [5, 6, 7, 1])
    h.add_score("b", {PROMPT: [[2], [4, 4]], (1,): [[2], [4, 4]]})
    h.drain()
    h.assert_scores("a")
    h.assert_scores("b")
    h.assert_output("other")
    assert h.usages["a"].completion_tokens == 0


def test_choices_of_one_token_are_one_row_of_the_prompt_alone() -> None:
    h = Harness()
    h.add_score("a", {PROMPT: [[t] for t in range(1, 40)]})
    h.drain()
    h.assert_scores("a")
    assert len(h.steps) == 1
    assert h.runner.tokens_computed == len(PROMPT)
    assert list(h.steps[0].samples) == [0]


def test_the_prefix_is_computed_once_and_all_other_rows_share_a_step() -> None:
    h = Harness(num_slots=512, max_context=128, max_running_requests=16)
    prompt = tuple(range(1, 41))
    h.add_score("a", {prompt: [[i, i] for i in range(1, 11)]})
    h.drain()
    h.assert_scores("a")
    assert len(h.steps) == 2
    assert h.runner.tokens_computed == len(prompt) + 10
    assert h.usages["a"].prompt_tokens == len(prompt) + 10


def test_a_second_request_finds_the_prompt_cached() -> None:
    h = Harness(num_slots=128)
    h.add("warm", list(PROMPT), max_tokens=1)
    h.drain()
    before = h.runner.tokens_computed
    h.add_score("a", {PROMPT: [[1], [2]]})
    h.drain()
    h.assert_scores("a")
    assert h.runner.tokens_computed - before == 1
    assert h.usages["a"].cached_tokens == len(PROMPT) - 1


def test_thousands_of_rows_take_one_place_in_the_queue() -> None:
    h = Harness(num_slots=256, max_running_requests=8, max_queued_requests=2, check=False, depth=2)
    choices = [[a, b, 1] for a in range(1, 46) for b in range(1, 46)]
    h.add_score("a", {PROMPT: choices})
    assert len(h.scheduler.waiting) == 1
    h.turn()
    h.add("other", [1, 2, 3])
    h.drain()
    h.assert_scores("a")
    h.assert_output("other")


def test_an_abort_ends_every_row() -> None:
    h = Harness(max_running_requests=3, num_slots=128)
    h.add_score("a", {PROMPT: CHOICES})
    h.submit()
    h.scheduler.abort("a", h.now)
    h.drain()
    assert h.finishes["a"].reason == "abort"
    assert "a" not in h.values
    assert h.scheduler.is_idle


def test_a_deadline_ends_it_once() -> None:
    h = Harness(max_running_requests=3, num_slots=128, chunked_prefill_size=2)
    h.add_score("a", {PROMPT: CHOICES}, timeout_s=1.0)
    h.submit()
    h.now = 2.0
    h.turn()
    h.drain()
    error = h.finishes["a"].error
    assert error is not None
    assert (error.code, error.status) == ("timeout", 408)
    assert h.scheduler.is_idle


def test_a_failed_step_ends_only_the_requests_that_were_in_it() -> None:
    h = Harness(max_running_requests=2, num_slots=128, depth=2)
    h.add_score("a", {PROMPT: CHOICES})
    h.submit()
    h.fail()
    h.add_score("b", {PROMPT: CHOICES})
    h.drain()
    assert h.finishes["a"].reason == "error"
    h.assert_scores("b")


def test_rows_survive_retraction() -> None:
    h = Harness(num_slots=40, max_running_requests=4, depth=2, schedule_conservativeness=0.0)
    h.add("long", [1, 2, 3], max_tokens=30, ignore_eos=True)
    h.add_score("a", {tuple(range(1, 9)): [[i, i, i, i] for i in range(1, 6)]}, priority=-1)
    h.drain()
    h.assert_scores("a")
    h.assert_output("long")


@pytest.mark.parametrize("length", [64, 65, 200])
def test_what_does_not_fit_is_refused(length: int) -> None:
    h = Harness()
    h.scheduler.intake.add(
        score_request(
            "a", [pack_i32([1] * length)], [Row(b"", 0, LogprobRead(pack_i32([length - 1]), pack_i32([EOS])))]
        ),
        0.0,
    )
    h.take()
    error = h.finishes["a"].error
    assert error is not None
    assert error.code == "context_length_exceeded"


def test_ids_in_use_are_refused() -> None:
    h = Harness()
    h.add_score("a", {PROMPT: [[1]]})
    h.add_score("a", {PROMPT: [[1]]})
    h.take()
    error = h.finishes.pop("a").error
    assert error is not None
    assert error.param == "rid"
    h.add("a", [1])
    h.take()
    assert h.finishes.pop("a").reason == "error"
    h.drain()
    h.assert_scores("a")


def test_random_requests_on_a_small_pool() -> None:
    rng = random.Random(3)
    h = Harness(num_slots=64, page_size=2, depth=2, max_running_requests=4, chunked_prefill_size=5, check=True)
    for i in range(60):
        prompt = tuple(rng.choice([PROMPT, (1, 2, 3)])) + tuple(rng.choices(range(1, 9), k=rng.randrange(3)))
        if rng.random() < 0.5:
            choices = [rng.choices(range(1, 5), k=rng.randint(1, 5)) for _ in range(rng.randint(1, 7))]
            h.add_score(f"s{i}", {prompt: choices})
        else:
            h.add(f"g{i}", list(prompt))
        for _ in range(rng.randrange(3)):
            h.turn()
    h.drain()
    for rid in h.score_requests:
        h.assert_scores(rid)
    for rid in h.requests:
        h.assert_output(rid)


def test_each_position_is_scored_once() -> None:
    h = Harness()
    h.add_score("a", {PROMPT: CHOICES})
    rows = h.score_requests["a"].rows
    pairs = [
        (tuple(unpack_i32(row.ids)[: p - len(PROMPT) + 1]), t)
        for row in rows
        for p, t in zip(
            unpack_i32(row.logprobs.positions).tolist(), unpack_i32(row.logprobs.targets).tolist(), strict=True
        )
    ]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == {(tuple(c[:i]), c[i]) for c in CHOICES for i in range(len(c))}
