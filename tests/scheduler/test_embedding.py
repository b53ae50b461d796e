"""Embedding requests in the scheduler: exact for any cache state, page size, chunk size and other requests."""

from __future__ import annotations

import random

import pytest

from radixrt.messages.parts import Pooling
from tests.scheduler.fake_runner import Harness

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 1], [1], [5, 6, 7, 8, 9, 10, 11], [2, 3] * 10]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_vectors_are_those_of_the_prompts(page_size: int, depth: int, cache: bool, chunk: int) -> None:
    h = Harness(
        num_slots=128, page_size=page_size, depth=depth, cache=cache, chunked_prefill_size=chunk, max_running_requests=3
    )
    for turn in range(2):  # cold and warm
        h.add_embed(f"last{turn}", PROMPTS, "last")
        h.add(f"other{turn}", [5, 6, 7, 1])
        h.add_embed(f"mean{turn}", PROMPTS, "mean")
        h.add_score(f"score{turn}", {(5, 6, 7): [[1], [1, 2]]})
        h.drain()
        h.assert_embeddings(f"last{turn}")
        h.assert_embeddings(f"mean{turn}")
        h.assert_scores(f"score{turn}")
        h.assert_output(f"other{turn}")
    assert h.usages["mean1"].completion_tokens == 0
    assert h.usages["mean1"].prompt_tokens == sum(map(len, PROMPTS))


@pytest.mark.parametrize(("pooling", "computed"), [("last", 1), ("mean", len(PROMPTS[0]))])
def test_a_cached_prefix_serves_the_last_token_and_no_mean(pooling: Pooling, computed: int) -> None:
    h = Harness()
    h.add("warm", PROMPTS[0], max_tokens=1)
    h.drain()
    before = h.runner.tokens_computed
    h.add_embed("a", PROMPTS[:1], pooling)
    h.drain()
    h.assert_embeddings("a")
    assert h.runner.tokens_computed - before == computed
    assert h.usages["a"].cached_tokens == len(PROMPTS[0]) - computed


def test_prompts_of_one_request_share_a_step() -> None:
    h = Harness(num_slots=512, max_running_requests=16)
    h.add_embed("a", [[i, i + 1, i + 2] for i in range(1, 13)], "mean")
    h.drain()
    h.assert_embeddings("a")
    assert len(h.steps) == 1
    assert not any(h.steps[0].samples)


def test_thousands_of_prompts_take_one_place_in_the_queue() -> None:
    h = Harness(num_slots=256, max_running_requests=8, max_queued_requests=2, check=False, depth=2)
    h.add_embed("a", [[a, b, 1] for a in range(1, 46) for b in range(1, 46)], "last")
    assert len(h.scheduler.waiting) == 1
    h.add("other", [1, 2, 3])
    h.drain()
    h.assert_embeddings("a")
    h.assert_output("other")


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_rows_survive_retraction_and_the_death_of_the_runner(pooling: Pooling) -> None:
    h = Harness(num_slots=32, depth=2, schedule_conservativeness=0.0, chunked_prefill_size=3)
    h.add("long", [1, 2, 3], max_tokens=25, ignore_eos=True)
    h.add_embed("a", [[i] * 12 for i in range(1, 6)], pooling, priority=-1)
    for _ in range(6):
        h.turn()
    h.submit()
    h.kill()
    h.restart()
    h.drain()
    h.assert_embeddings("a")
    h.assert_output("long")


def test_a_failed_step_ends_only_the_requests_that_were_in_it() -> None:
    h = Harness(max_running_requests=2, num_slots=128, depth=2)
    h.add_embed("a", PROMPTS, "mean")
    h.submit()
    h.fail()
    h.add_embed("b", PROMPTS, "mean")
    h.drain()
    assert h.finishes["a"].reason == "error"
    h.assert_embeddings("b")


def test_an_abort_ends_every_row() -> None:
    h = Harness(max_running_requests=3, num_slots=128, chunked_prefill_size=4)
    h.add_embed("a", PROMPTS, "mean")
    h.submit()
    h.scheduler.abort("a", h.now)
    h.drain()
    assert h.finishes["a"].reason == "abort"
    assert "a" not in h.values
    assert h.scheduler.is_idle


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    h = Harness()
    h.add_embed("a", [[1], [1] * 64], "last")
    h.take()
    error = h.finishes["a"].error
    assert error is not None
    assert error.code == "context_length_exceeded"


def test_random_requests_on_a_small_pool() -> None:
    rng = random.Random(4)
    h = Harness(num_slots=64, page_size=2, depth=2, max_running_requests=4, chunked_prefill_size=5)
    for i in range(60):
        prompts = [rng.choice(PROMPTS)[: rng.randint(1, 20)] + rng.choices(range(1, 4), k=2) for _ in range(3)]
        if rng.random() < 0.7:
            h.add_embed(f"e{i}", prompts, rng.choice(["last", "mean"]))
        else:
            h.add(f"g{i}", prompts[0])
        for _ in range(rng.randrange(3)):
            h.turn()
    h.drain()
    for rid in h.embed_requests:
        h.assert_embeddings(rid)
    for rid in h.requests:
        h.assert_output(rid)
