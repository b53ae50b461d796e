"""Hidden states of generating requests in the scheduler: each position once, whatever happens to the prompt."""

from __future__ import annotations

import pytest

from radixrt.sampling_params import HiddenPositions
from tests.scheduler.fake_runner import Harness

PROMPT = [5, 6, 7, 8, 9, 10, 11, 5, 6, 7, 8, 9, 1]


@pytest.mark.parametrize("chunk", [1, 4, 1000])
@pytest.mark.parametrize("max_tokens", [0, 1, 6])
@pytest.mark.parametrize(("wanted", "cached"), [("last", len(PROMPT) - 1), ("prompt", 0)])
def test_a_prompt_takes_the_cache_only_for_its_last_token(
    wanted: HiddenPositions, cached: int, max_tokens: int, chunk: int
) -> None:
    h = Harness(chunked_prefill_size=chunk, depth=2)
    h.add("warm", PROMPT)
    h.drain()
    options = {"prompt_logprobs": 0} if max_tokens == 0 and wanted == "prompt" else {}
    h.add("a", PROMPT, max_tokens=max_tokens, return_hidden_states=wanted, **options)
    h.add("b", PROMPT)
    h.drain()
    h.assert_hidden_states("a")
    h.assert_hidden_states("b")
    assert h.usages["a"].cached_tokens == cached
    if max_tokens:
        h.assert_output("a")


def test_a_prompt_that_begins_anew_sends_nothing_twice() -> None:
    h = Harness(chunked_prefill_size=3, depth=2)
    h.add("a", PROMPT, return_hidden_states="prompt")
    for _ in range(3):
        h.turn()
    h.submit()
    h.kill()
    h.restart()
    h.drain()
    h.assert_hidden_states("a")
    h.assert_output("a")


def test_a_prompt_cut_short_has_none() -> None:
    h = Harness(chunked_prefill_size=3)
    h.add("a", PROMPT, return_hidden_states="prompt")
    h.turn()
    h.scheduler.abort("a", h.now)
    h.drain()
    assert not h.hidden_states
    assert h.finishes["a"].reason == "abort"
